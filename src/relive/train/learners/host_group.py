"""Learners on several hosts that share every update. torch.distributed carries gradients, and nothing else of a run.

Each host has a table, actors and a learner of its own; its learner draws a slice of every batch, agent.batch_size over
the number of hosts, from its own table. torchrun starts a process a host, and says which it is.

Protocol, of every host alike:

  H0  The first host's agent is everybody's: its state travels before the first update, also of a run that goes on; or
      its word that the run is solved, and all end.
  H1  Before an update each says that it has a batch, or that its run ends, and why. Nobody goes on before all have said
      so. Where one ends all end: each has said so once, and the batch in hand is not used.
  H2  Else all update. Each gradient is the mean over the hosts, the same bits on each of them: a number is added up in
      one place and copied from there.
  H3  With the word of H1, every hash_period updates, goes the crc32 of the state: ReplicasDiffer where one is another.
  H4  A host that says nothing for deadline_s, or whose connection ends, is the end of the run on all: HostGone, after a
      checkpoint. All are started again, and go on from the first one's. An agent with several gradients an update
      (critics, then the actor) may have made the first of its steps when the host was lost; that checkpoint holds
      it: half an update is less than all since the checkpoint before, and H0 makes it everybody's.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import io
import os
import time
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from relive.agents.agent import Agent, Items
from relive.errors import InvalidConfig
from relive.train.errors import HostGone, ReplicasDiffer
from relive.train.learners.follower import state_hash
from relive.train.parts import Part
from relive.train.watching.result import Ending

_HOW = "torchrun --nnodes N --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT --no-python relive train"
_ENDINGS = (None, *Ending)  # what a word of H1 says by its number
_JOIN_S = 300.0  # for all hosts to come; torch waits for them without hearing Ctrl-C
_SHORTEST_S, _LONGEST_S = 0.00002, 0.0002  # between two looks at what is under way; gloo's threads want the core


@final
class EndedElsewhere(Exception):
    """Another host's run ended, and with it this one."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.value)
        self.ending = ending


@final
@dataclass(frozen=True)
class HostOptions:
    """How many hosts, torch's device of their agents, how long one is waited for, and how often states are compared."""

    count: int
    device: str
    deadline_s: float = 900.0
    hash_period: int = 100


def host_number(count: int) -> int:
    """Which of so many hosts this process runs on: 0, the first, or another. As torchrun says it.

    Raises InvalidConfig where nobody says so, or says another count.
    """
    if count == 1:
        return 0
    if dist.is_initialized():
        number, told = dist.get_rank(), dist.get_world_size()
    else:
        try:
            number, told = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError):
            raise InvalidConfig(f"topology hosts({count})", f"a run on each host by: {_HOW}", "no RANK") from None
    if told != count:
        raise InvalidConfig("hosts of the topology", f"the {told} that torchrun starts (WORLD_SIZE)", count)
    return number


@final
class HostGroup(Part):
    """All hosts, seen from one: an agent's `Replicas`. One thread; `stop` once, also after a failure.

    It is a group of torch.distributed of its own, of gloo, or of NCCL on CUDA devices. Where the process was in none it
    joins the one that torchrun names, and stays there to its end, for runs to come: who leaves it cannot come back.
    """

    def __init__(self, agent: Agent, options: HostOptions) -> None:
        """Blocks until all hosts are there, deadline_s at most. Raises HostGone, InvalidConfig."""
        self.number, self.count = host_number(options.count), options.count
        self._agent, self._options = agent, options
        self._device = torch.device(options.device if options.device.startswith("cuda") else "cpu")
        self._is_over = False
        self._num_hashed = -1
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        timeout = datetime.timedelta(seconds=options.deadline_s)
        began_s = time.monotonic()
        try:
            if not dist.is_initialized():
                dist.init_process_group(backend, timeout=datetime.timedelta(seconds=min(_JOIN_S, options.deadline_s)))
                atexit.register(_leave_process_group)
            self._group: Any = dist.new_group(backend=backend, timeout=timeout)
        except (RuntimeError, ValueError) as problem:
            raise HostGone(self.number, time.monotonic() - began_s, _line(problem)) from None
        agent.join(self)

    # ---- what all do -----------------------------------------------------------------------------------------------

    def begin(self, solved: bool) -> bool:
        """H0. Blocks until all hosts have come so far; whether all end at once. Raises HostGone.

        solved: of the first host, its run has nothing left to learn.
        """
        whole = io.BytesIO()
        if self.number == 0 and not solved:
            torch.save(self._agent.state_dict(), whole)
        size = torch.tensor([whole.getbuffer().nbytes], dtype=torch.int64, device=self._device)
        self._done(dist.broadcast(size, 0, group=self._group, async_op=True))
        if not int(size):
            return True
        state = torch.frombuffer(bytearray(whole.getvalue() or bytes(int(size))), dtype=torch.uint8).to(self._device)
        self._done(dist.broadcast(state, 0, group=self._group, async_op=True))
        if self.number:
            told = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
            self._agent.load_state_dict(told)
        return False

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """One gradient step of all hosts; new priorities of this one's items, as Agent.update gives them.

        Blocks until all have a batch. Raises EndedElsewhere, HostGone, ReplicasDiffer.
        """
        self._say(None)
        return self._agent.update(batch)

    def leave(self, ending: Ending) -> Ending:
        """This host's run ends, and so do all; why they do, which is the same on all of them. Raises HostGone."""
        if not self._is_over:
            try:
                self._say(ending)
            except EndedElsewhere as told:
                return told.ending
        return ending

    def combine(self, gradients: Any) -> None:
        """See Replicas: H2."""
        self._done(dist.all_reduce(gradients, group=self._group, async_op=True))
        gradients /= self.count

    def stop(self) -> None:
        """Ends the group, without a word to the others."""
        with contextlib.suppress(RuntimeError):  # a host that is gone
            dist.destroy_process_group(self._group)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _say(self, ending: Ending | None) -> None:
        """H1 and H3. The greatest of all words, and of their opposites: they are one word where both agree."""
        updates = self._agent.num_updates
        compares = updates % self._options.hash_period == 0 and updates != self._num_hashed
        crc = state_hash(self._agent) if compares else 0
        self._num_hashed = updates
        mine = [_ENDINGS.index(ending), crc, -crc]
        words = torch.tensor(mine, dtype=torch.int64, device=self._device)
        self._done(dist.all_reduce(words, dist.ReduceOp.MAX, group=self._group, async_op=True))
        told, most, least = (int(word) for word in words)
        if most != -least:
            self._is_over = True
            raise ReplicasDiffer(self.number, updates, most if crc != most else -least, crc)
        found = _ENDINGS[told]
        if found is not None:
            self._is_over = True
            raise EndedElsewhere(found)

    def _done(self, work: Any) -> None:
        """Waits for it; hears Ctrl-C. Raises HostGone."""
        began_s, pause_s = time.monotonic(), _SHORTEST_S
        try:
            while not work.is_completed():
                waited_s = time.monotonic() - began_s
                if waited_s >= self._options.deadline_s:
                    raise HostGone(self.number, waited_s, "another host says nothing")
                time.sleep(pause_s)
                pause_s = min(2.0 * pause_s, _LONGEST_S)
            work.wait()
        except RuntimeError as problem:  # torch's: a connection that ended
            self._is_over = True
            raise HostGone(self.number, time.monotonic() - began_s, _line(problem)) from None


def _leave_process_group() -> None:
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # it is over either way
        dist.destroy_process_group()


def _line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:200]
