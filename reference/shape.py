"""The shape of an engine: what stands for a whole run, its groups and units, its limits, and which features are on."""

from __future__ import annotations

from dataclasses import dataclass

from reference.geometry import Group
from reference.policy import Policy
from reference.split import SplitSetting


@dataclass(frozen=True)
class Shape:
    """The facts of one engine. Sizes in tokens unless a name says otherwise.

    ``setting``: the units, and what the split needs of them. ``alignment``: the unit in which hits are granted.
    ``blocks``: the pool's, block 0, the null block, among them. ``budget``: the most tokens of a step, ``sequences``:
    the most requests that run at once, ``long_prefill_threshold``: the most tokens that one request gets of a step (0:
    no limit). ``drafts``: draft tokens a step and request, hence spare Mamba blocks. ``caching``: the prefix cache is
    on. ``saves``: Mamba groups reserve blocks for states that the backend saves inside a chunk. ``retention``: the
    retention interval. ``by_priority``: whoever is most urgent goes first, else whoever came first.
    ``watermark_blocks``: kept free at admission while others run. ``reserves_full_sequence``: a request is admitted
    only if all its tokens fit. ``steps_unseen``: the steps that may be scheduled before the output of an earlier one is
    known. ``model_length``: the context length, which no request comes near.
    """

    policy: Policy
    groups: tuple[Group, ...]
    setting: SplitSetting
    alignment: int
    blocks: int
    budget: int
    sequences: int
    long_prefill_threshold: int = 0
    drafts: int = 0
    caching: bool = True
    saves: bool = False
    retention: int | None = None
    by_priority: bool = False
    watermark_blocks: int = 0
    reserves_full_sequence: bool = True
    steps_unseen: int = 0
    model_length: int = 1 << 22

    @property
    def splits(self) -> bool:
        """Whether chunks are cut: some group has recurrent state."""
        return any(group.kind == "mamba" for group in self.groups)

    @property
    def drops(self) -> bool:
        """Whether the EAGLE drop lowers the hits of some group."""
        return any(group.drops for group in self.groups)

    @property
    def mask_alignment(self) -> int:
        """The unit that masks floor boundaries to, in tokens."""
        if self.policy.mask_alignment == "scheduler block":
            return self.setting.scheduler_block
        return self.alignment
