"""Shares every update among learners on several hosts. torch.distributed carries their gradients and nothing else.

Each host has a table, actors and a learner of its own. Its learner draws a slice of every batch from its own table:
agent.batch_size / (number of hosts) items.

Protocol, the same on every host, after all have met (learners/meeting.py):

  H0  All hosts take over the state of the first host's agent before the first update, also in a resumed run, and the
      name of the session. If the first host says that the run is solved, all end.
  H1  Before an update each host says that it has a batch, or that its run ends, and why. No host goes on before all
      have spoken. If one ends, all end: each has said so once, and the batch at hand is not used. Else the saves of
      all hosts go on with the words about them (watching/joint_saves.py).
  H2  Else all update. Each gradient is the mean over the hosts, with the same bits on all of them: each number is added
      up in one place and copied from there.
  H3  Every hash_period updates, the word of H1 comes with the crc32 of the state: ReplicasDiffer if one differs.
  H4  If a host is silent for deadline_s, or its connection ends, the run ends on all hosts with HostGone, after a
      checkpoint. Start all hosts again: they go on from the newest save that all have. An agent with several gradients
      an update (critics, then the actor) may have made the first of these steps, and the checkpoint has it. Half an
      update is a smaller loss than all updates since the last checkpoint, and H0 gives it to all hosts.
"""

from __future__ import annotations

import io
import secrets
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from relive.agents.agent import Agent, Items
from relive.train.errors import ReplicasDiffer
from relive.train.learners.follower import state_hash
from relive.train.learners.meeting import HostMeeting
from relive.train.parts import Part
from relive.train.watching.result import Ending

_ENDINGS = (None, *Ending)  # meaning of a word of H1 by its number; None: the host has a batch


@final
class EndedElsewhere(Exception):
    """The run ended on another host, and with it here."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.value)
        self.ending = ending


@final
class HostGroup(Part):
    """All hosts of a run, seen from one. It is the `Replicas` of its agent, and a Part of the run.

    Attributes:
        number: Number of this host.
        count: Hosts.
    """

    def __init__(self, agent: Agent, met: HostMeeting, hash_period: int = 100) -> None:
        """Makes the part.

        Args:
            agent: The agent of this process.
            met: The other hosts. The caller leaves them.
            hash_period: Updates after which the states are compared.
        """
        self.number, self.count = met.number, met.count
        self._agent, self._met, self._hash_period = agent, met, hash_period
        self._is_over = False
        self._num_hashed = -1
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
        mine = [whole.getbuffer().nbytes, secrets.randbits(62)]
        words = torch.tensor(mine, dtype=torch.int64, device=self._met.device)
        self._met.done(dist.broadcast(words, 0, group=self._met.group, async_op=True))
        size, session = (int(word) for word in words)
        self._met.saves.session = f"{session:016x}"
        if not size:
            return True
        state = torch.frombuffer(bytearray(whole.getvalue() or bytes(size)), dtype=torch.uint8).to(self._met.device)
        self._met.done(dist.broadcast(state, 0, group=self._met.group, async_op=True))
        if self.number:
            whole = io.BytesIO(state.cpu().numpy().tobytes())
            told = torch.load(whole, map_location="cpu", weights_only=True)
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
        self._met.done(dist.all_reduce(gradients, group=self._met.group, async_op=True))
        gradients /= self.count

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _say(self, ending: Ending | None) -> None:
        """Says the word of rules H1 and H3. Two hosts have one crc32 if max(crc32) = -max(-crc32)."""
        updates = self._agent.num_updates
        compares = updates % self._hash_period == 0 and updates != self._num_hashed
        crc = state_hash(self._agent) if compares else 0
        self._num_hashed = updates
        mine = [_ENDINGS.index(ending), crc, -crc, *self._met.saves.word()]
        words = torch.tensor(mine, dtype=torch.int64, device=self._met.device)
        self._met.done(dist.all_reduce(words, dist.ReduceOp.MAX, group=self._met.group, async_op=True))
        told, most, least, *of_saves = (int(word) for word in words)
        if most != -least:
            self._is_over = True
            raise ReplicasDiffer(self.number, updates, most if crc != most else -least, crc)
        found = _ENDINGS[told]
        if found is not None:
            self._is_over = True
            raise EndedElsewhere(found)
        self._met.saves.hear(*of_saves)
