"""What a run tells whoever listens, and how a listener stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from relive.errors import InvalidConfig
from relive.train.config import TrainConfig
from relive.train.watching.checkpoint import CurvePoint
from relive.train.watching.progress import Snapshot
from relive.train.watching.result import RunResult


class Callback:
    """Derive from it and override what is wanted; what is not overridden does nothing.

    All calls come from the thread that called `train`, between two updates, so the time they take is the learner's.
    Where a method may return True, True and nothing else stops the run as Ctrl-C does: a checkpoint is written,
    `result.stopped` is True, and `train(run_dir=..., resume=True)` goes on. An exception ends the run too, and comes
    out of `train`: a checkpoint is written, the actors end, and no callback hears of anything after it.
    """

    def on_start(self, config: TrainConfig, run_dir: Path) -> None:
        """Once, before the first actor starts: the run's options, and its directory, which has config.json."""

    def on_progress(self, now: Snapshot) -> bool | None:
        """Steps, updates, rates and losses, about four times a second, also while an evaluation plays."""

    def on_evaluation(self, point: CurvePoint) -> bool | None:
        """After each evaluation, whose policy is kept by then if it was the best so far."""

    def on_checkpoint(self, path: Path, num_updates: int) -> bool | None:
        """The checkpoint at `path` is complete and holds the agent after num_updates updates."""

    def on_end(self, result: RunResult) -> None:
        """Once, after everything has ended and was written, also of a stopped run; not where `train` raises."""


@final
class Listeners:
    """The callbacks of a run. stops: one of them wants the run to stop."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        """Raises InvalidConfig for anything that is not a Callback, such as a class in place of its instance."""
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
        """One more, told after those there are."""
        self._callbacks += (callback,)

    def tell(self, call: Callable[[Callback], bool | None]) -> None:
        """Makes one call of each, in their order."""
        try:
            for callback in self._callbacks:
                if call(callback) is True:
                    self.stops = True
        except BaseException:
            self._callbacks = ()  # the run ends: nobody hears of how
            raise
