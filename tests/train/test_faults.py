"""What goes wrong in a run is told whole, and leaves the last good checkpoint; evaluations end in time."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from rich.console import Console  # noqa: E402

from relive.agents.registry import AGENTS  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train import Callback, CurvePoint, EnvironmentRaised, NonFiniteLoss, Snapshot, preset, train  # noqa: E402
from relive.train.acting.environments import describe  # noqa: E402
from relive.train.watching.checkpoint import load_checkpoint  # noqa: E402
from train.batches import discrete_batch, discrete_spaces  # noqa: E402
from train.runs import has_checkpoint  # noqa: E402

SMALL: dict[str, object] = {
    "acting.num_actors": 1, "replay.min_size": 100, "evaluation.num_episodes": 2, "evaluation.num_final_episodes": 2,
    "agent.batch_size": 16, "limits.max_minutes": 1.0,
}  # fmt: skip
DISCRETE: dict[str, object] = {**SMALL, "agent.network.hidden": (16,)}


def all_finite(state: Any) -> bool:
    if isinstance(state, dict):
        return all(all_finite(value) for value in state.values())
    return not isinstance(state, torch.Tensor) or bool(torch.isfinite(state.to(torch.float64)).all())


@pytest.mark.parametrize(
    ("prioritized", "topology"), [(True, "actors"), (False, "actors"), (True, "learners(2, async)")]
)
def test_a_loss_that_is_not_finite_stops_the_run(prioritized: bool, topology: str, tmp_path: Path) -> None:
    """The rewards of this world overflow float32 as soon as they are squared, or summed over three steps."""
    settings = {
        **DISCRETE, "agent.n_step": 10, "agent.priority_exponent": 0.6 if prioritized else 0.0, "topology": topology,
    }  # fmt: skip
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteLoss) as caught:
        train(preset("dqn", "train.worlds:Overflowing-v0", settings), folder)
    error = caught.value
    assert not np.isfinite(error.value) and error.num_updates <= 26
    assert error.checkpoint == str(folder / "checkpoint.pt") and error.checkpoint in str(error)
    assert f"--resume {folder}" in str(error)
    state, progress = load_checkpoint(folder)
    assert all_finite(state) and state["num_updates"] < error.num_updates and progress.num_sessions == 1
    assert multiprocessing.active_children() == []


def test_an_agent_that_is_spoilt_is_neither_kept_nor_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relive.agents.sac import SAC

    whole = SAC.update

    def update(self: SAC, batch: Any) -> Any:
        done = whole(self, batch)
        if self.num_updates == 60:
            self.actor.values[0] = float("nan")
        return done

    monkeypatch.setattr(SAC, "update", update)
    settings = {**SMALL, "agent.hidden": (16,), "limits.checkpoint_period_s": 0.001}
    with pytest.raises(NonFiniteLoss) as caught:
        train(preset("sac", "Pendulum-v1", settings), tmp_path / "run")
    assert 60 <= caught.value.num_updates <= 75
    state, _ = load_checkpoint(tmp_path / "run")
    assert all_finite(state) and state["num_updates"] < 60


def test_an_environment_that_raises_says_which_actor_and_step(tmp_path: Path) -> None:
    settings = {**DISCRETE, "environment.num_envs_per_actor": 1}
    with pytest.raises(EnvironmentRaised) as caught:
        train(preset("dqn", "train.worlds:Faulty-v0", settings), tmp_path / "run")
    error = caught.value
    # Gymnasium resets on the step after an end, which is none of the environment's: 150 are 150.
    assert (error.actor, error.step) == (0, 150)
    assert "ArithmeticError: the world ends at step 150" in error.traceback and "worlds.py" in error.traceback
    assert "actor 0" in str(error) and "step 150" in str(error) and "worlds.py" in str(error)
    assert has_checkpoint(tmp_path / "run") and multiprocessing.active_children() == []


def test_a_slow_environment_has_a_curve_and_ends_in_time(tmp_path: Path) -> None:
    """Its episodes never end: evaluations are cut, and say that they were."""
    said = Console(record=True, width=200, file=open(tmp_path / "log", "w"))
    points: list[CurvePoint] = []
    doing: set[str] = set()

    class Watch(Callback):
        def on_evaluation(self, point: CurvePoint) -> None:
            points.append(point)

        def on_progress(self, now: Snapshot) -> None:
            doing.add(now.doing)

    settings = {**DISCRETE, "limits.max_minutes": 0.2, "evaluation.stop_return": 1.0}
    began_s = time.monotonic()
    result = train(
        preset("dqn", "train.worlds:Endless-v0", settings), tmp_path / "run", console=said, callbacks=[Watch()]
    )
    assert time.monotonic() - began_s < 12 + 3 + 3 + 10
    assert "limit" in result.ending and result.num_cut == 2 and len(result.returns) == 2
    assert points and all(point.num_cut == 2 for point in points) and (tmp_path / "run" / "curve.png").exists()
    assert any(text.startswith("evaluating: 0 of 2") for text in doing)
    text = said.export_text()
    assert "final evaluation: 0 of 2 episodes" in text and "cut by the time limit" in text


def test_the_first_evaluation_comes_early(tmp_path: Path) -> None:
    points: list[CurvePoint] = []

    class First(Callback):
        def on_evaluation(self, point: CurvePoint) -> bool:
            points.append(point)
            return len(points) == 2

    train(preset("dqn", "CartPole-v1", {**DISCRETE, "evaluation.period_updates": 100}), tmp_path, callbacks=[First()])
    assert [point.num_updates for point in points] == [10, 100]


@pytest.mark.parametrize("agent", list(AGENTS))
def test_a_state_that_does_not_fit_changes_nothing(agent: str) -> None:
    small = {"agent.batch_size": 16}
    is_discrete = AGENTS[agent].environment == "CartPole-v1"
    wide = {**small, "agent.network.hidden" if is_discrete else "agent.hidden": (7,)}
    spaces = discrete_spaces() if is_discrete else describe("Pendulum-v1")
    one, other = (
        preset(agent, spaces.env_id, settings).agent.make(spaces, seed=seed, device="cpu")
        for seed, settings in ((0, small), (1, wide))
    )
    if is_discrete:
        one.update(discrete_batch(0))
    before, foreign = one.state_dict(), other.state_dict()
    wrongs: list[Any] = [
        foreign, {}, None, [], {**before, "more": {}}, {**before, "num_updates": "many"}, {**before, "num_updates": -1},
    ]  # fmt: skip
    for name in before:  # one part of another agent, or none at all: those before it in the order are not kept either
        if name not in ("num_updates", "generator", "temperature", "temperature_optimizer"):
            wrongs.append({**before, **dict.fromkeys([name], foreign[name])})
        wrongs += [{**before, name: None}, {**before, name: {"a": 1}}]
    fresh = preset(agent, spaces.env_id, small).agent.make(spaces, seed=5, device="cpu")
    kept = fresh.state_dict()
    for wrong in wrongs:
        with pytest.raises(InvalidConfig):
            fresh.load_state_dict(wrong)
        assert same(fresh.state_dict(), kept)
    fresh.load_state_dict(before)
    assert same(fresh.state_dict(), before) and fresh.num_updates == one.num_updates


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_checkpoint_of_another_form_is_refused(tmp_path: Path) -> None:
    for wrong in (
        [1],
        {"format": 2},
        {"format": 2, "counters": {"nothing": 1}, "kept": {}, "curve": [], "learner": {}},
    ):
        torch.save(wrong, tmp_path / "checkpoint.pt")
        with pytest.raises(InvalidConfig):
            load_checkpoint(tmp_path)
