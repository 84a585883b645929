"""Answers the requests of actors for actions: the inference process's side of the rules in acting/inference.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Policy
from relive.train.acting.inference import MESSAGE, RequestBoard
from relive.train.acting.noise import EnvironmentNoise
from relive.train.memory.parameters import NewerParameters
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import Watch, watch_with


@final
@dataclass
class OpenBatch:
    """Collects requests until their batch closes: rule Q2. The caller gives the times, in seconds."""

    max_batch: int
    max_wait_s: float
    _waiting: dict[int, tuple[int, int, float]] = field(default_factory=dict)  # by slot: number, rows, time of arrival

    @property
    def num_rows(self) -> int:
        """Observations in the open batch."""
        return sum(rows for _, rows, _ in self._waiting.values())

    def add(self, slot: int, number: int, rows: int, now_s: float) -> None:
        """Adds a request. A repeated one keeps its place; a newer one of the same slot goes to the end."""
        waiting = self._waiting.get(slot)
        if waiting is not None and waiting[0] != number:
            del self._waiting[slot]
        if waiting is None or waiting[0] != number:
            self._waiting[slot] = (number, rows, now_s)

    def closes_in(self, now_s: float) -> float | None:
        """Returns the seconds until the batch closes if no request comes, 0: now; None while there is no request."""
        if not self._waiting:
            return None
        if self.num_rows >= self.max_batch:
            return 0.0
        oldest_s = min(came_s for _, _, came_s in self._waiting.values())
        return max(0.0, oldest_s + self.max_wait_s - now_s)

    def take(self) -> list[tuple[int, int]]:
        """Returns (slot, number) of the batch that closes: whole requests in their order, at most max_batch rows."""
        taken, room = [], self.max_batch
        for slot, (number, rows, _) in list(self._waiting.items()):
            if rows > room:
                break
            room -= rows
            taken.append((slot, number))
            del self._waiting[slot]
        return taken


@final
class Answering:
    """Answers requests: the side of the inference process. One thread calls `serve` again and again."""

    def __init__(
        self,
        board: RequestBoard,
        policy: Policy,
        reader: NewerParameters,
        scoreboard: Scoreboard,
        batch: OpenBatch,
        clock: Callable[[], float] = time.monotonic,
        watch: Watch | None = None,
    ) -> None:
        """Takes the memory.

        Args:
            board: The requests.
            policy: The policy.
            reader: Source of the parameters.
            scoreboard: Counters of the run.
            batch: The open batch, whose max_batch is at least the rows of a slot.
            clock: Returns the time in seconds.
            watch: Times the methods; None: nothing is timed.
        """
        watch = watch or watch_with(None)
        self._board, self._bell, self._scoreboard = board, watch(board.bell, {"heard": "wait"}), scoreboard
        self._policy, self._reader = watch(policy, {"explore": "inference"}), watch(reader, {"poll": "parameters"})
        self._batch, self._clock = batch, clock
        self._parameters: Mapping[str, NDArray[np.float32]] = {}
        layout = board.layout
        self._observations = np.zeros((batch.max_batch, *layout.observation[1]), layout.observation[0])
        self._keys, self._steps = (np.zeros(batch.max_batch, np.uint64) for _ in range(2))

    def serve(self, wait_s: float) -> int:
        """Takes requests for at most wait_s, or until a batch closes, and answers that batch. Returns its rows."""
        self._board.beats += 1
        until_s = self._clock() + wait_s
        while True:
            now_s = self._clock()
            closes_in = self._batch.closes_in(now_s)
            if closes_in == 0.0:
                return self._answer(self._batch.take())
            self._hear(max(0.0, min(until_s - now_s, until_s if closes_in is None else closes_in)))
            if self._clock() >= until_s and self._batch.closes_in(self._clock()) != 0.0:
                return 0

    def _hear(self, wait_s: float) -> None:
        messages, now_s = self._bell.heard(wait_s), self._clock()
        for slot, number in MESSAGE.iter_unpack(messages):
            self._batch.add(slot, number, int(self._board.slots[slot]["num_rows"]), now_s)

    def _answer(self, requests: list[tuple[int, int]]) -> int:
        """Answers a batch: rules Q3 and Q4. Returns its rows."""
        newer = self._reader.poll()
        if newer is not None:
            self._parameters = newer
        slots, taken, end = self._board.slots, [], 0
        for slot, number in requests:
            rows = self._copied(slots[slot], number, end)
            if rows:
                taken.append((slot, number, slice(end, end + rows)))
                end += rows
        if not taken or not self._parameters:
            return 0  # without parameters there is no answer: the actors ask again
        noise = EnvironmentNoise(self._keys[:end], self._steps[:end])
        actions = self._policy.explore(self._parameters, self._observations[:end], self._scoreboard.num_steps, noise)
        for slot, number, span in taken:
            mine = slots[slot]
            mine["actions"][: span.stop - span.start] = actions[span]
            mine["version"] = self._reader.version
            mine["reply"] = number
            self._board.bells[slot].ring(b"!")
        self._board.answers += 1
        return end

    def _copied(self, slot: Any, number: int, start: int) -> int:
        """Copies a request after the rows before `start`: rule Q3. Returns its rows; 0 if the request is outdated."""
        rows = int(slot["num_rows"])
        if slot["reply"] == number or start + rows > len(self._keys):
            return 0
        self._observations[start : start + rows] = slot["observations"][:rows]
        self._keys[start : start + rows] = slot["keys"][:rows]
        self._steps[start : start + rows] = slot["steps"][:rows]
        return rows if slot["request"] == number else 0
