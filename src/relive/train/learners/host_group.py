"""Shares every update among learners on several hosts. torch.distributed carries their gradients and nothing else.

Each host has a table, actors and a learner of its own. Its learner draws a slice of every batch from its own table:
agent.batch_size / (number of hosts) items. torchrun starts one process a host and gives it its number.

Protocol, the same on every host:

  H0  All hosts take over the state of the first host's agent before the first update, also in a resumed run. If the
      first host says that the run is solved, all end.
  H1  Before an update each host says that it has a batch, or that its run ends, and why. No host goes on before all
      have spoken. If one ends, all end: each has said so once, and the batch at hand is not used.
  H2  Else all update. Each gradient is the mean over the hosts, with the same bits on all of them: each number is added
      up in one place and copied from there.
  H3  Every hash_period updates, the word of H1 comes with the crc32 of the state: ReplicasDiffer if one differs.
  H4  If a host is silent for deadline_s, or its connection ends, the run ends on all hosts with HostGone, after a
      checkpoint. Start all hosts again: they go on from the first host's checkpoint. An agent with several gradients
      an update (critics, then the actor) may have made the first of these steps, and the checkpoint has it. Half an
      update is a smaller loss than all updates since the last checkpoint, and H0 gives it to all hosts.
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
_ENDINGS = (None, *Ending)  # meaning of a word of H1 by its number; None: the host has a batch
_JOIN_S = 300.0  # the longest wait for all hosts; torch ignores Ctrl-C meanwhile
_SHORTEST_S, _LONGEST_S = 0.00002, 0.0002  # pauses between two looks at a transfer; gloo's threads need the core


@final
class EndedElsewhere(Exception):
    """The run ended on another host, and with it here."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.value)
        self.ending = ending


@final
@dataclass(frozen=True)
class HostOptions:
    """Options of a group of hosts.

    Attributes:
        count: Hosts.
        device: torch's device of their agents.
        deadline_s: Longest silence of a host.
        hash_period: Updates after which the states are compared.
    """

    count: int
    device: str
    deadline_s: float = 900.0
    hash_period: int = 100


def host_number(count: int) -> int:
    """Returns the number of this host among `count` hosts, as torchrun gave it; 0: the first, or the only one.

    Raises:
        InvalidConfig: torchrun did not start this process, or started another number of hosts.
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
    """All hosts of a run, seen from one. It is the `Replicas` of its agent, and a Part of the run.

    It makes a group of torch.distributed: gloo, or NCCL on CUDA devices. A process that is in no process group joins
    the one that torchrun names, and stays in it for later runs: a process that leaves it cannot come back.

    Attributes:
        number: Number of this host.
        count: Hosts.
    """

    def __init__(self, agent: Agent, options: HostOptions) -> None:
        """Joins the other hosts. Blocks until all have come, for at most deadline_s. Raises HostGone, InvalidConfig."""
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

    # ---- together --------------------------------------------------------------------------------------------------

    def begin(self, solved: bool) -> bool:
        """Takes over the state of the first host: rule H0. Blocks until all hosts are at this call.

        Args:
            solved: On the first host: the run has nothing left to learn.

        Returns:
            Whether the run is solved, so that all hosts end.

        Raises:
            HostGone: Another host is gone.
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
        """Makes one gradient step of all hosts. Blocks until all have a batch.

        Returns:
            New priorities of the items of this host, as Agent.update returns them.

        Raises:
            EndedElsewhere: The run ended on another host.
            HostGone: Another host is gone.
            ReplicasDiffer: The state of a host is not that of the others.
        """
        self._say(None)
        return self._agent.update(batch)

    def leave(self, ending: Ending) -> Ending:
        """Ends the run on all hosts. Returns the reason, which is the same on all of them. Raises HostGone."""
        if not self._is_over:
            try:
                self._say(ending)
            except EndedElsewhere as told:
                return told.ending
        return ending

    def combine(self, gradients: Any) -> None:
        """See Replicas: rule H2."""
        self._done(dist.all_reduce(gradients, group=self._group, async_op=True))
        gradients /= self.count

    def stop(self) -> None:
        """Leaves the group, without a word to the other hosts."""
        with contextlib.suppress(RuntimeError):  # a host is gone
            dist.destroy_process_group(self._group)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _say(self, ending: Ending | None) -> None:
        """Says the word of rules H1 and H3. Two hosts have one crc32 if max(crc32) = -max(-crc32)."""
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
        """Waits for a transfer, and lets Ctrl-C through. Raises HostGone."""
        began_s, pause_s = time.monotonic(), _SHORTEST_S
        try:
            while not work.is_completed():
                waited_s = time.monotonic() - began_s
                if waited_s >= self._options.deadline_s:
                    raise HostGone(self.number, waited_s, "another host says nothing")
                time.sleep(pause_s)
                pause_s = min(2.0 * pause_s, _LONGEST_S)
            work.wait()
        except RuntimeError as problem:  # of torch: a connection has ended
            self._is_over = True
            raise HostGone(self.number, time.monotonic() - began_s, _line(problem)) from None


def _leave_process_group() -> None:
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the process ends anyway
        dist.destroy_process_group()


def _line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:200]
