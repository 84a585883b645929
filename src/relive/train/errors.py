"""The errors that end a run early: each names the fault, its place, and the way on."""

from __future__ import annotations

from typing import final

from relive.errors import ReliveError


@final
class NonFiniteLoss(ReliveError):
    """Learning has led to numbers that are not finite.

    Attributes:
        what: The number that is not finite.
        value: Its value.
        num_updates: Updates so far.
        checkpoint: Path of the last good checkpoint; None if there is none.
    """

    def __init__(self, what: str, value: float, num_updates: int, checkpoint: str | None, resume: str) -> None:
        """resume: the command that goes on from the checkpoint."""
        self.what = what
        self.value = value
        self.num_updates = num_updates
        self.checkpoint = checkpoint
        kept = f"{checkpoint} is the last good checkpoint: {resume}" if checkpoint else "there was no checkpoint yet"
        super().__init__(
            f"{what} after update {num_updates:,}: expected a finite number, got {value}; {kept}; smaller learning"
            " rates, a clip of the gradient's norm or smaller rewards may help"
        )


@final
class EnvironmentRaised(ReliveError):
    """An environment raised an error, or returned values that the table refuses.

    Attributes:
        actor: Number of the actor; None: the environment belongs to no actor (it was described, evaluated or shown).
        step: Step of this actor or evaluation, counted from 1 over all of its environments; 0: the first reset; -1: no
            step, the environment was made or closed.
        traceback: The traceback of the error, as text.
    """

    def __init__(self, actor: int | None, step: int, traceback: str, doing: str = "") -> None:
        """doing: the call, if it is not a step or reset of an actor."""
        self.actor = actor
        self.step = step
        self.traceback = traceback
        self.doing = doing
        owner = "" if actor is None else f" of actor {actor}"
        where = f"in its step {step:,}" if step > 0 else "in its first reset" if step == 0 else "when it was made"
        super().__init__(f"the environment{owner} raised {doing or where}:\n{traceback.rstrip()}")


@final
class EnvironmentHangs(ReliveError):
    """A call of an environment did not return in time. A checkpoint is written if the run had begun to learn.

    Attributes:
        what: The call.
        waited_s: Seconds since the call began.
    """

    def __init__(self, what: str, waited_s: float) -> None:
        self.what = what
        self.waited_s = waited_s
        super().__init__(
            f"{what} did not return within {waited_s:.1f} s, and the time of the run or of the evaluation is over;"
            " make the environment in one process to see where it waits"
        )


@final
class TooFewUpdates(ReliveError):
    """A run reached its limit without the updates that its replay ratio asks for. A checkpoint was written.

    Attributes:
        num_updates: Updates of the run.
        num_missing: Updates that the steps of this session ask for, and that were not made; 0 if only the first update
            is missing.
        num_items: Items in the table at the end.
        min_size: Items that an update waits for.
    """

    def __init__(self, num_updates: int, num_missing: int, num_items: int, min_size: int) -> None:
        self.num_updates = num_updates
        self.num_missing = num_missing
        self.num_items = num_items
        self.min_size = min_size
        expected = f"{num_updates + num_missing:,}" if num_missing else "at least one"
        super().__init__(
            f"updates at the limit of the run: expected {expected}, got {num_updates:,}; an update waits for"
            f" replay.min_size = {min_size:,} items, and the table has {num_items:,}: give a smaller min_size, a larger"
            " replay.capacity, or a longer limit"
        )


@final
class ActorsKeepDying(ReliveError):
    """An actor died three times in a row before its first step: most likely its environment is at fault.

    Attributes:
        actor: Number of the actor.
        num_deaths: Its deaths.
        exit_code: Exit code of its process; None: it is not known, as on a cluster.
        reason: The cause as the cluster describes it; "": the actor was a process of this machine.
    """

    def __init__(self, actor: int, num_deaths: int, exit_code: int | None, reason: str = "") -> None:
        self.actor = actor
        self.num_deaths = num_deaths
        self.exit_code = exit_code
        self.reason = reason
        last = f"last because: {reason}" if reason else f"last with exit code {exit_code}: its own message stands above"
        super().__init__(
            f"actor {actor} died {num_deaths} times before its first step, {last};"
            " make the environment in one process to see the cause"
        )


@final
class InferenceKeepsDying(ReliveError):
    """The process that infers for all actors died three times in a row without an answer. A checkpoint was written."""

    def __init__(self, num_deaths: int, exit_code: int | None) -> None:
        self.num_deaths = num_deaths
        self.exit_code = exit_code
        super().__init__(
            f"the inference process died {num_deaths} times in a row without an answer, last with exit code"
            f" {exit_code}: its own message, if it had one, stands above; topology = actors goes on from the checkpoint"
            " with actors that infer for themselves"
        )


@final
class LearnersKeepDying(ReliveError):
    """Learner processes died three times in a row without an update. A checkpoint was written."""

    def __init__(self, learner: int, num_deaths: int, exit_code: int | None) -> None:
        self.learner = learner
        self.num_deaths = num_deaths
        self.exit_code = exit_code
        super().__init__(
            f"learners died {num_deaths} times in a row, last learner {learner} with exit code {exit_code}: its"
            " own message, if it had one, stands above; topology = actors goes on from the checkpoint with one learner"
        )


@final
class HostGone(ReliveError):
    """Another host of the run did not come, was silent for too long, or its connection ended.

    A checkpoint was written if the run had begun to learn.

    Attributes:
        host: Number of this host, which noticed.
        waited_s: Seconds that this host waited.
        reason: The reason in a line.
    """

    def __init__(self, host: int, waited_s: float, reason: str) -> None:
        self.host = host
        self.waited_s = waited_s
        self.reason = reason
        super().__init__(
            f"host {host} lost the others after {waited_s:.0f} s ({reason}): see what ended there; started again with"
            " --resume on all of them the run goes on from the newest save that all hosts have"
        )


@final
class ReplicasDiffer(ReliveError):
    """The state of a learner differs from the leader's, which the protocol rules out. The last checkpoint stays.

    Attributes:
        learner: Number of the learner.
        num_updates: Updates so far.
        expected: crc32 of the leader's state.
        got: crc32 of the learner's state.
    """

    def __init__(self, learner: int, num_updates: int, expected: int, got: int) -> None:
        self.learner = learner
        self.num_updates = num_updates
        self.expected = expected
        self.got = got
        super().__init__(
            f"state of learner {learner} after update {num_updates:,}: expected the leader's, crc32 {expected:08x}, got"
            f" {got:08x}; this machine's memory or arithmetic is not to be trusted, or the agent's update draws"
            " or reads something of its own; resume from the last checkpoint, with topology = actors has one learner"
        )


@final
class HostsDiffer(ReliveError, ValueError):
    """The hosts of a run were told different options. All hosts raise the same error, before anything was made.

    Attributes:
        option: Path of the option.
        expected: Its value on host 0.
        got: Its value on host `host`.
        host: Number of the other host.
    """

    def __init__(self, option: str, expected: object, got: object, host: int) -> None:
        self.option = option
        self.expected = expected
        self.got = got
        self.host = host
        super().__init__(
            f"option {option!r} of host {host}: expected {expected!r}, as on host 0, got {got!r}; the hosts of a run"
            f" learn one policy: start all of them with the same options (host {host} resumes with those in"
            f" RUN_DIR-host{host}/config.json, if that file is there and the directory of host 0 is not)"
        )
