"""The worker's memory: what a step leaves in each block, and which reads it catches."""

from __future__ import annotations

from reference.geometry import Group
from reference.worker import DRAFT, MIXED, Chunk, Memory, Read

FULL, MAMBA = Group("full", 4), Group("mamba", 4)
IDS = list(range(100, 200))


def chunk(name: str, start: int, tokens: int, blocks: list[list[int]], **more: int) -> Chunk:
    return Chunk(
        name, start, tokens, more.get("drafts", 0), more.get("accepted", 0), bool(more.get("fresh", 0)), blocks, IDS
    )


def run(memory: Memory, *chunks: Chunk) -> list[Read]:
    reads: list[Read] = []
    memory.forward(chunks, reads.append)
    return reads


def test_attention_fills_slots_and_reads_them_back() -> None:
    memory = Memory([FULL])
    assert run(memory, chunk("r", 0, 6, [[1, 2]], fresh=1)) == []
    assert memory.content(0, 1) == IDS[1:5]
    assert memory.content(0, 2) == [*IDS[5:7], 0, 0]
    assert run(memory, chunk("r", 6, 1, [[]])) == []


def test_a_read_of_what_was_never_written_is_caught_once_a_block() -> None:
    memory = Memory([FULL])
    reads = run(memory, chunk("r", 6, 1, [[1, 2]], fresh=1))
    assert [(read.block, read.position, read.found) for read in reads] == [(1, 0, 0), (2, 4, 0)]


def test_a_window_does_not_read_what_lies_before_it() -> None:
    memory = Memory([Group("swa", 4, 3)])
    assert [read.position for read in run(memory, chunk("r", 6, 1, [[0, 2]], fresh=1))] == [4]


def test_chunked_local_attention_does_not_read_earlier_attention_chunks() -> None:
    memory = Memory([Group("chunked", 4, attention_chunk=8)])
    assert [read.position for read in run(memory, chunk("r", 14, 1, [[0, 0, 3, 4]], fresh=1))] == [8, 12]
    assert run(memory, chunk("s", 16, 1, [[0, 0, 0, 0, 5]], fresh=1)) == [], "its chunk begins with it"


def test_another_group_overwrites_a_block() -> None:
    memory = Memory([FULL, Group("full", 4)])
    run(memory, chunk("a", 0, 4, [[1], [2]], fresh=1))
    run(memory, chunk("b", 0, 4, [[3], [1]], fresh=1))
    assert memory.content(0, 1) is None
    assert [read.group for read in run(memory, chunk("a", 4, 1, [[5], [6]]))] == [0]


def test_wrong_drafts_leave_garbage_that_the_next_step_overwrites() -> None:
    memory = Memory([FULL])
    run(memory, chunk("r", 0, 4, [[1, 2]], fresh=1))
    run(memory, chunk("r", 4, 3, [[]], drafts=2, accepted=1))
    assert memory.content(0, 2) == [IDS[5], IDS[6], DRAFT, 0]
    assert run(memory, chunk("r", 6, 1, [[]])) == []


def test_copies_see_the_memory_before_the_step() -> None:
    memory = Memory([FULL])
    run(memory, chunk("r", 0, 4, [[1]], fresh=1))
    memory.copy([(1, 2), (2, 3)])
    assert memory.content(0, 2) == IDS[1:5]
    assert memory.content(0, 3) is None


def test_a_state_is_carried_to_the_next_block_and_kept_in_the_old_one() -> None:
    memory = Memory([MAMBA])
    run(memory, chunk("r", 0, 4, [[1]], fresh=1))
    assert run(memory, chunk("r", 4, 2, [[2]])) == []
    assert memory.content(0, 1) == [IDS[4]]
    assert memory.content(0, 2) == [IDS[6]]


def test_inside_a_block_the_state_is_overwritten_in_place() -> None:
    memory = Memory([MAMBA])
    run(memory, chunk("r", 0, 3, [[1]], fresh=1))
    assert run(memory, chunk("r", 3, 2, [[2]])) == [], "running over a boundary"
    assert memory.content(0, 1) == [IDS[3]], "leaves the state at 3 where the state at 4 belongs"


def test_a_hit_starts_from_the_state_in_its_column() -> None:
    memory = Memory([MAMBA])
    run(memory, chunk("a", 0, 4, [[1]], fresh=1))
    assert run(memory, chunk("b", 4, 2, [[1, 2]], fresh=1)) == []
    assert [read.position for read in run(memory, chunk("c", 4, 2, [[3, 4]], fresh=1))] == [4]


def test_mamba_does_not_see_a_state_of_the_same_step() -> None:
    memory = Memory([MAMBA])
    reads = run(memory, chunk("a", 0, 4, [[1]], fresh=1), chunk("b", 4, 2, [[1, 2]], fresh=1))
    assert [read.request for read in reads] == ["b"]


def test_accepted_drafts_move_the_boundary_state_to_its_block() -> None:
    memory = Memory([MAMBA])
    run(memory, chunk("r", 0, 3, [[1, 2, 3]], fresh=1))
    # Token 3 and two drafts: the first draft is right, so 5 tokens are known to be computed.
    assert run(memory, chunk("r", 3, 3, [[4]], drafts=2, accepted=1)) == []
    assert memory.content(0, 1) == [IDS[4]], "state at the boundary, in the boundary's own block"
    assert run(memory, chunk("r", 5, 3, [[]], drafts=2, accepted=2)) == []


def foreign(name: str, start: int, tokens: int, blocks: list[list[int]]) -> Chunk:
    """A fresh chunk of a request with other tokens than all above."""
    return Chunk(name, start, tokens, 0, 0, True, blocks, list(range(300, 400)))


def test_after_accepted_drafts_a_state_is_carried_once() -> None:
    memory = Memory([MAMBA])
    run(memory, chunk("r", 0, 3, [[1, 2, 3, 4, 5]], fresh=1))
    run(memory, chunk("r", 3, 3, [[]], drafts=2, accepted=1))
    assert run(memory, chunk("r", 5, 4, [[]])) == [], "from the column of the accepted draft, to column 2"
    assert memory.content(0, 3) == [IDS[9]]
    assert run(memory, chunk("r", 9, 1, [[]])) == []


def test_a_zeroed_block_holds_nothing() -> None:
    memory = Memory([FULL])
    run(memory, chunk("r", 0, 4, [[1]], fresh=1))
    memory.zero([1])
    assert memory.content(0, 1) is None
    reads = run(memory, chunk("b", 4, 1, [[1, 2]], fresh=1))
    assert [(read.request, read.block, read.found) for read in reads] == [("b", 1, 0)]


def read_once() -> Memory:
    """Request a has found block 1 right, and b holds other tokens in block 5."""
    memory = Memory([FULL])
    run(memory, chunk("a", 0, 4, [[1, 2]], fresh=1), foreign("b", 0, 4, [[5]]))
    assert run(memory, chunk("a", 4, 1, [[]])) == []
    return memory


def test_a_block_that_was_right_is_looked_at_again_after_a_write() -> None:
    memory = read_once()
    run(memory, foreign("c", 0, 2, [[1]]))
    reads = run(memory, chunk("a", 5, 1, [[]]))
    assert [(read.request, read.block, read.position, read.found) for read in reads] == [("a", 1, 0, 301)]


def test_a_block_that_was_right_is_looked_at_again_after_a_copy() -> None:
    memory = read_once()
    memory.copy([(5, 1)])
    assert [(read.block, read.found) for read in run(memory, chunk("a", 5, 1, [[]]))] == [(1, 301)]


def test_a_block_that_was_right_is_looked_at_again_after_it_is_zeroed() -> None:
    memory = read_once()
    memory.zero([1])
    assert [(read.block, read.found) for read in run(memory, chunk("a", 5, 1, [[]]))] == [(1, 0)]


def test_a_request_that_was_dropped_comes_back_with_a_new_table() -> None:
    memory = Memory([FULL])
    run(memory, chunk("r", 0, 4, [[1]], fresh=1))
    memory.drop(["r", "never seen"])
    run(memory, chunk("r", 0, 4, [[5]]))
    assert memory.content(0, 5) == IDS[1:5]


def saving(position: int, column: int) -> Memory:
    """A worker that saves one state in every chunk."""
    return Memory([MAMBA], lambda start, end: (position, column))


def test_a_state_is_saved_inside_a_chunk_in_a_column_of_its_own() -> None:
    memory = saving(8, 1)
    assert run(memory, chunk("r", 0, 11, [[0, 2, 3]], fresh=1)) == []
    assert [memory.content(0, block) for block in (2, 3)] == [[IDS[8]], [IDS[11]]]


def test_a_state_saved_over_the_running_one_leaves_neither() -> None:
    memory = saving(8, 1)
    run(memory, chunk("r", 0, 11, [[0, 3, 3]], fresh=1))
    assert memory.content(0, 3) == [MIXED]
    assert [read.found for read in run(memory, chunk("r", 11, 1, [[]]))] == [MIXED]


def test_with_drafts_nothing_is_saved_inside() -> None:
    memory = saving(1, 0)
    run(memory, chunk("r", 0, 2, [[1, 2]], fresh=1))
    run(memory, chunk("r", 2, 2, [[]], drafts=1))
    assert memory.content(0, 1) == [IDS[3]]
