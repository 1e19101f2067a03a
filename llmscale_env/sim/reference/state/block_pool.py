"""KV memory in blocks, with a prefix cache: docs/engine.md, section 19."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

BlockName = tuple[int, int]
"""Whose sequence of tokens the block ends a part of, and how many of its blocks come before."""


@dataclass(eq=False)
class Block:
    """KV of `block_tokens` tokens.

    Attributes:
        name: what tokens end with it; None: not full, or of no use to anybody else.
        holders: running requests that use it.
    """

    name: BlockName | None = None
    holders: int = 1


class BlockPool:
    """Blocks of one instance.

    Attributes:
        size: how many there are.
        nameless: free blocks without a name.
        cached: free blocks with a name, those released longest ago first.
        evicted: names lost so far.
    """

    def __init__(self, size: int) -> None:
        self.size = self.nameless = size
        self.cached: OrderedDict[Block, None] = OrderedDict()
        self.evicted = 0
        self._bearers: dict[BlockName, dict[Block, None]] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.nameless + len(self.cached)

    def take(self, n: int) -> list[Block]:
        """So many free blocks: nameless ones, then those released longest ago, which lose their names."""
        return [self._take_one() for _ in range(n)]

    def _take_one(self) -> Block:
        if self.nameless > 0:
            self.nameless -= 1
            return Block()
        block, _ = self.cached.popitem(last=False)
        assert block.name is not None
        bearers = self._bearers[block.name]
        del bearers[block]
        if not bearers:
            del self._bearers[block.name]
        self.evicted += 1
        return Block()

    def give_name(self, block: Block, name: BlockName) -> bool:
        """The block is full; whether another one bears the name."""
        block.name = name
        bearers = self._bearers.setdefault(name, {})
        bearers[block] = None
        return len(bearers) > 1

    def find(self, name: BlockName) -> Block | None:
        """The block that bears this name, of several the one that was given it first."""
        return next(iter(self._bearers.get(name, ())), None)

    def hold(self, blocks: Iterable[Block]) -> None:
        """One more request uses these."""
        for block in blocks:
            if block.holders == 0:
                del self.cached[block]
            block.holders += 1

    def release(self, blocks: list[Block]) -> None:
        """A request uses these, in the order of its tokens, no longer."""
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0 and block.name is None:
                self.nameless += 1
            elif block.holders == 0:
                self.cached[block] = None
