"""Draws views of a table as text: bars, sparklines and histograms of block characters; no library needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from relive.cli.inspecting.view import Bars, IndexView, View
from relive.errors.base import bytes_text

__all__ = ["Screen"]

_LEVELS = " ▁▂▃▄▅▆▇█"
_WIDTH = 40


class Screen:
    """Turns views into text, and remembers the rates of the last views for their lines."""

    def __init__(self) -> None:
        self._rates: dict[str, deque[float]] = {}

    def text(self, view: View) -> str:
        """The picture of a view."""
        full = view.num_steps / max(view.capacity, 1)
        lines = [
            f"{view.name}",
            f"  fill      {bar(full)} {full:4.0%}  {view.num_steps:,} of {view.capacity:,} steps,"
            f" {bytes_text(view.num_bytes)}",
            f"  written   {self._line('written', view.steps_per_s)} {view.steps_per_s:,.0f} steps/s"
            f"  ({view.appended:,} in all, {view.evicted:,} evicted)",
            f"  attached  {view.num_participants} handles, {view.num_lanes} open lanes;"
            f" priority updates: {view.updates_applied:,} applied, {view.updates_stale:,} too late",
        ]
        if view.recoveries:
            lines.append(f"  repaired  {view.recoveries} times after a process died while it owned the lock")
        lines += [f"  {one}" for one in view.shards]
        if view.problem:
            lines.append(f"  the last save failed: {view.problem}")
        for index in view.indexes:
            lines += ["", *self._index(index)]
        return "\n".join(lines) + "\n"

    def _index(self, index: IndexView) -> Iterable[str]:
        pending = f", {index.pending:,} pending" if index.pending else ""
        yield f"  index {index.name}: {index.num_items:,} items of {index.items}{pending}"
        yield f"    {index.sampler}, {index.limiter}"
        yield f"    inserted  {self._line(index.name + '+', index.inserts_per_s)} {index.inserts_per_s:,.0f} items/s"
        yield f"    drawn     {self._line(index.name + '-', index.draws_per_s)} {index.draws_per_s:,.0f} items/s"
        yield f"    reuse     {index.reuse:.2f} draws an item"
        if index.priorities:
            yield f"    priority  {histogram(index.priorities)}"
        if index.ages:
            yield f"    age       {histogram(index.ages)} policy versions"
        for sentence in index.waits:
            yield f"    waits     {sentence}"
        if index.longest_wait_s >= 0.1:
            yield f"    longest   {index.longest_wait_s:.1f} s of one wait"

    def _line(self, name: str, value: float) -> str:
        rates = self._rates.setdefault(name, deque(maxlen=_WIDTH))
        rates.append(value)
        return sparkline(rates).rjust(_WIDTH)


def bar(share: float) -> str:
    """A bar of a share in [0, 1]."""
    filled = round(min(max(share, 0.0), 1.0) * _WIDTH)
    return "█" * filled + "·" * (_WIDTH - filled)


def sparkline(values: Iterable[float]) -> str:
    """One character a value, from an empty cell to a full one at the largest value."""
    given = list(values)
    most = max([*given, 1e-12])
    return "".join(_LEVELS[round(value / most * (len(_LEVELS) - 1))] for value in given)


def histogram(bars: Bars) -> str:
    """The shares of a histogram between its ends."""
    return f"{bars.low:.3g} |{sparkline(bars.shares)}| {bars.high:.3g}"
