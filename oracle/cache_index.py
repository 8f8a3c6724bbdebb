"""The prefix cache as the trace shows it: which block has which hashes, and what each hash names."""

from __future__ import annotations


class Entry:
    """One hash of one block.

    ``key``: id of the prefix that the hash covers (lookahead tokens included). ``position``: tokens it
    stands for. ``content``: the prefix ids that the block must hold, from its first slot (attention) or
    the one state (Mamba). ``following``: id of one token more, as its writer had it (0: not known then).
    ``reported``: a fault of this entry has been reported already. ``gone``: its block lost it.
    """

    def __init__(
        self, group: int, block: int, key: int, position: int, digest: int, content: list[int], following: int
    ) -> None:
        self.group = group
        self.block = block
        self.key = key
        self.position = position
        self.digest = digest
        self.content = content
        self.following = following
        self.reported = False
        self.gone = False


class CacheIndex:
    """Entries by block and by (group, key). A hash may be on several blocks, a block may have several."""

    def __init__(self) -> None:
        self.by_block: dict[int, list[Entry]] = {}
        self.by_key: dict[tuple[int, int], dict[int, Entry]] = {}
        self.names: dict[int, tuple[int, int]] = {}

    def add(self, entry: Entry) -> None:
        """A block got a hash."""
        self.by_block.setdefault(entry.block, []).append(entry)
        self.by_key.setdefault((entry.group, entry.key), {})[entry.block] = entry

    def has(self, group: int, block: int, position: int) -> bool:
        """Whether a block has a hash that stands for ``position`` tokens in a group."""
        entries = self.by_block.get(block, ())
        return any(entry.group == group and entry.position == position for entry in entries)

    def remove_block(self, block: int) -> list[Entry]:
        """A block lost all its hashes; gives what they were."""
        entries = self.by_block.pop(block, [])
        for entry in entries:
            entry.gone = True
            holders = self.by_key.get((entry.group, entry.key))
            if holders is not None:
                holders.pop(block, None)
                if not holders:
                    del self.by_key[entry.group, entry.key]
        return entries

    def clear(self) -> None:
        """The cache was reset. What digests name stays true."""
        for entries in self.by_block.values():
            for entry in entries:
                entry.gone = True
        self.by_block.clear()
        self.by_key.clear()
