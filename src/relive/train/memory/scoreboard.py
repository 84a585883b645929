"""Counts the steps and episodes of actors in shared memory, without a lock; asks the actors to end.

Every word has one writer. The learner writes the row of the run. Actor i writes row i, whichever process it is: an
actor that was started again counts on from the counters of its predecessor. A reader may see a counter a step late.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.train.memory.shared_block import SharedBlock

RING = 256  # finished episodes that are kept for each actor
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
        ("traceback_length", np.int64),  # written last; 0: no failure
    ]
)


@final
class Scoreboard:
    """Counters of a run and its actors. It can be pickled into a child process."""

    def __init__(self, num_actors: int, *, steps_before: int = 0) -> None:
        """Makes counters that are zero.

        Args:
            num_actors: Rows.
            steps_before: Environment steps of the sessions before this one.
        """
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
        """Sets the steps of the whole run, those of these rows included. An actor of another machine does so."""
        self._run["steps_before"] = max(0, num_steps - int(self._actors["num_steps"].sum()))

    @property
    def stopping(self) -> bool:
        """Whether the actors were asked to end."""
        return bool(self._run["stop"])

    # ---- an actor's words ------------------------------------------------------------------------------------------

    def add_steps(self, actor: int, num_steps: int, parameter_version: int) -> None:
        """Counts environment steps that were taken with parameters of this version."""
        row = self._actors[actor]
        row["num_steps"] += num_steps
        row["parameter_version"] = parameter_version

    def add_episode(self, actor: int, episode_return: float, length: int) -> None:
        """Counts a finished episode."""
        row = self._actors[actor]
        at = int(row["num_episodes"]) % RING
        row["returns"][at] = episode_return
        row["lengths"][at] = length
        row["num_episodes"] += 1

    def add_wait(self, actor: int, wait_s: float) -> None:
        """Counts a wait for the limiter of the table."""
        row = self._actors[actor]
        row["num_waits"] += 1
        row["wait_s"] += wait_s

    def add_failure(self, actor: int, step: int, traceback: str) -> None:
        """Notes that the environment raised an error in this step of the actor. The end of the traceback is kept."""
        row, text = self._actors[actor], traceback.encode(errors="replace")[-_TRACEBACK_BYTES:]
        row["failed_step"] = step
        row["traceback"][: len(text)] = np.frombuffer(text, np.uint8)
        row["traceback_length"] = len(text)

    # ---- for every reader ------------------------------------------------------------------------------------------

    def steps_behind(self, num_actors: int) -> tuple[int, int]:
        """Returns the steps of this session: those of the rows after the first num_actors rows, and those of all."""
        steps = self._actors["num_steps"]
        return int(steps[num_actors:].sum()), int(steps.sum())

    @property
    def num_steps(self) -> int:
        """Environment steps of all actors and sessions."""
        return int(self._run["steps_before"]) + int(self._actors["num_steps"].sum())

    def steps_of(self, actor: int) -> int:
        """Returns the environment steps of one actor in this session."""
        return int(self._actors[actor]["num_steps"])

    def failure_of(self, actor: int) -> tuple[int, str] | None:
        """Returns the step in which the environment of the actor raised an error, and the traceback; None: no error."""
        row = self._actors[actor]
        length = int(row["traceback_length"])
        if length == 0:
            return None
        return int(row["failed_step"]), row["traceback"][:length].tobytes().decode(errors="replace")

    @property
    def num_episodes(self) -> int:
        """Finished episodes of all actors in this session."""
        return int(self._actors["num_episodes"].sum())

    @property
    def wait_s(self) -> float:
        """Seconds that all actors together have waited for the limiter."""
        return float(self._actors["wait_s"].sum())

    def recent_returns(self, num_episodes: int) -> NDArray[np.float64]:
        """Returns the returns of about the last `num_episodes` episodes, equally many of each actor that has some."""
        num_with_some = int((self._actors["num_episodes"] > 0).sum())
        share = max(1, min(RING, num_episodes // max(1, num_with_some)))
        return np.concatenate([self.last_episodes(actor, share)[0] for actor in range(self.num_actors)])

    def last_episodes(self, actor: int, most: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns the returns and lengths of the last episodes of an actor: at most RING of them, the newest last."""
        row = self._actors[actor]
        finished = int(row["num_episodes"])
        last = (np.arange(max(0, finished - min(most, RING)), finished) % RING).astype(np.intp)
        return row["returns"][last], row["lengths"][last]

    def totals_of(self, actor: int) -> tuple[int, int, float]:
        """Returns steps, finished episodes, and seconds of waiting of one actor in this session."""
        row = self._actors[actor]
        return int(row["num_steps"]), int(row["num_episodes"]), float(row["wait_s"])

    def close(self) -> None:
        """Ends the use of the board by this process."""
        del self._run, self._actors
        self._block.close()
