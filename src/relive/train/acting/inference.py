"""Where actions come from: an actor's own policy, or a process that infers for all actors. Actors import this.

An inference process, as in SEED (Espeholt et al. 2020): actors have environments only, and ask it for actions. It is a
process of its own and no thread of the learner's, whose Python it would hold up at every step; it can die alone. The
protocol, for one slot of shared memory a group of environments, a bell of the process's, and a bell for each slot:

  slot    request (int64), observations, keys and steps of the noise: written by the actor
          reply (int64), version, actions: written by the process
  bell    a pipe; a message through it is read after everything that was written before it was sent

  Q1  An actor counts its request up, n, then writes the rest of its part, then rings (slot, n).
  Q2  The process puts (slot, n) into the open batch. The batch closes when it holds max_batch observations, or all that
      there are in the run, or when its oldest request is max_wait_us old, whichever comes first. Requests are taken
      whole, in the order in which they came.
  Q3  It copies a request; the copy counts where `request` is n after it, and `reply` is not n already. Else the actor
      is another one by now, which counts up before it writes, or has its answer.
  Q4  It takes the newest parameters, of version v, infers all rows of the batch, and for each request writes actions
      and v, then reply = n, then rings the slot's bell.
  Q5  The actor, when its bell rang or after 0.2 s, looks whether `reply` is n. After 0.2 s without it rings (slot, n)
      again: whoever was to answer may be dead, and the one after it has heard of nothing.

A dead actor's place is taken by one that goes on counting where its slot stands, so no late answer is taken for one of
its own. Noise follows from key and step (`relive.train.acting.noise`): whoever infers a request, and as often as it
may be, it is the same action for the same parameters, and the rows carry the version that acted.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import reduction
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Policy, Spaces
from relive.errors import DeadlineExceeded
from relive.train.acting.noise import EnvironmentNoise, NoiseStream
from relive.train.memory.parameters import NewerParameters
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.shared_block import SharedBlock
from relive.train.memory.stopwatch import Watch, watch_with

_RING_PERIOD_S = 0.2
_DEADLINE_S = 600.0  # longer than it takes to see that an inference process is gone, and to start another
_MESSAGE = struct.Struct("<qq")
_NO_PARAMETERS_S = 0.01


def group_sizes(num_envs: int, num_groups: int) -> list[int]:
    """Environments of each group, the larger ones first."""
    return [num_envs // num_groups + (group < num_envs % num_groups) for group in range(num_groups)]


class Inference(Protocol):
    """Where a group of environments gets its actions. version: of the parameters that the last ones came from."""

    version: int

    def ask(self, observations: NDArray[Any]) -> None:
        """Says what the environments show; it does not wait."""
        ...

    def actions(self, wait_s: float) -> NDArray[Any] | None:
        """The actions for it, once; None where there are none within wait_s. It may be called again then."""
        ...


@final
class OwnInference:
    """By the actor itself, when it is asked for actions, with the newest parameters there are then."""

    def __init__(
        self, policy: Policy, reader: NewerParameters, scoreboard: Scoreboard, keys: NDArray[np.uint64]
    ) -> None:
        self._policy, self._reader, self._scoreboard = policy, reader, scoreboard
        self._parameters: Mapping[str, NDArray[np.float32]] = {}
        self._noise = NoiseStream(keys)
        self._observations: Any = None
        self.version = 0

    def ask(self, observations: NDArray[Any]) -> None:
        """See Inference."""
        self._observations = observations

    def actions(self, wait_s: float) -> NDArray[Any] | None:
        """See Inference: None while no parameters were ever published."""
        newer = self._reader.poll()
        if newer is not None:
            self._parameters, self.version = newer, self._reader.version
        if not self._parameters:
            time.sleep(min(wait_s, _NO_PARAMETERS_S))
            return None
        num_steps = self._scoreboard.num_steps
        actions = self._policy.explore(self._parameters, self._observations, num_steps, self._noise)
        self._noise.next_step()
        return actions


# ---- asking another process ------------------------------------------------------------------------------------------


@final
class Bell:
    """A pipe whose ends all processes of a run have: one that dies closes none. It pickles into a child process."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._open()

    def _open(self) -> None:
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)

    def ring(self, message: bytes) -> None:
        """Sends a message of fewer than 512 bytes, whole. Lost where thousands wait to be heard: it is rung again."""
        try:
            os.write(self._write, message)
        except BlockingIOError:
            pass

    def heard(self, wait_s: float) -> bytes:
        """All messages that came, one after another; empty where none came within wait_s. Exact to microseconds."""
        if wait_s > 0.0 and not select.select([self._read], [], [], wait_s)[0]:
            return b""
        try:
            return os.read(self._read, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Ends this process's use of it."""
        os.close(self._read)
        os.close(self._write)

    def __reduce__(self) -> tuple[Any, ...]:
        return _bell, (reduction.DupFd(self._read), reduction.DupFd(self._write))


def _bell(read: Any, write: Any) -> Bell:
    bell = Bell.__new__(Bell)
    bell._read, bell._write = read.detach(), write.detach()
    bell._open()
    return bell


@final
@dataclass(frozen=True)
class RequestLayout:
    """What a slot holds: for each of num_rows environments an observation, key and step of its noise, and an action."""

    num_rows: int
    observation: tuple[str, tuple[int, ...]]  # dtype, shape
    action: tuple[str, tuple[int, ...]]

    @classmethod
    def of(cls, spaces: Spaces, num_rows: int) -> RequestLayout:
        """Of groups of at most num_rows environments with these spaces."""
        observation, action = (
            (np.dtype(space.dtype).str, tuple(space.shape)) for space in (spaces.observation, spaces.action)
        )
        return cls(num_rows, observation, action)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a slot."""
        rows = self.num_rows
        return np.dtype(
            [
                ("request", np.int64),
                ("num_rows", np.int64),
                ("keys", np.uint64, (rows,)),
                ("steps", np.uint64, (rows,)),
                ("observations", self.observation[0], (rows, *self.observation[1])),
                ("actions", self.action[0], (rows, *self.action[1])),
                ("version", np.int64),
                ("reply", np.int64),
            ],
            align=True,
        )


@final
class RequestBoard:
    """The slots and bells of a run; it pickles into a child process. beats: turns of who answers; answers: batches."""

    def __init__(self, num_slots: int, layout: RequestLayout) -> None:
        self.num_slots, self.layout = num_slots, layout
        self._block = SharedBlock(64 + num_slots * layout.dtype.itemsize)
        self.bell, self.bells = Bell(), {slot: Bell() for slot in range(num_slots)}
        self._view()

    def _view(self) -> None:
        counters = self._block.array(np.int64, (2,))
        self.beats, self.answers = counters[:1], counters[1:]
        self.slots: Any = self._block.array(self.layout.dtype, (self.num_slots,), 64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("num_slots", "layout", "_block", "bell", "bells")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._view()

    def close(self) -> None:
        """Ends this process's use of it."""
        del self.beats, self.answers, self.slots
        self._block.close()
        for bell in (self.bell, *self.bells.values()):
            bell.close()

    def of_slots(self, slots: range) -> RequestBoard:
        """What whoever asks through these slots needs, to be pickled: it has their bells, and is not to be closed."""
        board = RequestBoard.__new__(RequestBoard)
        board.__setstate__({**self.__getstate__(), "bells": {slot: self.bells[slot] for slot in slots}})
        return board


@final
class AskedInference:
    """By the inference process of the run: Q1 and Q5."""

    def __init__(self, board: RequestBoard, slot: int, keys: NDArray[np.uint64]) -> None:
        self._board, self._number, self._slot = board, slot, board.slots[slot]
        self._keys, self._step = keys, 0
        self._asked_s = self._rang_s = 0.0
        self.version = 0

    def ask(self, observations: NDArray[Any]) -> None:
        """See Inference."""
        slot, rows = self._slot, len(self._keys)
        slot["request"] += 1
        slot["num_rows"] = rows
        slot["keys"][:rows] = self._keys
        slot["steps"][:rows] = self._step
        slot["observations"][:rows] = observations
        self._step += 1
        self._asked_s = time.monotonic()
        self._ring()

    def _ring(self) -> None:
        self._rang_s = time.monotonic()
        self._board.bell.ring(_MESSAGE.pack(self._number, int(self._slot["request"])))

    def actions(self, wait_s: float) -> NDArray[Any] | None:
        """See Inference. Raises DeadlineExceeded after ten minutes without an answer."""
        slot, until_s = self._slot, time.monotonic() + wait_s
        while True:
            now_s = time.monotonic()
            rang = self._board.bells[self._number].heard(min(_RING_PERIOD_S, max(0.0, until_s - now_s)))
            is_late = time.monotonic() - self._rang_s >= _RING_PERIOD_S
            if (rang or is_late) and slot["reply"] == slot["request"]:
                self.version = int(slot["version"])
                actions: NDArray[Any] = slot["actions"][: len(self._keys)].copy()
                return actions
            if is_late:
                self._ring()
            now_s = time.monotonic()
            if now_s - self._asked_s > _DEADLINE_S:
                raise DeadlineExceeded("actions of the inference process", "none", now_s - self._asked_s)
            if now_s >= until_s:
                return None


# ---- answering -------------------------------------------------------------------------------------------------------


@final
@dataclass
class OpenBatch:
    """Q2: requests as they come, and when a batch of them closes. Times are the caller's, in seconds."""

    max_batch: int
    max_wait_s: float
    _waiting: dict[int, tuple[int, int, float]] = field(default_factory=dict)  # by slot: number, rows, when it came

    @property
    def num_rows(self) -> int:
        """Observations that wait."""
        return sum(rows for _, rows, _ in self._waiting.values())

    def add(self, slot: int, number: int, rows: int, now_s: float) -> None:
        """A request came. One that waits already keeps its place; a newer one of its slot takes its own."""
        waiting = self._waiting.get(slot)
        if waiting is not None and waiting[0] != number:
            del self._waiting[slot]
        if waiting is None or waiting[0] != number:
            self._waiting[slot] = (number, rows, now_s)

    def closes_in(self, now_s: float) -> float | None:
        """Seconds until it closes if nothing comes, 0: now; None while nothing waits."""
        if not self._waiting:
            return None
        if self.num_rows >= self.max_batch:
            return 0.0
        oldest_s = min(came_s for _, _, came_s in self._waiting.values())
        return max(0.0, oldest_s + self.max_wait_s - now_s)

    def take(self) -> list[tuple[int, int]]:
        """(slot, number) of the batch that closes: whole requests in their order, at most max_batch rows of them."""
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
    """The inference process's side: one thread. `turn` again and again."""

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
        """batch: its max_batch is at least the rows of a slot. watch: counts its parts; None: nothing does."""
        watch = watch or watch_with(None)
        self._board, self._bell, self._scoreboard = board, watch(board.bell, {"heard": "wait"}), scoreboard
        self._policy, self._reader = watch(policy, {"explore": "inference"}), watch(reader, {"poll": "parameters"})
        self._batch, self._clock = batch, clock
        self._parameters: Mapping[str, NDArray[np.float32]] = {}
        layout = board.layout
        self._observations = np.zeros((batch.max_batch, *layout.observation[1]), layout.observation[0])
        self._keys, self._steps = (np.zeros(batch.max_batch, np.uint64) for _ in range(2))

    def turn(self, wait_s: float) -> int:
        """Hears requests for at most wait_s, or until a batch closes, which it answers; how many rows that were."""
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
        for slot, number in _MESSAGE.iter_unpack(messages):
            self._batch.add(slot, number, int(self._board.slots[slot]["num_rows"]), now_s)

    def _answer(self, requests: list[tuple[int, int]]) -> int:
        """Q3 and Q4."""
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
            return 0  # where there are no parameters yet the actors ask again
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
        """Q3: the rows of a request, copied behind those before it; 0 where it is none, or none any more."""
        rows = int(slot["num_rows"])
        if slot["reply"] == number or start + rows > len(self._keys):
            return 0
        self._observations[start : start + rows] = slot["observations"][:rows]
        self._keys[start : start + rows] = slot["keys"][:rows]
        self._steps[start : start + rows] = slot["steps"][:rows]
        return rows if slot["request"] == number else 0
