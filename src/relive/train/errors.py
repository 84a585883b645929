"""Why a run ends before its time: each names what went wrong, where, and the way on."""

from __future__ import annotations

from typing import final

from relive.errors import ReliveError


@final
class NonFiniteLoss(ReliveError):
    """Learning has come to numbers that are not finite. checkpoint: the last one from before; None where none was."""

    def __init__(self, what: str, value: float, num_updates: int, checkpoint: str | None, resume: str) -> None:
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
    """An actor's environment raised in a step, or gave what the table refuses. traceback: the actor's own, as text."""

    def __init__(self, actor: int, step: int, traceback: str) -> None:
        """step: of this actor, counted from 1 over its environments; 0 where it raised in its first reset."""
        self.actor = actor
        self.step = step
        self.traceback = traceback
        where = f"in its step {step:,}" if step else "in its first reset"
        super().__init__(f"the environment of actor {actor} raised {where}:\n{traceback.rstrip()}")


@final
class ActorsKeepDying(ReliveError):
    """An actor died again and again before its first step: something is wrong with its environment."""

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
    """The process that infers for all actors died again and again, with no answer between. A checkpoint was written."""

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
    """Learner processes died again and again, with no update between. A checkpoint was written."""

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
    """Another host of a run on several did not come, said nothing for too long, or its connection ended.

    A checkpoint was written, if the run had begun to learn.
    """

    def __init__(self, host: int, waited_s: float, reason: str) -> None:
        """host: the number of this one, which noticed."""
        self.host = host
        self.waited_s = waited_s
        self.reason = reason
        super().__init__(
            f"host {host} lost the others after {waited_s:.0f} s ({reason}): see what ended there; started again with"
            " --resume on all of them the run goes on from the first host's checkpoint"
        )


@final
class ReplicasDiffer(ReliveError):
    """A learner's state is no longer the leader's, which the protocol rules out. The last checkpoint is left alone."""

    def __init__(self, learner: int, num_updates: int, expected: int, got: int) -> None:
        """expected, got: crc32 of the leader's state and of the learner's."""
        self.learner = learner
        self.num_updates = num_updates
        self.expected = expected
        self.got = got
        super().__init__(
            f"state of learner {learner} after update {num_updates:,}: expected the leader's, crc32 {expected:08x}, got"
            f" {got:08x}; this machine's memory or arithmetic is not to be trusted, or the agent's update draws"
            " or reads something of its own; resume from the last checkpoint, with topology = actors has one learner"
        )
