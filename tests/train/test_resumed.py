"""Runs that go on: for another return, in another environment, with other options, and after a refused session."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
from gymnasium.envs.registration import EnvSpec  # noqa: E402

import relive.train.setup as setups  # noqa: E402
from relive.errors import InvalidConfig, StorageFull  # noqa: E402
from relive.train import (  # noqa: E402
    Callback,
    EnvironmentRaised,
    TrainConfig,
    evaluate_run,
    load_policy,
    preset,
    train,
)
from relive.train.checkpoint import load_checkpoint  # noqa: E402
from relive.train.learner import Learner  # noqa: E402
from relive.train.settings import changed  # noqa: E402
from relive.train.watching.checkpoint import newest_checkpoint  # noqa: E402
from relive.train.watching.result import Ending  # noqa: E402
from train import worlds  # noqa: E402

SMALL: dict[str, object] = {
    "topology": "inline", "acting.num_actors": 1, "replay.min_size": 100, "replay.updates_per_step": 0.25,
    "agent.network.hidden": (8,), "agent.batch_size": 16, "update": "handwritten", "limits.max_steps": 400,
    "evaluation.num_episodes": 1, "evaluation.num_confirm_episodes": 1, "evaluation.num_final_episodes": 1,
    "evaluation.period_updates": 10,
}  # fmt: skip


def small(stop_return: float | None, **more: object) -> TrainConfig:
    settings = {path.replace("__", "."): value for path, value in more.items()}
    return preset("dqn", "CartPole-v1", {**SMALL, "evaluation.stop_return": stop_return, **settings})


# ---- a return that the run has not reached -------------------------------------------------------------------------


def test_a_solved_run_learns_on_for_a_return_that_it_has_not_reached(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    solved = train(small(1.0), folder)
    assert solved.ending == Ending.SOLVED.value
    reached = load_checkpoint(folder)[1].solved_return
    assert 1.0 < reached <= 500.0  # an episode of CartPole has two steps at least
    for stop_return in (None, 1.0, reached):  # the first of them is a config.json that says 1
        again = train(None if stop_return is None else small(stop_return), folder, resume=True)
        assert (again.ending, again.num_updates) == (Ending.SOLVED.value, solved.num_updates)
    num_steps, num_updates = solved.num_steps, solved.num_updates
    for stop_return in (None, 1e6):
        more = small(stop_return, limits__max_steps=num_steps + 200)
        result = train(more, folder, resume=True)
        assert result.ending == Ending.LIMIT.value and result.num_updates > num_updates
        num_steps, num_updates = result.num_steps, result.num_updates
        assert not load_checkpoint(folder)[1].solved


@pytest.mark.parametrize(("topology", "table"), [("inline", "always"), ("inline", "never"), ("actors(1)", "always")])
def test_a_run_at_its_limit_learns_no_more(topology: str, table: str, tmp_path: Path) -> None:
    folder, config = tmp_path / "run", small(None, topology=topology, checkpoint__table=table)
    first = train(config, folder)
    for more in ({}, {}, {"limits__max_steps": 10**6, "limits__max_minutes": 1e-6}):
        again = train(small(None, topology=topology, checkpoint__table=table, **more), folder, resume=True)
        assert (again.ending, again.num_updates) == (Ending.LIMIT.value, first.num_updates) and again.returns
        assert again.num_steps == first.num_steps or topology != "inline"
    assert load_checkpoint(folder)[0]["num_updates"] == first.num_updates
    longer = train(small(None, topology=topology, limits__max_steps=800), folder, resume=True)
    assert longer.num_updates > first.num_updates


def test_a_checkpoint_that_does_not_say_which_return_it_reached_has_that_of_its_last_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(1.0, checkpoint__table="never"), folder)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["counters"]["solved_return"]
    torch.save(state, folder / "checkpoint.pt")
    progress = load_checkpoint(folder)[1]
    mean = progress.curve[-1].evaluation_return
    assert progress.has_reached(mean) and not progress.has_reached(mean + 1.0) and not progress.has_reached(None)


# ---- another environment -------------------------------------------------------------------------------------------


BLIND, SHORT, WIDE = "train.worlds:Blind-v0", "train.worlds:Short-v0", "train.worlds:Wide-v0"  # returns 20, 5, 20
UNREADY = "train.worlds:Unready-v0"


def longer(folder: Path, **more: object) -> TrainConfig:
    """The options of the run, for 400 steps more."""
    config = TrainConfig.load(folder / "config.json")
    settings = {path.replace("__", "."): value for path, value in more.items()}
    return changed(config, {"limits.max_steps": load_checkpoint(folder)[1].num_steps + 400, **settings})


@pytest.mark.parametrize("table", ["always", "never"])
def test_the_best_policy_of_another_environment_does_not_count(table: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = train(small(None, environment__env_id=BLIND, checkpoint__table=table), folder)
    assert first.kept_return == 20.0
    again = train(longer(folder, environment__env_id=SHORT), folder, resume=True)
    assert (again.env_id, again.kept_return, again.num_sessions) == (SHORT, 5.0, 2)
    assert again.kept_updates > first.num_updates
    curve = load_checkpoint(folder)[1].curve
    assert curve and {point.evaluation_return for point in curve} == {5.0}
    third = train(longer(folder), folder, resume=True)  # in the same environment the best policy stays
    assert third.env_id == SHORT and len(load_checkpoint(folder)[1].curve) > len(curve)


def test_a_run_that_another_environment_solved_learns_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    solved = train(small(10.0, environment__env_id=BLIND), folder)
    assert solved.ending == Ending.SOLVED.value
    again = train(longer(folder, environment__env_id=SHORT), folder, resume=True)
    assert again.ending == Ending.LIMIT.value and again.num_updates > solved.num_updates


def test_a_session_in_another_environment_that_ends_before_its_first_checkpoint_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a killed one: its actors do not start, and nothing is saved."""
    folder = tmp_path / "run"
    first = train(small(None, environment__env_id=BLIND), folder)

    def killed(learner: Learner) -> Ending:
        raise SystemExit(137)

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(Learner, "run", killed)
        train(longer(folder, environment__env_id=SHORT), folder, resume=True)
    assert load_policy(folder).config.environment.env_id == BLIND
    found = newest_checkpoint(folder)
    assert found is not None and found.has_table
    assert (found.progress.kept_return, found.progress.kept_updates) == (20.0, first.kept_updates)
    assert train(longer(folder, environment__env_id=SHORT), folder, resume=True).kept_return == 5.0


@pytest.mark.parametrize("topology", ["inline", "actors(1)"])
@pytest.mark.parametrize("table", ["always", "never"])
def test_a_session_in_another_environment_that_fails_keeps_table_best_policy_and_curve(
    table: str, topology: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = train(small(1.0, environment__env_id=BLIND, checkpoint__table=table, topology=topology), folder)
    curve = load_checkpoint(folder)[1].curve
    with pytest.raises(EnvironmentRaised, match="it has no license"):
        train(longer(folder, environment__env_id=UNREADY), folder, resume=True)
    found = newest_checkpoint(folder)
    assert found is not None and found.has_table == (table == "always")
    solved = train(longer(folder, environment__env_id=BLIND), folder, resume=True)
    assert (solved.ending, solved.num_updates) == (Ending.SOLVED.value, found.learner["num_updates"])
    assert (solved.kept_return, solved.kept_updates) == (20.0, first.kept_updates)
    assert load_checkpoint(folder)[1].curve == curve and load_policy(folder).config.environment.env_id == BLIND
    more = train(longer(folder, evaluation__stop_return=None), folder, resume=True)
    assert more.num_updates > solved.num_updates and load_checkpoint(folder)[1].curve[: len(curve)] == curve


def test_a_checkpoint_before_the_first_evaluation_has_the_best_policy_of_the_environment_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = train(small(None, environment__env_id=BLIND, checkpoint__table="never"), folder)
    envs: list[str] = []

    class Stopping(Callback):
        def on_checkpoint(self, path: Path, num_updates: int) -> bool:
            envs.append(TrainConfig.load(folder / "config.json").environment.env_id)
            return True

    train(longer(folder, environment__env_id=SHORT), folder, resume=True, callbacks=[Stopping()])
    progress = load_checkpoint(folder)[1]
    assert envs == [SHORT, SHORT] and (progress.env_id, progress.kept_updates) == (BLIND, first.kept_updates)
    kept, last = load_policy(folder), load_policy(folder, which="last")
    assert kept.config.environment.env_id == SHORT
    assert all((kept.parameters[name] == value).all() for name, value in last.parameters.items())
    shutil.copytree(folder, tmp_path / "back")
    assert train(longer(folder), folder, resume=True).kept_return == 5.0
    back = train(longer(folder, environment__env_id=BLIND), tmp_path / "back", resume=True)
    assert back.kept_return == 20.0


def test_the_returns_of_a_checkpoint_without_the_name_of_its_environment_are_those_of_config_json(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    train(small(None, environment__env_id=BLIND, checkpoint__table="never"), folder)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert state.pop("env_id") == BLIND and state["kept"]
    torch.save(state, folder / "checkpoint.pt")
    shutil.copytree(folder, tmp_path / "other")
    curve = load_checkpoint(folder)[1].curve
    kept = load_policy(folder).parameters
    assert all((kept[name] == value.numpy()).all() for name, value in state["kept"].items())
    train(longer(folder), folder, resume=True)
    assert load_checkpoint(folder)[1].curve[: len(curve)] == curve
    assert train(longer(folder, environment__env_id=SHORT), tmp_path / "other", resume=True).kept_return == 5.0


@pytest.mark.parametrize("table", ["always", "never"])
def test_an_environment_with_other_spaces_is_refused(table: str, tmp_path: Path) -> None:
    """The table's columns would be the same."""
    folder = tmp_path / "run"
    train(small(None, environment__env_id=BLIND, checkpoint__table=table), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InvalidConfig, match=r"environment.env_id.*Blind-v0.*Box\(-1.*Wide-v0.*Box\(-2"):
        train(longer(folder, environment__env_id=WIDE), folder, resume=True)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert train(longer(folder), folder, resume=True).num_sessions == 2


def test_another_environment_is_refused_where_the_one_before_cannot_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    gymnasium.register("Gone-v0", entry_point="train.worlds:World")
    train(small(None, environment__env_id="Gone-v0"), folder)
    del gymnasium.registry["Gone-v0"]
    with pytest.raises(InvalidConfig, match=r"environment.env_id.*'Gone-v0'.*Short-v0"):
        train(longer(folder, environment__env_id=SHORT), folder, resume=True)


class Changed(worlds.World):
    """Has observations of six numbers."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)


class Third(worlds.World):
    """Has a third action."""

    action_space = gymnasium.spaces.Discrete(3)


@pytest.mark.parametrize("table", ["always", "never"])
@pytest.mark.parametrize(
    ("world", "now"), [(Changed, r"Box\(6,\) of float32 and actions Discrete\(2\)"), (Third, r"actions Discrete\(3\)")]
)
def test_spaces_that_have_changed_under_one_id_are_named(
    world: type, now: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    specs = gymnasium.registry
    monkeypatch.setitem(specs, "Mine-v0", EnvSpec("Mine-v0", entry_point=worlds.World))
    train(small(None, environment__env_id="Mine-v0", checkpoint__table=table), folder)
    monkeypatch.setitem(specs, "Mine-v0", EnvSpec("Mine-v0", entry_point=world))
    expected = rf"spaces of.*Mine-v0.*expected observations Box\(4,\) of float32 and actions Discrete\(2\).*got .*{now}"
    for call in (lambda: train(longer(folder), folder, resume=True), lambda: load_policy(folder)):
        with pytest.raises(InvalidConfig, match=expected) as caught:
            call()
        assert "checkpoint.table" not in str(caught.value)


# ---- the options of a session --------------------------------------------------------------------------------------


def test_the_options_of_a_resumed_session_are_those_of_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(None, checkpoint__table="never"), folder)
    given = longer(folder, agent__n_step=2, checkpoint__table="always", environment__seed=7)
    second = train(given, folder, resume=True)
    assert TrainConfig.load(folder / "config.json") == given
    third = train(longer(folder), folder, resume=True)  # the table in its save has items of two steps
    assert (third.num_sessions, third.seed) == (3, 7) and third.num_updates > second.num_updates


def test_an_evaluation_of_a_resumed_run_begins_with_the_episodes_of_its_result(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(None), folder)
    again = train(longer(folder, environment__seed=7), folder, resume=True)
    played = evaluate_run(folder, num_episodes=1)
    assert json.loads((folder / "result.json").read_text())["seed"] == 7
    assert (played.seed, tuple(played.returns)) == (7, again.returns)


def test_a_solved_run_that_only_plays_again_keeps_the_options_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(1.0), folder)
    again = train(changed(TrainConfig.load(folder / "config.json"), {"environment.seed": 7}), folder, resume=True)
    assert again.ending == Ending.SOLVED.value
    assert TrainConfig.load(folder / "config.json").environment.seed == again.seed == 7


@pytest.mark.parametrize(
    ("change", "before", "now"),
    [
        ({"agent__n_step": 3}, "agent.n_step = 1", "agent.n_step = 3"),
        ({"agent__gamma": 0.5}, "agent.gamma = 0.99", "agent.gamma = 0.5"),
        ({"agent__priority_exponent": 0.5}, "(agent.priority_exponent) = Uniform()", "= Prioritized("),
    ],
)
def test_a_table_of_other_items_is_refused_by_the_names_of_the_options(
    change: dict[str, object], before: str, now: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(small(None, agent__n_step=1, agent__gamma=0.99, agent__priority_exponent=0.0), folder)
    with pytest.raises(InvalidConfig) as caught:
        train(longer(folder, **change), folder, resume=True)
    text = str(caught.value)
    assert before in text and now in text and "checkpoint.table=never" in text
    assert "Index(" not in text and len(text.replace(str(folder), "")) < 300


# ---- a session that is refused -------------------------------------------------------------------------------------


def test_a_refused_session_keeps_the_options_of_a_run_that_had_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session was killed before its first checkpoint: the directory has config.json alone."""

    def full(*arguments: object) -> None:
        raise StorageFull("/dev/shm", 2, 1)

    folder = tmp_path / "run"
    folder.mkdir()
    small(None).save(folder / "config.json")
    with monkeypatch.context() as patched:
        patched.setattr(setups, "make_table", full)
        for resume in (True, False):
            with pytest.raises(StorageFull):
                train(None if resume else small(None), folder if resume else tmp_path / "new", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # a new run that is refused leaves no directory
    assert train(run_dir=folder, resume=True).num_sessions == 1
