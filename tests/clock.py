"""The time that tables of this process go by, set by hand."""

from __future__ import annotations

from relive import _core


class Clock:
    """Stands still until advance(); let go again by stop()."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        _core.set_clock(self.now_s)

    @staticmethod
    def stop() -> None:
        _core.set_clock(float("nan"))
