"""The facts of an engine that a trace written by hand begins with."""

from __future__ import annotations

from oracle.trace import Setup

BLOCKS_OF_FOUR = Setup(
    scheduler_block=4,
    hash_block=4,
    split_grid=4,
    alignment=4,
    partial_hits=False,
    split=True,
    block_drop=False,
    lookahead_hash=0,
    drop_groups=(False, False),
    exact_junction=False,
    lookahead=0,
    retention=0,
    watermark_blocks=0,
    zeroing=False,
    checkpoint_alignment=0,
)
"""Full attention and Mamba in blocks of 4 tokens, under interval 0, and nothing else switched on."""
