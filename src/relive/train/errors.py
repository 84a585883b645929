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
    """The environment of an actor raised an error in a step, or returned values that the table refuses.

    Attributes:
        actor: Number of the actor.
        step: Step of this actor, counted from 1 over all of its environments; 0: the first reset.
        traceback: The traceback of the actor, as text.
    """

    def __init__(self, actor: int, step: int, traceback: str) -> None:
        self.actor = actor
        self.step = step
        self.traceback = traceback
        where = f"in its step {step:,}" if step else "in its first reset"
        super().__init__(f"the environment of actor {actor} raised {where}:\n{traceback.rstrip()}")


@final
class ActorsKeepDying(ReliveError):
    """An actor died three times in a row before its first step: most likely its environment is at fault."""

    def __init__(self, actor: int, num_deaths: int, exit_code: int | None) -> None:
        self.actor = actor
        self.num_deaths = num_deaths
        self.exit_code = exit_code
        super().__init__(
            f"actor {actor} died {num_deaths} times before its first step, last with exit code {exit_code}:"
            " its own message stands above; make the environment in one process to see the cause"
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
            " --resume on all of them the run goes on from the first host's checkpoint"
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
            " learn one policy: start all of them with the same options"
        )
