"""The process that infers for all actors of a run: what it does, how it is watched, and started again when it dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from relive.agents.agent import Policy, Spaces
from relive.train.acting.inference import Answering, OpenBatch, RequestBoard, RequestLayout, group_sizes
from relive.train.child import END_S, Child, Deaths, Parent, end_all
from relive.train.config import TrainConfig
from relive.train.errors import InferenceKeepsDying
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import INFERENCE, ProfileBoard, stopwatch_of, watch_with
from relive.train.parts import Part
from relive.train.topology import Closing

_WAIT_SLICE_S = 0.2
_SILENCE_S = 30.0  # without a turn, which takes a fraction of a second
_START_S = 120.0  # until its first turn, on a busy machine


@final
@dataclass(frozen=True)
class InferenceTask:
    """What a process needs to infer for all actors. It imports no torch."""

    policy: Policy
    board: ParameterBoard
    scoreboard: Scoreboard
    requests: RequestBoard
    closing: Closing
    profile: ProfileBoard | None = None


def run_inference(task: InferenceTask) -> None:
    """The main function of the process. It ends when the scoreboard says so, or its parent is gone."""
    parent = Parent()
    batch = OpenBatch(task.closing.max_batch, task.closing.max_wait_us * 1e-6)
    stopwatch = stopwatch_of(task.profile, INFERENCE)
    watch, reader = watch_with(stopwatch), task.board.reader()
    answering = Answering(task.requests, task.policy, reader, task.scoreboard, batch, watch=watch)
    while not (task.scoreboard.stopping or parent.is_gone):
        answering.turn(_WAIT_SLICE_S)
    if stopwatch is not None:
        stopwatch.look()


@final
class InferencePool(Part):
    """That process, seen from the run. One thread; `watch` often, `stop` once, also after a failure.

    pid: of the process, None where there is none. num_restarts: how often it was started again.
    """

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
        """config: its topology has a `closing`. say: told, in a line for people, that it is started again."""
        closing = config.topology.closing
        assert closing is not None
        self._profile = profile
        self._policy, self._board, self._scoreboard, self._say = policy, board, scoreboard, say
        each, self._num_groups = config.environment.num_envs_per_actor, config.topology.num_groups
        layout = RequestLayout.of(spaces, group_sizes(each, self._num_groups)[0])
        self._requests = RequestBoard(config.num_actors * self._num_groups, layout)
        # Nobody else could come: a batch of all that the actors have is not waited with.
        self._closing = Closing(min(closing.max_batch, config.num_actors * each), closing.max_wait_us)
        self._child, self._deaths = Child("relive-inference", run_inference, one_thread=True), Deaths()
        self._beats = self._answers = 0
        self._silent_until_s = 0.0

    @property
    def pid(self) -> int | None:
        """See the class."""
        return self._child.pid

    @property
    def num_restarts(self) -> int:
        """See the class."""
        return max(0, self._child.num_starts - 1)

    def requests_of(self, actor: int) -> RequestBoard:
        """Where an actor asks, a slot for each of its groups."""
        return self._requests.of_slots(range(actor * self._num_groups, (actor + 1) * self._num_groups))

    def start(self) -> None:
        """Starts the process."""
        self._child.start(
            InferenceTask(self._policy, self._board, self._scoreboard, self._requests, self._closing, self._profile)
        )
        self._beats, self._answers = int(self._requests.beats[0]), int(self._requests.answers[0])
        self._silent_until_s = time.monotonic() + _START_S

    def watch(self) -> None:
        """Starts it again where it died, or took no turn for half a minute (it is killed then).

        Raises InferenceKeepsDying where it died three times without an answer between.
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
