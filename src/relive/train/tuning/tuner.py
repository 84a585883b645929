"""Chooses the processes and environments with which a run is fastest on this machine.

  1  calibrate   measures environment, inference, insert, sample, update and so on (relive.train.tuning.calibrate)
  2  predict     predicts the speed of each setting that fits the cores (relive.train.tuning.throughput)
  3  try         runs the best setting of each kind, and the asked one, for some seconds (relive.train.tuning.trial)
  4  choose      takes the fastest setting that was tried; without a trial the fastest by prediction

All options that say what the run learns stay as they are: the batch, the replay ratio, the networks and so on.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import tomli_w

from relive.agents.agent import Spaces
from relive.agents.config import require
from relive.train.acting.environments import describe
from relive.train.config import TrainConfig, path_of, preset
from relive.train.run_directory import TUNING_FILE
from relive.train.settings import Written, changed, nested, options
from relive.train.setup import least_capacity, limiter_of
from relive.train.signals import raising_signals
from relive.train.topology import Actors
from relive.train.tuning.calibrate import Sizes, calibrate
from relive.train.tuning.throughput import (
    MOST_CORES,
    Costs,
    Limit,
    Prediction,
    Setting,
    Work,
    best_of_each_kind,
    candidates,
    envs_that_fit,
    predict,
    ranked,
)
from relive.train.tuning.trial import Trial, run_trial
from relive.train.watching.callbacks import Callback

BUDGET_S, AUTO_BUDGET_S = 60.0, 25.0
_MORE_CORES = (4, 8, 16)
_CALIBRATION_SHARE = 0.35
_LEARNERS_FROM_S = 15.0  # smallest budget in which a second learner has time to start
_MOST_TRIALS = 5
_TRIAL_S = 3.0
_NEAR = 0.03
_CROWDED, _MOST_WAITED = 0.1, 0.9  # shares of the time of a process without a core
_SIZE_ENVS = (1, 4, 16)


@final
@dataclass(frozen=True)
class Tried:
    """A setting that was tried.

    Attributes:
        prediction: Its predicted speed.
        trial: Its measured speed.
    """

    prediction: Prediction
    trial: Trial

    @property
    def waited(self) -> float:
        """Share of its time that the slower side had work to do and no core."""
        acts = self.prediction.limit is Limit.ACTING and not self.prediction.setting.inline
        return self.trial.acting_waited if acts else self.trial.learning_waited

    @property
    def fits(self) -> bool:
        """Whether there is a core for each process. If so, a process without a core waits for other programs."""
        return self.prediction.setting.num_processes <= self.prediction.cores

    @property
    def quiet_steps_per_s(self) -> float:
        """Measured steps a second without the time that the slower side waited for other programs."""
        waited = min(self.waited, _MOST_WAITED) if self.fits else 0.0
        return self.trial.steps_per_s / (1.0 - waited)

    @property
    def error(self) -> float:
        """(predicted - quiet) / quiet steps a second."""
        return self.prediction.steps_per_s / self.quiet_steps_per_s - 1.0


@final
@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        asked: The configuration that was asked for.
        costs: Costs of the parts.
        predictions: Predictions for every setting on the cores of this machine, the best first.
        tried: The settings that were tried.
        chosen: The chosen setting.
        other_batches: Predictions for the chosen processes with half and twice the batch.
        more_cores: The best setting by prediction on more cores than this machine has. It was not measured.
        took_s: Seconds that the tuner took.
    """

    asked: TrainConfig
    costs: Costs
    predictions: tuple[Prediction, ...]
    tried: tuple[Tried, ...]
    chosen: Prediction
    other_batches: tuple[Prediction, ...]
    more_cores: tuple[Prediction, ...]
    took_s: float

    @property
    def settings(self) -> dict[str, object]:
        """The chosen options, {path: value}, as `preset` and `--set` take them."""
        return self.chosen.setting.options

    @property
    def config(self) -> TrainConfig:
        """The asked configuration with the chosen options; its `tuned` says so in a line."""
        return changed(self.asked, {**self.settings, "tuned": str(self)})

    @property
    def trial(self) -> Trial | None:
        """The measured speed of the chosen setting; None if no setting was tried."""
        return next((one.trial for one in self.tried if one.prediction.setting == self.chosen.setting), None)

    @property
    def is_crowded(self) -> bool:
        """Whether processes waited for a core although there was one for each: other programs run here."""
        return crowded(self.tried)

    @property
    def error(self) -> float | None:
        """Median of |error| over the settings that were tried; on a crowded machine over those that fit; None: none."""
        errors = [abs(one.error) for one in self.tried if one.fits or not self.is_crowded]
        return float(np.median(errors)) if errors else None

    def __str__(self) -> str:
        trial, chosen = self.trial, self.chosen
        measured = "" if trial is None else f", measured {trial.steps_per_s:,.0f}"
        return (
            f"{chosen.setting}: {chosen.steps_per_s:,.0f} steps a second predicted{measured}, on"
            f" {self.costs.cores} cores"
        )

    def to_tree(self) -> dict[str, Any]:
        """Returns all attributes but the asked configuration, as JSON can hold them."""
        tree = {name: value for name, value in asdict(self).items() if name != "asked"}
        tree = {"settings": {path: str(value) for path, value in self.settings.items()}, **tree}
        return dict(_plain(tree))

    def save(self, path: str | Path) -> None:
        """Writes `to_tree()` as JSON."""
        target = path_of("path", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(self.to_tree(), indent=2) + "\n", encoding="utf-8")

    def write_settings(self, path: str | Path) -> None:
        """Writes a file for `relive train --config`: the chosen options, and all others that differ from the preset.

        An existing file is replaced, whole.

        Raises:
            OSError: The file cannot be written.
        """
        target = path_of("path", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.write_text(self._toml(), encoding="utf-8")
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)

    def _toml(self) -> str:
        """A comment, the agent, its environment, and each option that was chosen or differs from the preset."""
        asked = self.asked
        usual = {one.path: one.value for one in options(preset(asked.agent.name, asked.environment.env_id))}
        settings: dict[str, object] = {
            "agent.name": asked.agent.name,
            "environment.env_id": asked.environment.env_id,
        }
        for option in options(self.config):
            if option.path in self.settings or option.value != usual[option.path]:
                settings[option.path] = _toml_value(option.value)
        return f"# Chosen by relive tune. {self}\n{tomli_w.dumps(nested(settings))}"


@final
class Keeping(Callback):
    """Writes a tuning into the directory of the run that uses it, as tuning.json."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning

    def on_start(self, config: TrainConfig, run_dir: Path) -> None:
        """See Callback."""
        self._tuning.save(run_dir / TUNING_FILE)


def crowded(tried: Sequence[Tried]) -> bool:
    """See Tuning.is_crowded."""
    return any(one.waited > _CROWDED for one in tried if one.fits)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.value if hasattr(value, "value") else value


def _toml_value(value: object) -> object:
    """The value as tomli_w writes it. TOML has no null: an option reads the text "none"."""
    if value is None:
        return "none"
    return str(value) if isinstance(value, Written) else value


@raising_signals()
def tune(
    config: TrainConfig,
    *,
    budget_s: float = BUDGET_S,
    more_cores: Sequence[int] = _MORE_CORES,
    say: Callable[[str], None] = lambda line: None,
) -> Tuning:
    """Finds the processes, and the environments of each actor, with which this run is fastest at its replay ratio.

    It starts processes by spawn, so call it under `if __name__ == "__main__":`. All processes have ended when it
    returns or raises an error. It keeps nothing on disk.

    Args:
        config: Options of the run.
        budget_s: About as many seconds as it takes. Three rounds of measurements and one trial are made in any case,
            and a trial that has begun is finished.
        more_cores: Numbers of cores to predict for besides those of this machine.
        say: Gets lines for people.

    Returns:
        The choice, with all measurements and predictions.

    Raises:
        InvalidConfig: An argument is out of range; the run has several hosts or a cluster; a launcher started several
            processes (WORLD_SIZE); the agent cannot act in the environment; or no setting's table holds min_size items.
        EnvironmentRaised: The environment raised an error.
        ActorsKeepDying: An actor died or does not answer.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came, in the main thread.
        Exception: Any error of `train`.
    """
    require(isinstance(config, TrainConfig), "config", "a TrainConfig, such as preset(agent, env_id)", config)
    is_number = isinstance(budget_s, (int, float)) and not isinstance(budget_s, bool)
    require(is_number and 0 < budget_s < math.inf, "budget_s", "seconds > 0, finite", budget_s)
    more_cores = _checked_cores(more_cores)
    expected = "one of a single host: the tuner measures, and chooses for, the machine that it runs on"
    require(config.topology.num_hosts == 1, "topology", expected, str(config.topology))
    require(config.cluster.kind is None, "cluster.kind", "none: the tuner measures this machine", config.cluster.kind)
    count = os.environ.get("WORLD_SIZE", "1")
    require(count == "1", "processes that a launcher started", "one: several would measure each other", count)
    if config.learning.max_gradient_staleness is not None:  # no topology that the tuner chooses reads it
        config = changed(config, {"learning.max_gradient_staleness": None})
    began_s = time.monotonic()
    cores, batch_size = len(os.sched_getaffinity(0)), config.agent.batch_size
    halved = batch_size // 2 if batch_size % 2 == 0 and batch_size > 2 else batch_size
    most_envs = envs_that_fit(config.replay.min_size)
    sizes = Sizes(
        num_envs=tuple(number for number in _SIZE_ENVS if number <= most_envs) or (1,),
        batch_sizes=tuple(dict.fromkeys((batch_size, halved, 2 * batch_size))),
        learners_too=cores >= 2 and batch_size % 2 == 0 and budget_s >= _LEARNERS_FROM_S,
    )
    spaces = describe(config.environment.env_id)
    most_lanes = _most_lanes(config, spaces)
    costs = calibrate(config, sizes, _CALIBRATION_SHARE * budget_s, say, spaces)
    work = _work(config, spaces)
    predictions = ranked([predict(costs, one, work) for one in _settings(config, costs, cores, most_envs, most_lanes)])
    asked = _asked(config, most_lanes)
    first = None if asked is None else predict(costs, asked, work)
    tried = _try(config, predictions, first, began_s + budget_s, say)
    chosen = _choice(tried) or predictions[0]
    return Tuning(
        asked=config,
        costs=costs,
        predictions=tuple(predictions),
        tried=tuple(tried),
        chosen=chosen,
        other_batches=tuple(_with_batch(costs, chosen, size, work) for size in sizes.batch_sizes[1:]),
        more_cores=tuple(_best_on(config, costs, number, most_envs, most_lanes, work) for number in more_cores),
        took_s=time.monotonic() - began_s,
    )


def _checked_cores(more_cores: Sequence[int]) -> tuple[int, ...]:
    fit = isinstance(more_cores, (list, tuple)) and all(type(n) is int and 1 <= n <= MOST_CORES for n in more_cores)
    require(fit, "more_cores", f"numbers of cores, each in [1, {MOST_CORES}]", more_cores)
    here = len(os.sched_getaffinity(0))
    return tuple(number for number in more_cores if number > here)


def _work(config: TrainConfig, spaces: Spaces) -> Work:
    """Returns the facts that the settings do not change. A thread gathers images ahead."""
    return Work(config.replay.updates_per_step, config.acting.publish_period, gathers_ahead=bool(spaces.stack))


def _most_lanes(config: TrainConfig, spaces: Spaces) -> int:
    """Returns the most lanes with which the table holds replay.min_size items: `train` refuses a run with more.

    Raises:
        InvalidConfig: It does not hold them with one lane.
    """
    agent = config.slice.make(spaces, seed=config.environment.seed, device="cpu")
    index, capacity = agent.index(limiter_of(config)), config.replay.capacity
    first, second = (least_capacity(config, index, lanes) for lanes in (1, 2))
    expected = f">= {first} (replay.min_size = {config.replay.min_size}, with one lane), or a smaller min_size"
    require(capacity >= first, "replay.capacity", expected, capacity)
    return 1 + (capacity - first) // (second - first)


def _settings(config: TrainConfig, costs: Costs, cores: int, most_envs: int, most_lanes: int) -> list[Setting]:
    """Returns the possible settings. Several learners need a measurement of two, and no demand for compiled updates."""
    together = costs.sync_s is not None and config.update != "compiled"
    found = candidates(cores, (config.agent.batch_size,), most_envs)
    return [one for one in found if one.num_lanes <= most_lanes and (one.num_learners == 1 or together)]


def _asked(config: TrainConfig, most_lanes: float = math.inf) -> Setting | None:
    """Returns the asked setting; None if the model does not know it, or if `train` refuses it.

    The model knows no other topology, and no run without actors of its own.
    """
    num_envs, batch_size = config.environment.num_envs_per_actor, config.agent.batch_size
    if config.num_actors < 1:
        return None
    setting = Setting(config.num_actors, num_envs, batch_size, config.topology.num_learners, config.acts_inline)
    is_known = isinstance(config.topology, Actors) or setting.topology == config.topology
    return setting if is_known and setting.num_lanes <= most_lanes else None


def _best_on(config: TrainConfig, costs: Costs, cores: int, most_envs: int, most_lanes: int, work: Work) -> Prediction:
    found = _settings(config, costs, cores, most_envs, most_lanes)
    return ranked([predict(costs, one, work, cores) for one in found])[0]


def _with_batch(costs: Costs, chosen: Prediction, batch_size: int, work: Work) -> Prediction:
    setting = chosen.setting
    other = Setting(setting.num_actors, setting.num_envs, batch_size, setting.num_learners, setting.inline)
    return predict(costs, other, work)


def _try(
    config: TrainConfig,
    predictions: Sequence[Prediction],
    asked: Prediction | None,
    until_s: float,
    say: Callable[[str], None],
) -> list[Tried]:
    """Tries the best setting of each kind and the asked one, while there is time for one more; one in any case."""
    wanted = best_of_each_kind(predictions)[: _MOST_TRIALS - 1]
    if asked is not None and asked.setting not in [one.setting for one in wanted]:
        wanted.insert(1, asked)
    tried: list[Tried] = []
    longest_s = 2.0 * _TRIAL_S
    for prediction in wanted:
        began_s = time.monotonic()
        if tried and began_s + longest_s > until_s:
            break
        trial = run_trial(config, prediction.setting, min(_TRIAL_S, max(1.0, 0.05 * (until_s - began_s))))
        longest_s = max(longest_s, time.monotonic() - began_s)
        if trial is not None:
            tried.append(Tried(prediction, trial))
            predicted, measured = prediction.steps_per_s, trial.steps_per_s
            say(f"{prediction.setting}: predicted {predicted:,.0f}, measured {measured:,.0f} steps a second")
    return tried


def _choice(tried: Sequence[Tried]) -> Prediction | None:
    """Returns the fastest setting that was measured.

    The prediction decides between settings that are within 3% or within the windows of the fastest one. It decides
    between all settings if other programs take so much time that measurements mean nothing.
    """
    if not tried:
        return None
    if crowded(tried):
        return ranked([one.prediction for one in tried])[0]
    best = max(tried, key=lambda one: one.trial.steps_per_s).trial
    least = min(best.lowest, (1.0 - _NEAR) * best.steps_per_s)
    alike = [one.prediction for one in tried if one.trial.steps_per_s >= least]
    return ranked(alike)[0]
