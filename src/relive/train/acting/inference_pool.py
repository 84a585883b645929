"""Runs the process that infers for all actors of a run; watches it, and starts it again if it dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from relive.agents.agent import Policy, Spaces
from relive.train.acting.answering import Answering, OpenBatch
from relive.train.acting.inference import RequestBoard, RequestLayout, group_sizes
from relive.train.child import END_S, Child, Deaths, Parent, end_all
from relive.train.config import TrainConfig
from relive.train.errors import InferenceKeepsDying
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import INFERENCE, ProfileBoard, stopwatch_of, watch_with
from relive.train.parts import Part
from relive.train.topology import Closing

_WAIT_SLICE_S = 0.2
_SILENCE_S = 30.0  # without a heartbeat, which comes several times a second
_START_S = 120.0  # until the first heartbeat, on a busy machine


@final
@dataclass(frozen=True)
class InferenceTask:
    """The task of the inference process, which imports no torch.

    Attributes:
        policy: The policy.
        board: Source of the parameters.
        scoreboard: Counters of the run.
        requests: The requests of the actors.
        closing: When a batch of observations closes.
        profile: Counters of its time; None: the run is not profiled.
    """

    policy: Policy
    board: ParameterBoard
    scoreboard: Scoreboard
    requests: RequestBoard
    closing: Closing
    profile: ProfileBoard | None = None


def run_inference(task: InferenceTask) -> None:
    """Answers requests until the scoreboard asks it to end, or the parent is gone: the main function of the process."""
    parent = Parent()
    batch = OpenBatch(task.closing.max_batch, task.closing.max_wait_us * 1e-6)
    stopwatch = stopwatch_of(task.profile, INFERENCE)
    watch, reader = watch_with(stopwatch), task.board.reader()
    answering = Answering(task.requests, task.policy, reader, task.scoreboard, batch, watch=watch)
    while not (task.scoreboard.stopping or parent.is_gone):
        answering.serve(_WAIT_SLICE_S)
    if stopwatch is not None:
        stopwatch.look()


@final
class InferencePool(Part):
    """The inference process, seen from the process that calls `train`. See Part."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        spaces: Spaces,
        board: ParameterBoard,
        scoreboard: Scoreboard,
        say: Callable[[str], None],
        profile: ProfileBoard | None = None,
    ) -> None:
        """Makes the memory for requests; `start` starts the process.

        Args:
            config: Options of the run, whose topology has a `closing`.
            policy: The policy.
            spaces: Spaces of the environment.
            board: Source of the parameters.
            scoreboard: Counters of the run.
            say: Gets a line for people when the process is started again.
            profile: Counters of the time of each process; None: the run is not profiled.
        """
        closing = config.topology.closing
        assert closing is not None
        self._profile = profile
        self._policy, self._board, self._scoreboard, self._say = policy, board, scoreboard, say
        each, self._num_groups = config.environment.num_envs_per_actor, config.topology.num_groups
        layout = RequestLayout.of(spaces, group_sizes(each, self._num_groups)[0])
        self._requests = RequestBoard(config.num_actors * self._num_groups, layout)
        # A batch with all observations that there can be closes at once: no other observation could come.
        self._closing = Closing(min(closing.max_batch, config.num_actors * each), closing.max_wait_us)
        self._child, self._deaths = Child("relive-inference", run_inference, one_thread=True), Deaths()
        self._beats = self._answers = 0
        self._silent_until_s = 0.0

    @property
    def pid(self) -> int | None:
        """Process id; None if the process is not started."""
        return self._child.pid

    @property
    def num_restarts(self) -> int:
        """See Part."""
        return max(0, self._child.num_starts - 1)

    def requests_of(self, actor: int) -> RequestBoard:
        """Returns the board on which an actor asks, with a slot for each of its groups."""
        return self._requests.of_slots(range(actor * self._num_groups, (actor + 1) * self._num_groups))

    def start(self) -> None:
        """Starts the process."""
        self._child.start(
            InferenceTask(self._policy, self._board, self._scoreboard, self._requests, self._closing, self._profile)
        )
        self._beats, self._answers = int(self._requests.beats[0]), int(self._requests.answers[0])
        self._silent_until_s = time.monotonic() + _START_S

    def watch(self) -> None:
        """Starts the process again if it died, or kills and restarts it after half a minute without a heartbeat.

        Raises:
            InferenceKeepsDying: The process died three times in a row without an answer.
        """
        now_s, beats = time.monotonic(), int(self._requests.beats[0])
        if self._child.pid is None:
            return
        if beats != self._beats:
            self._beats, self._silent_until_s = beats, now_s + _SILENCE_S
        if not self._child.has_died and now_s < self._silent_until_s:
            return
        exit_code = self._child.reap()
        if int(self._requests.answers[0]) != self._answers:
            self._deaths.forget()
        self._deaths.count(lambda number: InferenceKeepsDying(number, exit_code))
        self._say(f"the inference process died (exit code {exit_code}) and is started again; its actors wait for it")
        self.start()

    def stop(self, timeout_s: float = END_S) -> None:
        """Ends the process, which the scoreboard has asked to end, and kills it after timeout_s. Frees the memory."""
        end_all([self._child], timeout_s)
        self._requests.close()
