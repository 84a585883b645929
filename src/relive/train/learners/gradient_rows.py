"""What learners of one update say to each other through shared memory: bells, and rows of gradients.

A bell is a counter that one process rings and others wait for: spinning at first, since a process that sleeps comes
back tens of microseconds later, then asleep. What was written before a ring is seen by whoever heard it (the core's
event count, cpp/relive/words/sync.hpp). A word is one number that goes with a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from relive._core import await_rings, ring
from relive.train.memory.shared_block import SharedBlock

UPDATE, UPDATE_AND_HASH, MEAN = 1, 2, 3  # what the leader says
LEADER = 0
LOOK_S = 0.05  # so often a wait looks whether the other side lives
_LINE = 16  # uint32 values in a line of memory: whoever waits for one bell takes no line from another's owner
_WORD = 2


@final
class Bells:
    """One bell and one word for each of `count` learners, and who of them counts, in a block of `num_bytes(count)`."""

    def __init__(self, block: SharedBlock, count: int) -> None:
        self._lines = block.array(np.uint32, (count, _LINE))
        self._counting = block.array(np.uint8, (count,), self._lines.nbytes)
        self._heard = [0] * count

    @staticmethod
    def num_bytes(count: int) -> int:
        """Of the block."""
        return 4 * _LINE * count + count

    def ring(self, number: int, word: int = 0) -> None:
        """Learner `number` says a word, an integer in [0, 2**32)."""
        self._lines[number, _WORD] = word
        ring(self._lines[number, :_WORD])

    def hear(self, number: int, spin_s: float, timeout_s: float) -> int | None:
        """The next word of learner `number`; None where it said none for so long, asked again it goes on waiting.

        It spins for spin_s and sleeps then; a signal is heard when it returns, so timeout_s is short.
        """
        heard = (self._heard[number] + 1) % 2**32
        if not await_rings(self._lines[number, :_WORD], heard, spin_s, timeout_s):
            return None
        self._heard[number] = heard
        return int(self._lines[number, _WORD])

    @property
    def counting(self) -> Sequence[int]:
        """Numbers of the learners whose gradients count, in their order; the leader sets it before it rings."""
        return [int(number) for number in np.flatnonzero(self._counting)]

    @counting.setter
    def counting(self, numbers: Sequence[int]) -> None:
        self._counting[:] = 0
        self._counting[list(numbers)] = 1


@final
class GradientRows:
    """Two rows of `chunk` float32 values for each learner, used in turns, in a block of `num_bytes(count, chunk)`.

    A round is a `put` by everyone, then a `mean` by everyone. One may begin the next round while others still add up
    the last: it writes its other row. It comes to the round after that only when all of them have put theirs.
    """

    def __init__(self, block: SharedBlock, count: int, chunk: int) -> None:
        self.chunk = chunk
        self._rows = torch.from_numpy(block.array(np.float32, (2, count, chunk)))
        self._turn = 1

    @staticmethod
    def num_bytes(count: int, chunk: int) -> int:
        """Of the block."""
        return 2 * 4 * count * chunk

    def put(self, number: int, gradient: Tensor) -> None:
        """Begins a round: the gradient of learner `number`, float32 of at most `chunk` values."""
        self._turn ^= 1
        self._rows[self._turn, number, : len(gradient)].copy_(gradient)

    def mean(self, numbers: Sequence[int], out: Tensor) -> None:
        """Writes the mean of these learners' rows, added in this order: the same bits for everyone who asks."""
        first, *others = (self._rows[self._turn, number, : len(out)] for number in numbers)
        total: Any = out if out.device.type == "cpu" else torch.empty_like(first)
        for other in others:
            torch.add(first, other, out=total)
            first = total
        out.copy_(first.mul_(1.0 / len(numbers)) if others else first)
