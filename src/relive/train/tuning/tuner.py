"""The tuner: measures the parts of a run, reckons how fast each setting would be, tries a few, and chooses one.

  1  calibrate   relive.train.tuning.calibrate: environment, inference, insert, sample, update, ..., on this machine
  2  predict     relive.train.tuning.throughput: each setting of processes and environments that fits the cores
  3  try         relive.train.tuning.trial: the best of each kind, and what was asked, as real runs of some seconds
  4  choose      the fastest of those that were tried; where none was, the fastest by prediction

The batch, the replay ratio, the networks and everything else that says what is learnt stay as they were asked.
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

from relive.agents.config import require
from relive.train.acting.environments import describe
from relive.train.config import TrainConfig, path_of, preset
from relive.train.settings import Written, changed, nested, options
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

TUNING_FILE = "tuning.json"
BUDGET_S, AUTO_BUDGET_S = 60.0, 25.0
_MORE_CORES = (4, 8, 16)
_CALIBRATION_SHARE = 0.35
_LEARNERS_FROM_S = 15.0  # a budget in which a second learner has the time to start
_MOST_TRIALS = 5
_TRIAL_S = 3.0
_NEAR = 0.03
_CROWDED, _MOST_WAITED = 0.1, 0.9  # shares of its time without a core
_SIZE_ENVS = (1, 4, 16)


@final
@dataclass(frozen=True)
class Tried:
    """A setting that was tried: what it was reckoned at, and what it was measured at."""

    prediction: Prediction
    trial: Trial

    @property
    def waited(self) -> float:
        """The share of its time that the slower side had work to do and no core."""
        acts = self.prediction.limit is Limit.ACTING and not self.prediction.setting.inline
        return self.trial.acting_waited if acts else self.trial.learning_waited

    @property
    def fits(self) -> bool:
        """Whether there is a core for each process: then those that wait for one wait for other programmes."""
        return self.prediction.setting.num_processes <= self.prediction.cores

    @property
    def quiet_steps_per_s(self) -> float:
        """What was measured, without what the slower side waited for other programmes."""
        waited = min(self.waited, _MOST_WAITED) if self.fits else 0.0
        return self.trial.steps_per_s / (1.0 - waited)

    @property
    def error(self) -> float:
        """(predicted - quiet) / quiet steps a second."""
        return self.prediction.steps_per_s / self.quiet_steps_per_s - 1.0


@final
@dataclass(frozen=True)
class Tuning:
    """What `tune` found out. asked: the configuration it was given.

    predictions: of every setting on the cores there are, the best first. tried: some of them, as run. chosen: the
    best. other_batches: of the chosen processes with half and twice the batch. more_cores: the best setting by
    prediction on more cores than there are: nothing there was measured.
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
        """{path: value}: what is chosen, as `preset` and `--set` take it."""
        return self.chosen.setting.options

    @property
    def config(self) -> TrainConfig:
        """What was asked, with the settings chosen, and a line that says so in `tuned`."""
        return changed(self.asked, {**self.settings, "tuned": str(self)})

    @property
    def trial(self) -> Trial | None:
        """What the chosen setting was measured at; None where none was tried."""
        return next((one.trial for one in self.tried if one.prediction.setting == self.chosen.setting), None)

    @property
    def is_crowded(self) -> bool:
        """Whether processes waited for a core though there was one for each: other programmes run here."""
        return crowded(self.tried)

    @property
    def error(self) -> float | None:
        """The median of |error| over the settings tried, on a crowded machine over those that fit; None without any."""
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
        """All of it but what was asked, for JSON."""
        tree = {name: value for name, value in asdict(self).items() if name != "asked"}
        tree = {"settings": {path: str(value) for path, value in self.settings.items()}, **tree}
        return dict(_plain(tree))

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        path_of("path", path).write_text(json.dumps(self.to_tree(), indent=2) + "\n", encoding="utf-8")

    def write_settings(self, path: str | Path) -> None:
        """Writes what `relive train --config` takes: all options that are not the preset's, those chosen among them.

        A file that is there is replaced, in one move. Raises OSError where it cannot be written.
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
    """Writes a tuning beside the run that goes by it, as tuning.json."""

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


def tune(
    config: TrainConfig,
    *,
    budget_s: float = BUDGET_S,
    more_cores: Sequence[int] = _MORE_CORES,
    say: Callable[[str], None] = lambda line: None,
) -> Tuning:
    """Finds the processes and the environments an actor with which this run is fastest at its replay ratio.

    It takes about budget_s seconds, more where the machine is slow: three rounds of measurements and a trial are the
    least, and a trial that has begun is ended. more_cores: numbers of cores to predict for, besides. say: told of what
    is done, in lines for people. Processes are started by spawn, so a script calls it under
    `if __name__ == "__main__":`; all have ended when it returns or raises. Nothing is kept on disk.
    Raises InvalidConfig for a budget that is not positive and finite, for a topology of several hosts or in one of
    several processes that a launcher started (WORLD_SIZE), and where the agent cannot act in the
    environment; EnvironmentRaised; ActorsKeepDying; what `train` raises; KeyboardInterrupt as ever.
    """
    is_number = isinstance(budget_s, (int, float)) and not isinstance(budget_s, bool)
    require(is_number and 0 < budget_s < math.inf, "budget_s", "seconds > 0, finite", budget_s)
    more_cores = _checked_cores(more_cores)
    expected = "one of a single host: the tuner measures, and chooses for, the machine that it runs on"
    require(config.topology.num_hosts == 1, "topology", expected, str(config.topology))
    count = os.environ.get("WORLD_SIZE", "1")
    require(count == "1", "processes that a launcher started", "one: several would measure each other", count)
    began_s = time.monotonic()
    cores, batch_size = len(os.sched_getaffinity(0)), config.agent.batch_size
    halved = batch_size // 2 if batch_size % 2 == 0 and batch_size > 2 else batch_size
    most_envs = envs_that_fit(config.replay.min_size)
    sizes = Sizes(
        num_envs=tuple(number for number in _SIZE_ENVS if number <= most_envs) or (1,),
        batch_sizes=tuple(dict.fromkeys((batch_size, halved, 2 * batch_size))),
        learners_too=cores >= 2 and batch_size % 2 == 0 and budget_s >= _LEARNERS_FROM_S,
    )
    costs = calibrate(config, sizes, _CALIBRATION_SHARE * budget_s, say)
    work = _work(config)
    predictions = ranked([predict(costs, one, work) for one in _settings(config, costs, cores, most_envs)])
    asked = _asked(config)
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
        more_cores=tuple(_best_on(config, costs, number, most_envs, work) for number in more_cores),
        took_s=time.monotonic() - began_s,
    )


def _checked_cores(more_cores: Sequence[int]) -> tuple[int, ...]:
    fit = isinstance(more_cores, (list, tuple)) and all(
        type(one) is int and 1 <= one <= MOST_CORES for one in more_cores
    )
    require(fit, "more_cores", f"numbers of cores, each in [1, {MOST_CORES}]", more_cores)
    here = len(os.sched_getaffinity(0))
    return tuple(number for number in more_cores if number > here)


def _work(config: TrainConfig) -> Work:
    """What the settings do not change. Images are gathered by a thread of their own."""
    spaces = describe(config.environment.env_id)
    return Work(config.replay.updates_per_step, config.acting.publish_period, gathers_ahead=bool(spaces.stack))


def _settings(config: TrainConfig, costs: Costs, cores: int, most_envs: int) -> list[Setting]:
    """Those that can be: with more learners than one only where two were measured, and no compiled update is asked."""
    together = costs.sync_s is not None and config.update != "compiled"
    found = candidates(cores, (config.agent.batch_size,), most_envs)
    return [one for one in found if one.num_learners == 1 or together]


def _asked(config: TrainConfig) -> Setting | None:
    """What the configuration says; None for what the model does not know: other topologies, no actors of its own."""
    num_envs, batch_size = config.environment.num_envs_per_actor, config.agent.batch_size
    if config.num_actors < 1:
        return None
    setting = Setting(config.num_actors, num_envs, batch_size, config.topology.num_learners, config.acts_inline)
    return setting if isinstance(config.topology, Actors) or setting.topology == config.topology else None


def _best_on(config: TrainConfig, costs: Costs, cores: int, most_envs: int, work: Work) -> Prediction:
    found = _settings(config, costs, cores, most_envs)
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
    """The best of each kind, and what was asked, as long as there is time for one more; one at least."""
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
    """The fastest measured. Those that its windows do not tell apart, or that are within 3%, go by the prediction.

    So do all of them where other programmes take so much that there is no measuring.
    """
    if not tried:
        return None
    if crowded(tried):
        return ranked([one.prediction for one in tried])[0]
    best = max(tried, key=lambda one: one.trial.steps_per_s).trial
    least = min(best.lowest, (1.0 - _NEAR) * best.steps_per_s)
    alike = [one.prediction for one in tried if one.trial.steps_per_s >= least]
    return ranked(alike)[0]
