"""Appended to a release's ``v1/core/sched/scheduler.py``: faults, one for each rule that no release breaks.

Which one is on is said by the ids of a scenario's requests: those of rule A1 are called ``A1-…``. With any other
ids the release is what it was.
"""

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager


class _Original:
    schedule = Scheduler.schedule  # noqa: F821
    split = Scheduler._mamba_block_aligned_split  # noqa: F821
    get_computed_blocks = KVCacheManager.get_computed_blocks
    cache_full_blocks = BlockPool.cache_full_blocks


_runs = {}


def _fault(request_ids):
    return next(iter(request_ids), "").partition("-")[0]


def _schedule(self, *args, **kwargs):
    fault, pool = _fault(self.requests), self.kv_cache_manager.block_pool
    is_first_run = _runs.setdefault(fault, self) is self
    if fault == "A3":
        self.max_num_running_reqs = self.max_num_active_reqs = 100
    if fault == "P1":
        self.max_num_scheduled_tokens = 0
    if fault == "D1" and not is_first_run:
        self.max_num_scheduled_tokens = 8
    output = _Original.schedule(self, *args, **kwargs)
    held = [block for block in pool.blocks if block.ref_cnt and block.block_hash]
    if held and not hasattr(self, "is_broken"):
        self.is_broken = True
        if fault == "A1":
            pool.touch(held[:1])
        if fault == "A2":
            pool.free_blocks(held[:1])
    return output


def _split(self, request, asked, *computed):
    granted = _Original.split(self, request, asked, *computed)
    fault = _fault([request.request_id])
    start = request.num_computed_tokens + sum(computed)
    if fault == "S1":
        return granted + 1
    if fault == "S4" and start == 0 and not hasattr(request, "is_broken"):
        request.is_broken = True
        return 0
    is_skipped = {"S3junction": start == 0, "S3last": start == 16, "S3tail": start >= 28}
    return asked if is_skipped.get(fault) else granted


def _get_computed_blocks(self, request, *args, **kwargs):
    blocks, hit, *more = _Original.get_computed_blocks(self, request, *args, **kwargs)
    fault = _fault([request.request_id])
    if fault == "L1" and hit:
        self.block_pool._remove_cached_block_hashes(blocks.blocks[1][-1])
    if fault == "L3" and hit:
        more[0] = hit
    return blocks, hit, *more


def _cache_full_blocks(self, request, **fields):
    is_dropped = _fault([request.request_id]) in ("R1", "R2") and fields["kv_cache_group_id"] == 1
    if not is_dropped:
        _Original.cache_full_blocks(self, request=request, **fields)


Scheduler.schedule = _schedule  # noqa: F821
Scheduler._mamba_block_aligned_split = _split  # noqa: F821
KVCacheManager.get_computed_blocks = _get_computed_blocks
BlockPool.cache_full_blocks = _cache_full_blocks
