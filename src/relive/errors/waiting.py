"""Errors of calls that wait: deadlines, limits that can never pass."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError, plain

__all__ = ["DeadlineExceeded", "RequestTooLarge", "WaitsForItself"]


class DeadlineExceeded(ReliveError, TimeoutError):
    """A call waited until its deadline. needs and has say what it waited for and what was there: numbers or texts."""

    def __init__(
        self, needs: object = "", has: object = "", waited_s: float = 0.0, holder_pid: int | None = None
    ) -> None:
        self.needs = plain(needs)
        self.has = plain(has)
        self.waited_s = waited_s
        self.holder_pid = holder_pid or None
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        if self.holder_pid is not None:
            return (
                f"deadline exceeded after {self.waited_s:.3g} s: the table is locked by process {self.holder_pid},"
                " which is alive but does not go on; continue or end that process, or give a larger timeout_s"
            )
        return (
            f"deadline exceeded after {self.waited_s:.3g} s: {self._balance()}; see that the other side (writers or"
            " samplers) is running, loosen the limiter, or give a larger timeout_s"
        )

    def _balance(self) -> str:
        what = f"needs {self.needs}" + ("" if self.has == "" else f", has {self.has}")
        if str(self.needs).endswith("live items"):
            what += " (a step is one once next_<state> was given, or the step after it appended)"
        return what


@final
class WaitsForItself(DeadlineExceeded):
    """The only participant of a table waits for something that only it could do; told at once, not at the deadline."""

    def _sentence(self) -> str:
        return (
            f"this would wait for ever: {self._balance()}, and nobody but the caller could change that (no"
            " other participant is attached); write or sample first, loosen the limiter, or run the other side in"
            " another process or thread"
        )


@final
class RequestTooLarge(ReliveError, ValueError):
    """A draw or an insert that would come to wait for ever: it does not fit the limiter's window.

    A draw shares the window with at least one row: where draw and row together are larger, both could come to wait for
    each other.
    none_twice: of a draw without replacement that asks for more items than it is sure to find, what bounds them; window
    is how many that are. Else "".
    """

    def __init__(self, requested: float, window: float, arithmetic: str = "", none_twice: str = "") -> None:
        self.requested = requested
        self.window = window
        self.arithmetic = arithmetic
        self.none_twice = none_twice
        if none_twice:
            super().__init__(
                f"a request for {requested:g} items could wait for ever: without replacement none comes twice in a"
                f" batch, and so many are never sure to be there, but {window:g} are ({none_twice}); ask for less at a"
                " time, raise that bound, or draw with replacement"
            )
            return
        super().__init__(
            f"a request for {requested:g} items could wait for ever: it does not fit the limiter's window of"
            f" {window:g}, which a draw has to share with at least one row"
            + (f" ({arithmetic})" if arithmetic else "")
            + "; ask for less at a time, or give SamplesPerInsert a larger tolerance, Queue a larger max_size"
        )
