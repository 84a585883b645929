"""Draws the learning curve of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relive.train.run_directory import write_whole
from relive.train.watching.checkpoint import CurvePoint


def draw_curve(path: Path, title: str, curve: Sequence[CurvePoint], stop_return: float | None) -> None:
    """Writes a PNG: evaluation and acting returns over environment steps, wall-clock seconds along the top.

    Raises:
        OSError: The file cannot be written. The old file stays.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = [point.num_steps for point in curve]
    axes.plot(steps, [point.evaluation_return for point in curve], marker="o", markersize=3, label="greedy evaluation")
    acting = [(point.num_steps, point.acting_return) for point in curve if point.acting_return is not None]
    if acting:
        axes.plot(*zip(*acting, strict=True), alpha=0.6, label="acting, exploring")
    if stop_return is not None:
        axes.axhline(stop_return, color="grey", linestyle=":", linewidth=1, label="return that ends the run")
    axes.set(xlabel="environment steps", ylabel="return", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    if len(curve) > 1:
        top = axes.twiny()
        top.set_xlim(axes.get_xlim())
        shown = sorted({0, len(curve) // 3, 2 * len(curve) // 3, len(curve) - 1})
        top.set_xticks([steps[at] for at in shown], [f"{curve[at].elapsed_s:.0f} s" for at in shown], fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120)
    write_whole(path, drawn.getbuffer())
