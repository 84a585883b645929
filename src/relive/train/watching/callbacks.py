"""Tells the callbacks of a run about its steps, evaluations and checkpoints; a callback may stop the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np

from relive.errors import InvalidConfig
from relive.train.config import TrainConfig
from relive.train.watching.checkpoint import CurvePoint
from relive.train.watching.progress import Snapshot
from relive.train.watching.result import RunResult


class Callback:
    """Base class of callbacks: override the methods that you need; the others do nothing.

    The thread that called `train` makes all calls, between two updates, so that their time is time of the learner.

    If a method returns True (or numpy's True), the run stops as it does at Ctrl-C: a checkpoint is written,
    `result.stopped` is True, and `train(run_dir=..., resume=True)` goes on. No other value stops it. If a method raises
    an error, the run ends too: a checkpoint is written, the actors end, no callback is called any more, and `train`
    raises the error.
    """

    def on_start(self, config: TrainConfig, run_dir: Path) -> None:
        """Called once, before the first actor starts.

        If it raises an error, a new run leaves no directory, unless a callback wrote files there.

        Args:
            config: Options of the run.
            run_dir: Its directory, which has config.json.
        """

    def on_progress(self, now: Snapshot) -> bool | None:
        """Called about four times a second, also during an evaluation.

        Args:
            now: Steps, updates, rates, losses and so on.

        Returns:
            True to stop the run.
        """

    def on_evaluation(self, point: CurvePoint) -> bool | None:
        """Called after each evaluation; its policy is kept by then if it is the best so far.

        Args:
            point: The evaluation.

        Returns:
            True to stop the run.
        """

    def on_checkpoint(self, path: Path, num_updates: int) -> bool | None:
        """Called after each checkpoint, when the file is complete.

        Args:
            path: The file.
            num_updates: Updates of the agent in it.

        Returns:
            True to stop the run.
        """

    def on_end(self, result: RunResult) -> None:
        """Called once, after the run has ended and all files are written, also for a stopped run.

        It is not called if `train` raises an error.

        Args:
            result: The result of the run.
        """


@final
class Listeners:
    """The callbacks of a run.

    Attributes:
        stops: Whether a callback asked the run to stop.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        """Takes callbacks. Raises InvalidConfig for values that are none, such as a class instead of its instance."""
        if not isinstance(callbacks, (list, tuple)):
            raise InvalidConfig("callbacks", "a list of relive.train.Callback", callbacks)
        for number, callback in enumerate(callbacks):
            if not isinstance(callback, Callback):
                raise InvalidConfig(f"callbacks[{number}]", "an instance of relive.train.Callback", callback)
        self._callbacks = tuple(callbacks)
        self.stops = False

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, callback: Callback) -> None:
        """Adds a callback, which is called after the others."""
        self._callbacks += (callback,)

    def tell(self, call: Callable[[Callback], bool | None]) -> None:
        """Calls `call` with each callback, in their order."""
        try:
            for callback in self._callbacks:
                answer = call(callback)
                if isinstance(answer, (bool, np.bool_)) and answer:  # a comparison of numbers of numpy is an np.bool_
                    self.stops = True
        except BaseException:
            self._callbacks = ()  # the run ends, and calls no callback any more
            raise
