"""Errors of calls that wait: deadlines, and limits that can never pass."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError, plain

__all__ = ["DeadlineExceeded", "RequestTooLarge", "WaitsForItself"]


class DeadlineExceeded(ReliveError, TimeoutError):
    """A call waited until its deadline.

    Attributes:
        needs, has: the awaited quantity and the present one, as numbers or texts.
        waited_s: seconds.
        holder_pid: the process that owns the table's lock and does not go on; else None.
    """

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
        return f"deadline exceeded after {self.waited_s:.3g} s: {self._balance()}; {self._way_out()}"

    def _way_out(self) -> str:
        needs = str(self.needs)
        of_items = needs.isdecimal() or any(word in needs for word in ("item", "sample", "insert", "limiter"))
        if not of_items or needs.endswith("on their way"):
            return "see that what the call waits for goes on, or give a larger timeout_s"
        return (
            "see that the other side (writers or samplers) is running, loosen the limiter, or give a larger timeout_s"
        )

    def _balance(self) -> str:
        what = f"needs {self.needs}" + ("" if self.has == "" else f", has {self.has}")
        if str(self.needs).endswith("live items"):
            what += " (a step is one once next_<state> was given, or the step after it appended, and if `where` holds)"
        return what


@final
class WaitsForItself(DeadlineExceeded):
    """The only participant of a table waits for something that only it could do.

    Raised at once, not at the deadline.
    """

    def _sentence(self) -> str:
        return (
            f"this would wait for ever: {self._balance()}, and only the caller could change that (no"
            " other participant is attached); write or sample first, loosen the limiter, or run the other side in"
            " another process or thread"
        )


@final
class RequestTooLarge(ReliveError, ValueError):
    """A draw or an insert does not fit the limiter's window, and so could wait for ever.

    A draw shares the window with at least one row: if the draw and the row together are larger, each could wait for the
    other.

    Attributes:
        requested: items of the call.
        window: the items that always pass.
        arithmetic: the derivation of the window.
        none_twice: for a draw without replacement of more items than are sure to exist, the number that bounds them;
            `window` is how many exist for sure. Else ''.
        uses: for a draw of more uses of items than are sure to be left, the number that bounds them; `window` is how
            many are sure to be left. Else ''.
    """

    def __init__(
        self, requested: float, window: float, arithmetic: str = "", none_twice: str = "", uses: str = ""
    ) -> None:
        self.requested = requested
        self.window = window
        self.arithmetic = arithmetic
        self.none_twice = none_twice
        self.uses = uses
        super().__init__(f"a request for {requested:g} items could wait for ever: {self._reason()}")

    def _reason(self) -> str:
        if self.none_twice:
            return (
                "without replacement none comes twice in a batch, and so many are never sure to be there, but"
                f" {self.window:g} are ({self.none_twice}); ask for less at a time, raise that bound, or draw with"
                " replacement"
            )
        if self.uses:
            return (
                f"where writers wait, {self.window:g} uses of items may be left ({self.arithmetic}; {self.uses}); ask"
                " for less at a time, or give SamplesPerInsert a larger tolerance"
            )
        return (
            f"it does not fit the limiter's window of {self.window:g}, which a draw has to share with at least one row"
            + (f" ({self.arithmetic})" if self.arithmetic else "")
            + "; ask for less at a time, or give SamplesPerInsert a larger tolerance, Queue a larger max_size"
        )
