"""Infers actions: in the actor itself, or in one process that infers for all actors. Actors import this.

With an inference process, as in SEED (Espeholt et al. 2020), actors have environments only and ask it for actions. It
is a process and not a thread of the learner: a thread would stop the learner's Python at every step, and could not die
alone.

Memory, shared by all processes of the run:

  slot   one for each group of environments
         written by the actor: request (int64), observations, keys and steps of the noise
         written by the inference process: reply (int64), version, actions
  bell   a pipe: one of the inference process and one for each slot. The receiver of a message sees everything that the
         sender wrote into memory before it.

Protocol of request number n of a slot:

  Q1  The actor writes request = n, one more than before, then the rest of its part, then rings (slot, n).
  Q2  The inference process puts (slot, n) into the open batch. The batch closes when it has max_batch observations, or
      all observations that there can be in the run, or when its oldest request is max_wait_us old, whichever comes
      first. Requests are taken whole, in the order of their arrival.
  Q3  The inference process copies the request. The copy counts if `request` is still n after the copy and `reply` is
      not n. Else another actor has this slot by now, which counts up before it writes, or the request is answered.
  Q4  The inference process takes the newest parameters, of version v, and infers all rows of the batch. For each
      request it writes the actions and v, then reply = n, then rings the bell of the slot.
  Q5  When its bell rings, or after 0.2 s, the actor checks whether `reply` is n. After 0.2 s without a reply it rings
      (slot, n) again: the inference process may have died, and its successor has heard no request.

The successor of a dead actor counts on from the request number of its slot, so that it never takes a late reply for its
own. The noise follows from key and step (`relive.train.acting.noise`): a request has the same actions for the same
parameters, whichever process infers it, and however often. Rows carry the version of the parameters that acted.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Policy, Spaces
from relive.errors import DeadlineExceeded
from relive.train.acting.noise import NoiseStream
from relive.train.memory.parameters import NewerParameters
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.shared_block import SharedBlock

_RING_PERIOD_S = 0.2
_DEADLINE_S = 600.0  # longer than it takes to notice the death of an inference process and to start it again
MESSAGE = struct.Struct("<qq")
_NO_PARAMETERS_S = 0.01


def group_sizes(num_envs: int, num_groups: int) -> list[int]:
    """Returns the number of environments of each group, the larger groups first."""
    return [num_envs // num_groups + (group < num_envs % num_groups) for group in range(num_groups)]


class Inference(Protocol):
    """Gives a group of environments its actions.

    Attributes:
        version: Version of the parameters of the last actions.
    """

    version: int

    def ask(self, observations: NDArray[Any]) -> None:
        """Asks for actions for these observations. It does not wait."""
        ...

    def actions(self, wait_s: float) -> NDArray[Any] | None:
        """Returns the actions that were asked for, once; None if there are none within wait_s: then call it again."""
        ...


@final
class OwnInference:
    """Infers actions in the actor itself, with the newest parameters at the time of the call."""

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
        """See Inference. None until the first parameters are published."""
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
    """A pipe whose ends are open in all processes of a run: a death closes none. It pickles into a child process."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._open()

    def _open(self) -> None:
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)

    def ring(self, message: bytes) -> None:
        """Sends a message of fewer than 512 bytes, whole. If thousands are unread it is lost; actors ring again."""
        try:
            os.write(self._write, message)
        except BlockingIOError:
            pass

    def heard(self, wait_s: float) -> bytes:
        """Returns all messages that came, one after another; empty after wait_s without one. Exact to microseconds."""
        if wait_s > 0.0 and not select.select([self._read], [], [], wait_s)[0]:
            return b""
        try:
            return os.read(self._read, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Ends the use of the bell by this process."""
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
    """The layout of a slot: for each of num_rows environments an observation, key and step of its noise, an action."""

    num_rows: int
    observation: tuple[str, tuple[int, ...]]  # dtype, shape
    action: tuple[str, tuple[int, ...]]

    @classmethod
    def of(cls, spaces: Spaces, num_rows: int) -> RequestLayout:
        """Returns the layout for groups of at most num_rows environments with these spaces."""
        observation, action = (
            (np.dtype(space.dtype).str, tuple(space.shape)) for space in (spaces.observation, spaces.action)
        )
        return cls(num_rows, observation, action)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a slot."""
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
    """The slots and bells of a run. It pickles into a child process.

    Attributes:
        bell: Bell of the inference process.
        bells: Bell of each slot.
        slots: The slots.
        beats: Heartbeat of the inference process, which counts up in each call of `Answering.serve` [1].
        answers: Batches that were answered [1].
    """

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
        """Ends the use of the board by this process."""
        del self.beats, self.answers, self.slots
        self._block.close()
        for bell in (self.bell, *self.bells.values()):
            bell.close()

    def of_slots(self, slots: range) -> RequestBoard:
        """Returns a board with the bells of these slots alone, to be pickled into their actor; do not close it."""
        board = RequestBoard.__new__(RequestBoard)
        board.__setstate__({**self.__getstate__(), "bells": {slot: self.bells[slot] for slot in slots}})
        return board


@final
class AskedInference:
    """Asks the inference process for actions: rules Q1 and Q5."""

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
        self._board.bell.ring(MESSAGE.pack(self._number, int(self._slot["request"])))

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
