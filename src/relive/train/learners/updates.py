"""Makes the updates of a run, one a call, whatever learners the run has.

DrawnUpdates    draws a batch and learns from it: the agent alone, or with the other learners of a group
HostUpdates     the same, together with the other hosts of the run
ServedUpdates   applies the gradients of learners that draw batches of their own
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from relive import Batch
from relive.agents.agent import Agent, Items
from relive.errors import DeadlineExceeded
from relive.table.handle import TableHandle
from relive.train.learners.batch_ahead import SLICE_S, batches_of, or_none
from relive.train.learners.host_group import HostGroup
from relive.train.learners.parameter_server import ParameterServer
from relive.train.memory.stopwatch import Timed
from relive.train.parts import Part
from relive.train.signals import uninterrupted
from relive.train.watching.result import Ending

_SHORT_S = 0.001  # a shorter time is that of the call, and no wait
T = TypeVar("T")


class Updates(Part, ABC):
    """The part of a run that learns.

    Attributes:
        host: Number of this host among those of the run; host 0 evaluates for all of them.
        wait_s: Seconds that the learner has waited for items.
    """

    host = 0

    def __init__(self, timed: Timed) -> None:
        self._timed = timed
        self.wait_s = 0.0

    def begin(self, is_solved: bool) -> bool:
        """Meets the other hosts of the run before anything starts.

        Args:
            is_solved: On the first host: the run has nothing left to learn.

        Returns:
            Whether the first host said so, so that all hosts end.
        """
        return False

    def leave(self, ending: Ending) -> Ending:
        """Tells the other hosts how the run ended here. Returns how it ended for all of them."""
        return ending

    @property
    def num_dropped(self) -> int:
        """Gradients that were too stale to be applied."""
        return 0

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the last update, "loss" first. See Agent."""

    @abstractmethod
    def running(self) -> AbstractContextManager[Callable[[], bool]]:
        """Gives a function that makes one update. It returns False if there was nothing to learn from for a moment.

        The function raises ValueError if the new priorities are not finite, because the table refuses them.
        """

    def _counted(self, take: Callable[[], T]) -> Callable[[], T]:
        """The same function; its time counts as the learner's waiting."""

        def counted() -> T:
            began_s = time.monotonic()
            taken = take()
            waited_s = time.monotonic() - began_s
            if waited_s > _SHORT_S:
                self.wait_s += waited_s
            return taken

        return self._timed("wait", counted)


class DrawnUpdates(Updates):
    """Draws batches from the table of this host and learns from them."""

    # A signal does not end an update between the steps of two optimizers: a checkpoint is of whole updates.
    _whole: Callable[[], AbstractContextManager[None]] = staticmethod(uninterrupted)

    def __init__(
        self,
        agent: Agent,
        table: TableHandle,
        num_items: int,
        timed: Timed,
        *,
        update: Callable[[Items], NDArray[np.float64] | None] | None = None,
        helper: Part | None = None,
        act: Callable[[], None] | None = None,
        slice_s: float = SLICE_S,
    ) -> None:
        """Makes the part.

        Args:
            agent: The agent of this process.
            table: The table; its calls are timed where the run is profiled.
            num_items: Items of each draw.
            timed: Times the parts of this process.
            update: Learns from a batch, with the other learners; None: `agent.update`.
            helper: The part that `update` belongs to. It starts, is watched and stops with this one.
            act: Lets the actors of this process take a step if there is nothing to learn from; None: the actors are
                processes.
            slice_s: Seconds that a draw may take before it is given up and made again.
        """
        super().__init__(timed)
        self._agent, self._table, self._num_items = agent, table, num_items
        self._slice_s = slice_s
        self._update = agent.update if update is None else timed("update", update)
        self._helper, self._act = helper or Part(), act

    @property
    def num_restarts(self) -> int:
        """See Part."""
        return self._helper.num_restarts

    def start(self) -> None:
        """See Part."""
        self._helper.start()

    def watch(self) -> None:
        """See Part."""
        self._helper.watch()

    def stop(self) -> None:
        """See Part."""
        self._helper.stop()

    def metrics(self) -> dict[str, float]:
        """See Updates."""
        return self._agent.metrics()

    @contextmanager
    def running(self) -> Iterator[Callable[[], bool]]:
        """See Updates."""
        if self._act is not None:
            yield self._learning_from(self._timed("wait", self._drawn_or_acted))
        else:
            with batches_of(self._table, self._agent, self._num_items, self._slice_s) as take:
                yield self._learning_from(self._counted(lambda: or_none(take)))

    def _learning_from(self, next_batch: Callable[[], Batch | None]) -> Callable[[], bool]:
        def update_once() -> bool:
            batch = next_batch()
            if batch is None:
                return False
            with self._whole():
                priorities = self._update(batch)
            if priorities is not None:
                self._table.update_priorities(batch.item_keys, priorities)
            return True

        return update_once

    def _drawn_or_acted(self) -> Batch | None:
        """The next batch where the limiter lets it be drawn; else None, after a step of the actors."""
        with suppress(DeadlineExceeded):
            return self._table.sample(self._num_items, columns=tuple(self._agent.columns), timeout_s=0.0)
        assert self._act is not None
        self._act()
        return None


@final
class HostUpdates(DrawnUpdates):
    """Learns together with the other hosts of the run. See learners/host_group.py for their protocol."""

    _whole = staticmethod(nullcontext)  # an update waits for the other hosts, and a second signal ends the wait

    def __init__(
        self,
        agent: Agent,
        table: TableHandle,
        num_items: int,
        timed: Timed,
        hosts: HostGroup,
        act: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(agent, table, num_items, timed, update=hosts.update, helper=hosts, act=act)
        self._hosts, self.host = hosts, hosts.number

    def begin(self, is_solved: bool) -> bool:
        """See Updates. Blocks until all hosts have come so far. Raises HostGone."""
        return self._hosts.begin(is_solved)

    def leave(self, ending: Ending) -> Ending:
        """See Updates. Raises HostGone."""
        return self._hosts.leave(ending)


@final
class ServedUpdates(Updates):
    """Applies the gradients of learners that draw batches of their own."""

    def __init__(self, server: ParameterServer, timed: Timed) -> None:
        super().__init__(timed)
        self._server = server

    @property
    def num_restarts(self) -> int:
        """See Part."""
        return self._server.num_restarts

    @property
    def num_dropped(self) -> int:
        """See Updates."""
        return self._server.num_dropped

    def metrics(self) -> dict[str, float]:
        """See Updates."""
        return self._server.metrics()

    def start(self) -> None:
        """See Part."""
        self._server.start()

    def watch(self) -> None:
        """See Part."""
        self._server.watch()

    def stop(self) -> None:
        """See Part."""
        self._server.stop()

    @contextmanager
    def running(self) -> Iterator[Callable[[], bool]]:
        """See Updates."""
        yield self._counted(lambda: self._server.serve(SLICE_S))
