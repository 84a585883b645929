"""Carries the gradients of learners that share an update, through shared memory: bells, and rows of gradients.

A bell is a counter. One process rings it; other processes wait for it: they spin at first, because a process that
sleeps comes back tens of microseconds late, then they sleep. A process that has heard a ring sees everything that was
written before it (the event count of the core, cpp/relive/words/sync.hpp). A word is one number that goes with a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from relive._core import await_rings, ring
from relive.train.memory.shared_block import SharedBlock

UPDATE, UPDATE_AND_HASH, MEAN = 1, 2, 3  # words of the leader
LEADER = 0
LOOK_S = 0.05  # period in which a wait checks that the other side is alive
_LINE = 16  # uint32 values of a cache line: a wait for one bell must not take the line of another bell
_WORD = 2


@final
class Bells:
    """A bell and a word for each of `count` learners, and the list of those that count, in `num_bytes(count)` bytes."""

    def __init__(self, block: SharedBlock, count: int) -> None:
        self._lines = block.array(np.uint32, (count, _LINE))
        self._counting = block.array(np.uint8, (count,), self._lines.nbytes)
        self._heard = [0] * count

    @staticmethod
    def num_bytes(count: int) -> int:
        """Returns the bytes of the block."""
        return 4 * _LINE * count + count

    def ring(self, number: int, word: int = 0) -> None:
        """Rings the bell of learner `number` with a word, an integer in [0, 2**32)."""
        self._lines[number, _WORD] = word
        ring(self._lines[number, :_WORD])

    def hear(self, number: int, spin_s: float, timeout_s: float) -> int | None:
        """Waits for the next ring of learner `number`: spins for spin_s, then sleeps.

        Returns:
            The word; None after timeout_s without a ring. Then call it again. Python handles signals only after the
            return, so keep timeout_s short.
        """
        heard = (self._heard[number] + 1) % 2**32
        if not await_rings(self._lines[number, :_WORD], heard, spin_s, timeout_s):
            return None
        self._heard[number] = heard
        return int(self._lines[number, _WORD])

    @property
    def counting(self) -> Sequence[int]:
        """Numbers of the learners whose gradients count, in order. The leader sets them before it rings."""
        return [int(number) for number in np.flatnonzero(self._counting)]

    @counting.setter
    def counting(self, numbers: Sequence[int]) -> None:
        self._counting[:] = 0
        self._counting[list(numbers)] = 1


@final
class GradientRows:
    """Two rows of `chunk` float32 values for each learner, used alternately, in `num_bytes(count, chunk)` bytes.

    In a round every learner calls `put`, then every learner calls `mean`. A learner may begin the next round while
    others still add up this one: it writes its other row. It begins the round after that one only when all learners
    have put their gradients.
    """

    def __init__(self, block: SharedBlock, count: int, chunk: int) -> None:
        self.chunk = chunk
        self._rows = torch.from_numpy(block.array(np.float32, (2, count, chunk)))
        self._current = 1  # the row of this round

    @staticmethod
    def num_bytes(count: int, chunk: int) -> int:
        """Returns the bytes of the block."""
        return 2 * 4 * count * chunk

    def put(self, number: int, gradient: Tensor) -> None:
        """Begins a round with the gradient of learner `number`, float32 of at most `chunk` values."""
        self._current ^= 1
        self._rows[self._current, number, : len(gradient)].copy_(gradient)

    def mean(self, numbers: Sequence[int], out: Tensor) -> None:
        """Writes the mean of the rows of these learners into out, added in this order: all learners get equal bits."""
        first, *others = (self._rows[self._current, number, : len(out)] for number in numbers)
        total: Any = out if out.device.type == "cpu" else torch.empty_like(first)
        for other in others:
            torch.add(first, other, out=total)
            first = total
        out.copy_(first.mul_(1.0 / len(numbers)) if others else first)
