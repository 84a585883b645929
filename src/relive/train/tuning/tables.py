"""Prints the result of the tuner: costs of the parts, predictions and measurements, and predictions for more cores."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from relive.train.tuning.throughput import Costs, Prediction
from relive.train.tuning.tuner import Tuning

_SHOWN = 6


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Prints all tables, then the choice."""
    for grid in (costs_grid(tuning.costs), tried_grid(tuning), untried_grid(tuning), more_cores_grid(tuning)):
        if grid.row_count:
            console.print(grid)
    error = tuning.error
    if error is not None:
        console.print(f"median error of the predictions for the settings that were tried: {error:.0%}", highlight=False)
    if tuning.is_crowded:
        line = "Other programs use this machine. So the predictions decide, which are for a machine without them."
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"chosen: {tuning}", highlight=False, soft_wrap=True)


def costs_grid(costs: Costs) -> Grid:
    """Returns a table with a row for each part and size."""
    title = f"cost of each part on {costs.cores} cores"
    grid = _grid(title)
    grid.add_column("part")
    for heading in ("of", "us"):
        grid.add_column(heading, justify="right")
    for num_envs, step_s in costs.steps:
        shares = costs.parts.get(num_envs, {})
        of = f"{num_envs} environments"
        grid.add_row("a step of an actor", of, f"{1e6 * step_s:,.0f}")
        for part, share in shares.items():
            grid.add_row(f"  {part}", of, f"{1e6 * share * step_s:,.0f}")
    for name, curve, of in (("sample", costs.samples, "items"), ("update", costs.updates, "rows")):
        for size, seconds in curve:
            grid.add_row(name, f"{size:,} {of}", f"{1e6 * seconds:,.0f}")
    if costs.sync_s is not None:
        grid.add_row("synchronise", f"each of {costs.gradients:g} gradients", f"{1e6 * costs.sync_s:,.0f}")
        grid.add_row("  add it up", "each learner more", f"{1e6 * costs.add_s:,.0f}")
    grid.add_row("publish parameters", "the learner", f"{1e6 * costs.publish_s:,.0f}")
    grid.add_row("read parameters", "an actor", f"{1e6 * costs.take_s:,.0f}")
    both = f"{costs.slow_acting:.2f} and {costs.slow_learning:.2f} times"
    grid.add_row("acting and learning at once", "as long as alone", both)
    return grid


def tried_grid(tuning: Tuning) -> Grid:
    """Returns a table of predictions and measurements, in the order of the trials.

    Columns: predicted; run (measured); spread of the windows of a trial; no core (share of its time that the slower
    side waited for a core); quiet (measured, without that share, if each process could have a core); error of the
    prediction against quiet.
    """
    grid = _settings_grid(f"tried with batch {tuning.asked.agent.batch_size}: environment steps a second", batch=False)
    for heading in ("predicted", "run", "spread", "no core", "quiet", "error"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for one in tuning.tried:
        rates = f"{one.prediction.steps_per_s:,.0f}", f"{one.trial.steps_per_s:,.0f}"
        shares = f"{one.trial.spread:.0%}", f"{one.waited:.0%}"
        quiet = f"{one.quiet_steps_per_s:,.0f}", f"{one.error:+.0%}"
        grid.add_row(*_cells(one.prediction, batch=False), *rates, *shares, *quiet)
    return grid


def untried_grid(tuning: Tuning) -> Grid:
    """Returns a table of predictions for the next best settings and for other batches."""
    settings = {one.prediction.setting for one in tuning.tried}
    rest = [one for one in tuning.predictions if one.setting not in settings]
    return _predicted_grid("not tried", [*rest[:_SHOWN], *tuning.other_batches])


def more_cores_grid(tuning: Tuning) -> Grid:
    """Returns a table of the best settings by prediction on more cores than this machine has."""
    title = f"on more cores than the {tuning.costs.cores} of this machine: predicted, not measured"
    return _predicted_grid(title, tuning.more_cores)


def _predicted_grid(title: str, predictions: Sequence[Prediction]) -> Grid:
    grid = _settings_grid(title)
    for heading in ("cores", "busy", "steps/s", "updates/s"):
        grid.add_column(heading, justify="right")
    for one in predictions:
        busy, rates = f"{one.busy:.1f}", (f"{one.steps_per_s:,.0f}", f"{one.updates_per_s:,.0f}")
        grid.add_row(*_cells(one), str(one.cores), busy, *rates)
    return grid


def _settings_grid(title: str, *, batch: bool = True) -> Grid:
    grid = _grid(title)
    grid.add_column("topology", no_wrap=True)
    for heading in ("actors", "envs", "batch")[: 3 if batch else 2]:
        grid.add_column(heading, justify="right")
    grid.add_column("limit", no_wrap=True)
    return grid


def _grid(title: str) -> Grid:
    return Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def _cells(one: Prediction, *, batch: bool = True) -> tuple[str, ...]:
    setting = one.setting
    sizes = (str(setting.num_actors), str(setting.num_envs), str(setting.batch_size))[: 3 if batch else 2]
    topology = f"{setting.topology} acting" if setting.inline and setting.num_learners > 1 else str(setting.topology)
    return topology, *sizes, one.limit.value
