"""What actors tell the learner and the learner tells its actors: counters in shared memory, no lock.

Every word has one writer: the learner for the run's row, actor i for row i (whichever process it is just now: a
restarted actor goes on counting where the dead one stopped). Counters may be read a step late; nothing depends on more.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.train.memory.shared_block import SharedBlock

RING = 256  # finished episodes remembered of each actor
_TRACEBACK_BYTES = 8192

_RUN = np.dtype([("stop", np.int64), ("steps_before", np.int64)])
_ACTOR = np.dtype(
    [
        ("num_steps", np.int64),
        ("num_episodes", np.int64),
        ("num_waits", np.int64),
        ("wait_s", np.float64),
        ("parameter_version", np.int64),
        ("returns", np.float64, (RING,)),
        ("lengths", np.int64, (RING,)),
        ("failed_step", np.int64),
        ("traceback", np.uint8, (_TRACEBACK_BYTES,)),
        ("traceback_length", np.int64),  # written last: 0 says that nothing failed
    ]
)


@final
class Scoreboard:
    """Counters of a run and its actors; pickles into a child process."""

    def __init__(self, num_actors: int, *, steps_before: int = 0) -> None:
        """steps_before: environment steps of the sessions that this one resumes."""
        self.num_actors = num_actors
        self._block = SharedBlock(_RUN.itemsize + num_actors * _ACTOR.itemsize)
        self._view()
        self._run["steps_before"] = steps_before

    def _view(self) -> None:
        self._run: Any = self._block.array(_RUN, ())
        self._actors: Any = self._block.array(_ACTOR, (self.num_actors,), _RUN.itemsize)

    def __getstate__(self) -> dict[str, Any]:
        return {"num_actors": self.num_actors, "_block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._view()

    # ---- the learner's words ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Asks all actors to end."""
        self._run["stop"] = 1

    def go_on_from(self, num_steps: int) -> None:
        """The run has so many steps, those counted here included: of who hears of the others now and then."""
        self._run["steps_before"] = max(0, num_steps - int(self._actors["num_steps"].sum()))

    @property
    def stopping(self) -> bool:
        """Whether actors were asked to end."""
        return bool(self._run["stop"])

    # ---- an actor's words ------------------------------------------------------------------------------------------

    def add_steps(self, actor: int, num_steps: int, parameter_version: int) -> None:
        """Environment steps just taken, and the parameters they were taken with."""
        row = self._actors[actor]
        row["num_steps"] += num_steps
        row["parameter_version"] = parameter_version

    def add_episode(self, actor: int, episode_return: float, length: int) -> None:
        """A finished episode."""
        row = self._actors[actor]
        at = int(row["num_episodes"]) % RING
        row["returns"][at] = episode_return
        row["lengths"][at] = length
        row["num_episodes"] += 1

    def add_wait(self, actor: int, wait_s: float) -> None:
        """Time for which the table's limiter held the actor back."""
        row = self._actors[actor]
        row["num_waits"] += 1
        row["wait_s"] += wait_s

    def add_failure(self, actor: int, step: int, traceback: str) -> None:
        """Its environment raised in this step of the actor's: the end of the traceback is kept."""
        row, text = self._actors[actor], traceback.encode(errors="replace")[-_TRACEBACK_BYTES:]
        row["failed_step"] = step
        row["traceback"][: len(text)] = np.frombuffer(text, np.uint8)
        row["traceback_length"] = len(text)

    # ---- what anybody reads ----------------------------------------------------------------------------------------

    def steps_behind(self, num_actors: int) -> tuple[int, int]:
        """Steps of this session: of the rows behind those of so many actors, and of all."""
        steps = self._actors["num_steps"]
        return int(steps[num_actors:].sum()), int(steps.sum())

    @property
    def num_steps(self) -> int:
        """Environment steps of all actors, earlier sessions included."""
        return int(self._run["steps_before"]) + int(self._actors["num_steps"].sum())

    def steps_of(self, actor: int) -> int:
        """Environment steps of one actor, this session."""
        return int(self._actors[actor]["num_steps"])

    def failure_of(self, actor: int) -> tuple[int, str] | None:
        """The step in which the actor's environment raised, and the traceback; None where it has not."""
        row = self._actors[actor]
        length = int(row["traceback_length"])
        if length == 0:
            return None
        return int(row["failed_step"]), row["traceback"][:length].tobytes().decode(errors="replace")

    @property
    def num_episodes(self) -> int:
        """Finished episodes of all actors, this session."""
        return int(self._actors["num_episodes"].sum())

    @property
    def wait_s(self) -> float:
        """Seconds that all actors together were held back."""
        return float(self._actors["wait_s"].sum())

    def recent_returns(self, num_episodes: int) -> NDArray[np.float64]:
        """Returns of about the last `num_episodes` episodes, the same share of each actor that has some."""
        num_with_some = int((self._actors["num_episodes"] > 0).sum())
        share = max(1, min(RING, num_episodes // max(1, num_with_some)))
        return np.concatenate([self.last_episodes(actor, share)[0] for actor in range(self.num_actors)])

    def last_episodes(self, actor: int, most: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns and lengths of the last episodes of an actor, at most RING, the newest last."""
        row = self._actors[actor]
        finished = int(row["num_episodes"])
        last = (np.arange(max(0, finished - min(most, RING)), finished) % RING).astype(np.intp)
        return row["returns"][last], row["lengths"][last]

    def totals_of(self, actor: int) -> tuple[int, int, float]:
        """Steps, finished episodes, and seconds held back of one actor, this session."""
        row = self._actors[actor]
        return int(row["num_steps"]), int(row["num_episodes"]), float(row["wait_s"])

    def close(self) -> None:
        """Ends this process's use of the board."""
        del self._run, self._actors
        self._block.close()
