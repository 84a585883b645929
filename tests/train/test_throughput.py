"""The tuner's model, by hand: no clock and no process."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest

pytest.importorskip("torch", reason="the topologies of a run are read with its configuration")

from relive.errors import InvalidConfig  # noqa: E402
from relive.train import tune  # noqa: E402
from relive.train.config import TrainConfig, preset  # noqa: E402
from relive.train.settings import changed  # noqa: E402
from relive.train.setup import prepare  # noqa: E402
from relive.train.tuning import tuner  # noqa: E402
from relive.train.tuning.throughput import (  # noqa: E402
    Costs,
    Limit,
    Setting,
    Work,
    at,
    best_of_each_kind,
    candidates,
    envs_that_fit,
    predict,
    ranked,
)
from relive.train.tuning.trial import Trial  # noqa: E402

FREE = Costs(  # nothing is slower for being done at once, nothing is published
    cores=2, steps=((1, 100e-6), (4, 160e-6)), steps_here=((1, 100e-6), (4, 160e-6)), slow_here=((1, 1.0),), parts={},
    samples=((64, 50e-6),), updates=((32, 500e-6), (64, 950e-6)),
    gradients=1.0, sync_s=80e-6, add_s=20e-6, publish_s=0.0, take_s=0.0, slow_acting=1.0, slow_learning=1.0, spread=0.0,
)  # fmt: skip
ONE = Setting(num_actors=1, num_envs=4, batch_size=64)
EACH = Work(updates_per_step=1.0, publish_period=25)


def with_(**changes: float) -> Costs:
    return dataclasses.replace(FREE, **changes)


def test_a_curve_is_straight_between_its_points_and_beyond() -> None:
    curve = ((10, 1.0), (20, 2.0), (40, 3.0))
    assert [at(curve, size) for size in (10, 15, 20, 30, 40)] == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0])
    assert at(curve, 80) == pytest.approx(5.0) and at(curve, 5) == pytest.approx(0.5)
    assert at(((10, 3.0), (20, 2.0)), 100) == 2.0, "what was less by chance does not go on getting less"
    assert at(((10, 1.0), (20, 4.0)), 1) == 0.0 and at(((7, 2.0),), 1000) == 2.0


def test_the_slower_side_is_the_pace() -> None:
    learning = predict(FREE, ONE, EACH)
    assert learning.steps_per_s == pytest.approx(1 / 1000e-6) and learning.limit is Limit.LEARNING
    assert learning.busy == pytest.approx(1.0 + 1000 * 40e-6), "the learner's core, and what acting takes"
    acting = predict(FREE, ONE, Work(1 / 64, 25))
    assert acting.steps_per_s == pytest.approx(1 / 40e-6) and acting.limit is Limit.ACTING
    assert acting.updates_per_s == pytest.approx(acting.steps_per_s / 64)
    twice = predict(FREE, dataclasses.replace(ONE, num_actors=2), Work(1 / 64, 25))
    assert twice.limit is Limit.CORES, "two actors and a learner on two cores"
    assert twice.steps_per_s == pytest.approx(2 / (40e-6 + 1000e-6 / 64))


def test_one_process_does_one_thing_after_the_other() -> None:
    inline = predict(FREE, dataclasses.replace(ONE, inline=True), EACH)
    assert inline.steps_per_s == pytest.approx(1 / (1000e-6 + 40e-6)) and inline.busy == pytest.approx(1.0)
    assert inline.limit is Limit.LEARNING
    assert predict(FREE, dataclasses.replace(ONE, inline=True), Work(1 / 64, 25)).limit is Limit.ACTING
    two = predict(FREE, dataclasses.replace(ONE, inline=True, num_learners=2), EACH)
    assert two.steps_per_s == pytest.approx(1 / (50e-6 + 500e-6 + 100e-6 + 40e-6)), "the first of them acts"


def test_in_one_process_what_was_measured_in_steps_counts() -> None:
    """Acting and learning by turns in one process find the caches cold: the figures of one process are used."""
    here = dataclasses.replace(FREE, steps_here=((1, 200e-6), (4, 400e-6)), slow_here=((1, 3.0), (4, 2.0)))
    inline = dataclasses.replace(ONE, inline=True)
    assert predict(here, inline, EACH).steps_per_s == pytest.approx(1 / (2000e-6 + 100e-6))
    one = dataclasses.replace(inline, num_envs=1)
    assert predict(here, one, EACH).steps_per_s == pytest.approx(1 / (3000e-6 + 200e-6))
    two = predict(here, dataclasses.replace(inline, num_learners=2), EACH)
    assert two.steps_per_s == pytest.approx(1 / (2 * (50e-6 + 500e-6) + 100e-6 + 100e-6)), (
        "what they meet for is as it is"
    )
    assert predict(here, ONE, EACH) == predict(FREE, ONE, EACH)


def test_one_core_is_shared() -> None:
    shared = predict(FREE, ONE, EACH, cores=1)
    assert shared.limit is Limit.CORES and shared.steps_per_s == pytest.approx(1 / (1000e-6 + 40e-6))


def test_what_is_done_at_once_is_slower_by_as_much_as_it_is_at_once() -> None:
    crowded = predict(with_(slow_learning=2.0), ONE, EACH)
    # The learner's share is r x u (1 + the actor's share) = 1: 1000 us x (1 + 40 us x) = 1 s.
    rate = crowded.steps_per_s
    assert 1000e-6 * rate * (1 + 40e-6 * rate) == pytest.approx(1.0, rel=1e-6)
    acting = predict(with_(slow_acting=2.0), ONE, Work(1 / 16, 25))
    rate = acting.steps_per_s
    assert acting.limit is Limit.ACTING and 40e-6 * rate * (1 + 1000e-6 / 16 * rate) == pytest.approx(1.0, rel=1e-6)
    spread = predict(with_(slow_learning=2.0), ONE, EACH, cores=5).steps_per_s
    assert 1000e-6 * spread * (1 + 40e-6 * spread / 4) == pytest.approx(1.0, rel=1e-6), "less where cores are free"


def test_learners_share_the_rows_and_wait_for_each_other() -> None:
    two = predict(FREE, dataclasses.replace(ONE, num_learners=2), EACH, cores=3)
    assert two.steps_per_s == pytest.approx(1 / (50e-6 + 500e-6 + 100e-6))
    four = predict(FREE, dataclasses.replace(ONE, num_learners=4), EACH, cores=5)
    assert four.steps_per_s == pytest.approx(1 / (50e-6 + 275e-6 + 140e-6)), "extrapolated down to 16 rows: 275 us"
    on_one = predict(FREE, dataclasses.replace(ONE, num_learners=2), EACH, cores=1)
    assert on_one.limit is Limit.CORES and on_one.steps_per_s == pytest.approx(1 / (650e-6 + 600e-6 + 40e-6))


def test_publications_cost_both_sides() -> None:
    costs = with_(publish_s=2500e-6, take_s=1000e-6)
    assert predict(costs, ONE, EACH).steps_per_s == pytest.approx(1 / (1000e-6 + 100e-6))
    acting = predict(costs, ONE, Work(1 / 64, 1), cores=4)
    assert acting.limit is Limit.ACTING
    assert acting.steps_per_s == pytest.approx(min(1 / (40e-6 + 1000e-6 / 64), 64 / 3500e-6))


def test_a_thread_that_gathers_takes_no_time_of_the_learner() -> None:
    ahead = predict(FREE, ONE, Work(1.0, 25, gathers_ahead=True))
    assert ahead.steps_per_s == pytest.approx(1 / 950e-6) and ahead.busy == pytest.approx(1 + (40 + 50) / 950)


def test_what_was_not_measured_is_said() -> None:
    two = dataclasses.replace(ONE, num_learners=2)
    assert predict(FREE, ONE, EACH).beyond == predict(FREE, two, EACH).beyond == ""
    assert "measured on 2" in predict(FREE, ONE, EACH, cores=8).beyond
    assert "not measured" in predict(dataclasses.replace(FREE, sync_s=None), two, EACH).beyond
    assert "measured with 2" in predict(FREE, dataclasses.replace(ONE, num_learners=4), EACH).beyond
    for cores in (0, -1, 10**6):
        with pytest.raises(InvalidConfig):
            predict(FREE, ONE, EACH, cores=cores)


@pytest.mark.forms(2)
@pytest.mark.parametrize("cores", [2, 4, 16, pytest.param(64, marks=pytest.mark.thorough)])
def test_more_never_makes_a_limit_fall(cores: int) -> None:
    """Every prediction keeps its limits, and more cores are never less."""
    costs = with_(slow_acting=1.5, slow_learning=1.8, publish_s=1e-4, take_s=5e-5)
    for setting in candidates(cores, (64,), 16):
        here, more = predict(costs, setting, EACH, cores), predict(costs, setting, EACH, 2 * cores)
        assert 0 < here.steps_per_s <= more.steps_per_s * (1 + 1e-9) and 0 < here.busy <= cores + 1e-9
        assert math.isclose(here.updates_per_s, here.steps_per_s)


def test_candidates_divide_the_batch_and_fit_the_cores() -> None:
    for cores in (1, 2, 3, 8):
        found = list(candidates(cores, (64, 6), 4))
        assert len(found) == len(set(found)) and any(one.inline for one in found)
        assert Setting(1, 1, 64) in found
        for one in found:
            assert one.batch_size % one.num_learners == 0 and one.num_envs in (1, 2, 4)
            assert one.num_processes <= cores + 1
    assert max(one.num_learners for one in candidates(8, (64,), 1)) == 8
    assert [envs_that_fit(size) for size in (1, 79, 80, 400, 10**6)] == [1, 1, 2, 8, 16]


def test_of_what_is_alike_the_simpler_comes_first() -> None:
    found = [predict(FREE, dataclasses.replace(ONE, num_envs=envs), EACH) for envs in (4, 2, 1)]
    inline = predict(FREE, dataclasses.replace(ONE, inline=True), EACH)
    order = ranked([*found, inline])
    assert [one.setting.num_envs for one in order] == [1, 2, 4, 4] and order[-1].setting.inline
    assert [one.setting.inline for one in best_of_each_kind(order)] == [False, True]
    assert ranked([]) == []


def test_a_setting_says_itself_and_its_options() -> None:
    assert str(ONE) == "actors(1), 4 environments each, batch 64"
    three = Setting(3, 1, 64, num_learners=2)
    assert str(three) == "learners(2, sync) of 3 actors, 1 environment each, batch 64"
    options = {path: str(value) for path, value in three.options.items()}
    assert options.pop("topology") == "learners(2, sync)" and options.pop("acting.num_actors") == "3"
    assert options.pop("environment.num_envs_per_actor") == "1" and options.pop("agent.batch_size") == "64"
    assert options == {"acting.inline": "False"}
    alone = Setting(1, 1, 64, num_learners=2, inline=True)
    assert str(alone) == "learners(2, sync) that act, 1 environment each, batch 64"
    assert alone.options["acting.inline"] is True and alone.num_processes == 2
    assert Setting(1, 1, 64, inline=True).options["acting.inline"] is False


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_every_candidate_is_a_run(cores: int) -> None:
    asked = preset("dqn", "CartPole-v1", {"acting.inline": True, "topology": "learners(2, sync)"})
    for setting in candidates(cores, (64,), 2):
        config = changed(asked, setting.options)
        assert (config.num_actors, config.acts_inline) == (setting.num_actors, setting.inline)
        assert config.topology.num_learners == setting.num_learners


def test_costs_that_cannot_be_are_refused() -> None:
    for changes in (
        {"steps": ()}, {"updates": ((64, 1.0), (32, 1.0))}, {"samples": ((64, 0.0),)}, {"slow_acting": 0.5},
    ):  # fmt: skip
        with pytest.raises(InvalidConfig):
            dataclasses.replace(FREE, **changes)


# ---- settings that a run refuses -------------------------------------------------------------------------------------


def small(more: dict[str, object]) -> TrainConfig:
    return preset("dqn", "CartPole-v1", {"agent.batch_size": 16, "agent.network.hidden": (16,), **more})


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """Four cores, and no measurement; returns the settings that are tried."""
    tried: list[Setting] = []

    def run_trial(config: TrainConfig, setting: Setting, seconds: float) -> Trial:
        tried.append(setting)
        return Trial(100.0, 100.0, 100.0, 100.0, 0.0, 0.0)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    monkeypatch.setattr(tuner, "calibrate", lambda *told: FREE)
    monkeypatch.setattr(tuner, "run_trial", run_trial)
    return tried


def test_settings_that_a_run_refuses_are_neither_predicted_nor_tried(unmeasured: list[Setting]) -> None:
    """The table has room for replay.min_size items with four lanes, of three steps each, and with no more."""
    asked = small({"replay.min_size": 400, "replay.capacity": 412, "environment.num_envs_per_actor": 2})
    tuning = tune(asked)
    predicted = [one.setting for one in tuning.predictions]
    assert {one.num_actors * one.num_envs for one in predicted} == {1, 2, 3, 4} and unmeasured
    for setting in {*unmeasured, *predicted, *(one.setting for one in tuning.more_cores)}:
        prepare(changed(asked, setting.options))
    with pytest.raises(InvalidConfig, match="replay.capacity"):
        prepare(changed(asked, {"environment.num_envs_per_actor": 3}))


def test_an_asked_setting_that_a_run_refuses_is_not_tried(unmeasured: list[Setting]) -> None:
    asked = small({"replay.min_size": 400, "replay.capacity": 412, "environment.num_envs_per_actor": 3})
    tuning = tune(asked)
    assert Setting(2, 3, 16) not in unmeasured and unmeasured
    prepare(tuning.config)
    with pytest.raises(InvalidConfig, match=r"replay.capacity.*>= 403"):
        tune(changed(asked, {"replay.capacity": 402}))
