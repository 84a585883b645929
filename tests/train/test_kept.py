"""What a run keeps: policies of finite evaluations, other episodes after a resume, whole files, steps in order."""

from __future__ import annotations

import json
import random
import shutil
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from gymnasium.envs.classic_control.cartpole import CartPoleEnv  # noqa: E402
from rich.console import Console  # noqa: E402

import relive.train.setup as setups  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train import (  # noqa: E402
    Callback,
    CurvePoint,
    EnvironmentHangs,
    EnvironmentRaised,
    Snapshot,
    TooFewUpdates,
    TrainConfig,
    evaluate_run,
    preset,
    train,
)
from relive.train.acting import inline  # noqa: E402
from relive.train.acting.noise import environment_keys  # noqa: E402
from relive.train.checkpoint import Progress, load_checkpoint, save_checkpoint  # noqa: E402
from relive.train.evaluating import evaluate  # noqa: E402
from relive.train.run import with_streams_of  # noqa: E402
from relive.train.setup import prepare  # noqa: E402
from relive.train.signals import _Listening  # noqa: E402
from relive.train.watching.progress import ProgressReporter  # noqa: E402
from relive.train.watching.result import Ending  # noqa: E402
from train import worlds  # noqa: E402
from train.runs import has_checkpoint  # noqa: E402

SMALL: dict[str, object] = {
    "topology": "inline", "acting.num_actors": 2, "replay.min_size": 100, "replay.updates_per_step": 0.25,
    "agent.network.hidden": (8,), "agent.batch_size": 16, "update": "handwritten", "limits.max_steps": 800,
    "evaluation.num_episodes": 2, "evaluation.num_final_episodes": 2, "evaluation.stop_return": None,
    "evaluation.period_updates": 50,
}  # fmt: skip
WILLED = "train.worlds:Willed-v0"


def small(env_id: str = "CartPole-v1", **more: object) -> TrainConfig:
    return preset("dqn", env_id, {**SMALL, **{path.replace("__", "."): value for path, value in more.items()}})


# ---- updates ---------------------------------------------------------------------------------------------------------


def test_a_capacity_that_all_lanes_can_fill_is_asked_for(tmp_path: Path) -> None:
    """8 lanes, n-step returns of 3: three steps in each lane at which no item begins yet."""
    for capacity in (100, 102, 123):
        with pytest.raises(InvalidConfig, match=r"replay.capacity.*>= 124"):
            train(small(replay__capacity=capacity), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    result = train(small(replay__capacity=124, limits__max_steps=1500), tmp_path / "run")
    assert result.num_updates >= 300  # of 350 that 0.25 a step ask for after the fill


@pytest.mark.parametrize("topology", ["inline", "actors(2)"])
def test_a_run_that_never_had_enough_items_says_so(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "_check_capacity", lambda config, index: None)
    with pytest.raises(TooFewUpdates, match="expected") as caught:
        train(small(topology=topology, replay__capacity=102), tmp_path / "run")
    error = caught.value
    assert error.num_updates == 0 and error.num_missing > 100 and error.num_items < error.min_size == 100
    assert has_checkpoint(tmp_path / "run") and not (tmp_path / "run" / "result.json").exists()


def test_a_run_that_ends_before_its_first_update_says_so(tmp_path: Path) -> None:
    with pytest.raises(TooFewUpdates, match="at least one") as caught:
        train(small(limits__max_steps=50), tmp_path / "run")
    assert (caught.value.num_updates, caught.value.num_missing) == (0, 0)


def test_a_table_that_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="max_lanes"):
        more = {"environment__num_envs_per_actor": 4096, "acting__num_actors": 1024, "replay__capacity": 10**8}
        train(small(**more), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# ---- evaluations -----------------------------------------------------------------------------------------------------


def test_an_evaluation_that_is_not_finite_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIVE_TEST_WILL", "nan")
    points: list[CurvePoint] = []

    class Points(Callback):
        def on_evaluation(self, point: CurvePoint) -> None:
            points.append(point)

    said = Console(record=True, width=200, file=(tmp_path / "log").open("w"))
    result = train(small(WILLED), tmp_path / "run", callbacks=[Points()], console=said)
    returns = [point.evaluation_return for point in points]
    assert np.isnan(returns[0]) and returns[1:] == [20.0] * (len(returns) - 1) and len(returns) >= 3
    assert result.kept_return == 20.0 and result.kept_updates == points[-1].num_updates
    assert f"evaluation after update {points[0].num_updates}: expected a finite return, got nan" in said.export_text()


def test_a_run_whose_evaluations_are_all_infinite_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinite return is no solution, and result.json is JSON."""
    monkeypatch.setattr(worlds.World, "step", _paying(float("inf"), worlds.World.step))
    config = small("train.worlds:Willed-v0", evaluation__stop_return=1.0)
    result = train(config, tmp_path / "run")
    assert result.kept_return is None and "limit" in result.ending and result.mean_return == float("inf")

    def refused(name: str) -> Any:
        raise AssertionError(name)

    written = json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refused)
    assert written["returns"] == [None, None] and written["mean_return"] is None and written["num_updates"] > 0


def _paying(reward: float, step: Any) -> Any:
    """Pays the reward in evaluations."""

    def paid(self: Any, action: Any) -> Any:
        observation, usual, *others = step(self, action)
        return observation, reward if self._seed >= 2**30 else usual, *others

    return paid


# ---- a resumed run ---------------------------------------------------------------------------------------------------


@pytest.mark.forms(1)
@pytest.mark.parametrize("topology", ["inline", "actors(2)"])
def test_a_resumed_run_plays_other_episodes(topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[set[bytes]] = []
    for session in range(3):
        streams = tmp_path / f"{session}"
        streams.mkdir()
        monkeypatch.setenv("RELIVE_TEST_STREAMS", str(streams))
        more = {"topology": topology, "limits__max_steps": 300 * (session + 1), "evaluation__period_updates": 10**6}
        result = train(small("train.worlds:Written-v0", **more), tmp_path / "run", resume=session > 0)
        assert result.seed == 0 and result.num_sessions == session + 1
        acted = [path for path in streams.iterdir() if int(path.name) < 2**30]
        assert len(acted) >= 8
        played.append({path.read_bytes()[:16] for path in acted} | {path.name.encode() for path in acted})
    assert all(not one & other for k, one in enumerate(played) for other in played[:k])


def test_every_stream_is_of_its_session_and_host() -> None:
    made = prepare(small())
    seeds = {
        (host, session): with_streams_of(made, host, session).config.environment.seed
        for host in range(3)
        for session in range(1, 20)
    }
    assert len(set(seeds.values())) == len(seeds) and seeds[0, 1] == 0, "the first session has the seed of the run"
    keys = np.concatenate([environment_keys(seed, 0, 0, 4) for seed in seeds.values()])
    assert len(np.unique(keys)) == len(keys)


def test_steps_of_tensorboard_go_on_after_a_kill(tmp_path: Path) -> None:
    """A killed session has written figures after its last checkpoint; the next one begins at the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed_at, steps in ((None, (10, 20, 30, 40)), (20, (20, 25, 35, 35, 50))):
        with ProgressReporter(Console(quiet=True), "title", tmp_path, resumed_at) as reporter:
            for step in steps:
                reporter.show(snapshot(step), at_once=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("return/acting")] == [10, 20, 25, 35, 50]


def snapshot(num_steps: int) -> Snapshot:
    return Snapshot(
        elapsed_s=1.0, num_steps=num_steps, num_updates=1, num_episodes=1, steps_per_s=1.0, updates_per_s=1.0,
        acting_return=float(num_steps), kept_return=None, metrics={"loss": 1.0}, exploration={}, fill=1, capacity=2,
        replay_ratio=1.0, learner_wait=0.0, actor_wait=0.0, num_actors=1, num_restarts=0,
    )  # fmt: skip


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_directory_that_goes_is_one_error_of_tensorboard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its own thread meets the error first, and shows no traceback beside that of the run."""
    folder, hook = tmp_path / "run", threading.excepthook
    with pytest.raises(FileNotFoundError), ProgressReporter(Console(quiet=True), "title", folder) as reporter:
        shutil.rmtree(folder)
        reporter.options({"agent.gamma": 0.9})
        reporter._writer.flush()
    assert "Traceback" not in capfd.readouterr().err and threading.excepthook is hook


def test_a_changed_bit_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {"weights": torch.randn(300, generator=generator), "moments": torch.randn(300, generator=generator)}
    save_checkpoint(tmp_path, state, Progress(kept_parameters={"w": np.ones(64, np.float32)}))
    path, rng = tmp_path / "checkpoint.pt", random.Random(1)
    whole = path.read_bytes()
    assert torch.equal(load_checkpoint(tmp_path)[0]["weights"], state["weights"])
    num_refused = 0
    for _ in range(300):
        changed, at = bytearray(whole), rng.randrange(len(whole))
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            read, progress = load_checkpoint(tmp_path)
        except InvalidConfig as refused:
            assert "checkpoint" in str(refused)
            num_refused += 1
        else:  # it was a byte between the parts: nothing that is read has changed
            assert all(torch.equal(read[name], state[name]) for name in state)
            assert (progress.kept_parameters["w"] == 1.0).all() and progress.num_sessions == 0
    assert num_refused > 200
    with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else zipfile.ZipFile(path, "w"):
        pass
    path.write_bytes(whole[:-1])
    with pytest.raises(InvalidConfig):
        load_checkpoint(tmp_path)


def test_a_relative_directory_is_that_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELIVE_TEST_WILL", "chdir")
    monkeypatch.setenv("RELIVE_TEST_STREAMS", str(elsewhere))
    result = train(small(WILLED), "run")
    assert list(elsewhere.iterdir()) == [] and result.run_dir == str(tmp_path / "run")
    assert {"config.json", "save", "result.json"} <= {path.name for path in (tmp_path / "run").iterdir()}


class FullDisk:
    """An output to a full disk: after two lines every write fails."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        if self.num_writes > 2:
            raise OSError(28, "No space left on device")
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


@pytest.mark.forms(1)
@pytest.mark.parametrize("topology", ["inline", "actors(1)"])
def test_an_output_that_fails_costs_no_update(topology: str, tmp_path: Path) -> None:
    seen = [0]

    class Progressing(Callback):
        def on_progress(self, now: Snapshot) -> None:
            seen[0] = now.num_updates

    config = small(topology=topology, limits__max_steps=10**6, limits__checkpoint_period_s=1e6)
    with pytest.raises(OSError, match="No space"):
        train(config, tmp_path / "run", callbacks=[Progressing()], console=Console(file=FullDisk()))  # type: ignore[arg-type]
    state, _ = load_checkpoint(tmp_path / "run")
    assert state["num_updates"] >= seen[0] > 0


# ---- environments that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["acting", "evaluation"])
def test_an_environment_that_hangs_ends_at_the_time_limit(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIVE_TEST_WILL", f"hang {side} 150" if side == "acting" else f"hang {side} 3")
    for module in (evaluate, inline):
        monkeypatch.setattr(module, "GRACE_S", 0.5)
    with pytest.raises(EnvironmentHangs, match="did not return") as caught:
        train(small(WILLED, limits__max_steps=10**6, limits__max_minutes=0.1), tmp_path / "run")
    assert caught.value.what.startswith("the environment of actor" if side == "acting" else "an environment of an eval")
    assert load_checkpoint(tmp_path / "run")[1].num_steps > 100


def test_a_session_that_begins_after_its_time_limit_interrupts_no_short_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    train(small(), folder)
    learner, progress = load_checkpoint(folder)
    progress.elapsed_s = 600.0
    save_checkpoint(folder, learner, progress)
    looks, is_overdue, reset = threading.Semaphore(0), _Listening._is_overdue, CartPoleEnv.reset

    def looking(self: Any, call: Any) -> bool:
        looks.release()
        return is_overdue(self, call)

    def resetting(self: Any, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Lasts for two looks at the call: the second one comes after an interrupt by the first one."""
        while looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert looks.acquire(timeout=60)
        monkeypatch.setattr(CartPoleEnv, "reset", reset)
        return reset(self, seed=seed, options=options)

    monkeypatch.setattr(_Listening, "_is_overdue", looking)
    monkeypatch.setattr(CartPoleEnv, "reset", resetting)
    result = train(small(limits__max_steps=10**6, limits__max_minutes=5), folder, resume=True)
    assert result.ending == Ending.LIMIT.value


@pytest.mark.forms(3)
@pytest.mark.parametrize("topology", ["inline", "actors(2)"])
@pytest.mark.parametrize(
    ("will", "actor", "step"), [("raise evaluation 3", None, 3), ("made", None, -1), ("raise acting 40", 0, None)]
)
def test_an_environment_that_raises_is_named(
    topology: str, will: str, actor: int | None, step: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIVE_TEST_WILL", will)
    with pytest.raises(EnvironmentRaised, match="ArithmeticError") as caught:
        train(small(WILLED, topology=topology), tmp_path / "run")
    error = caught.value
    assert (error.actor is None) == (actor is None) and (step is None or error.step == step)
    assert "worlds.py" in error.traceback and error.traceback.count("Traceback") == 1
    assert (tmp_path / "run").exists() == (will != "made")


@pytest.mark.parametrize("topology", ["inline", "actors(2)"])
def test_an_environment_that_an_actor_cannot_make_is_named(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run could make one: the fault begins after that."""

    class Later(Callback):
        def on_start(self, config: TrainConfig, run_dir: Path) -> None:
            monkeypatch.setenv("RELIVE_TEST_WILL", "made")

    with pytest.raises(EnvironmentRaised, match=r"of actor \d raised when it was made") as caught:
        train(small(WILLED, topology=topology), tmp_path / "run", callbacks=[Later()])
    assert caught.value.step == -1 and "it cannot be made" in caught.value.traceback
    assert "Traceback" not in capfd.readouterr().err


def test_evaluating_and_showing_name_what_the_environment_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small(WILLED), tmp_path / "run")
    monkeypatch.setenv("RELIVE_TEST_WILL", "raise evaluation 3")
    with pytest.raises(EnvironmentRaised, match="in step 3 of an evaluation"):
        evaluate_run(tmp_path / "run", num_episodes=2)
    monkeypatch.setenv("RELIVE_TEST_WILL", "nan")
    monkeypatch.setattr(worlds.World, "step", _paying(float("nan"), worlds.World.step))
    written = evaluate_run(tmp_path / "run", num_episodes=2).to_json()
    assert json.loads(written)["mean_return"] is None and "NaN" not in written


def test_a_resumed_run_leaves_no_result_of_an_earlier_session(tmp_path: Path) -> None:
    """The result of a run that goes on is not its result any more, however the session ends."""
    folder = tmp_path / "run"
    train(small(limits__max_steps=400), folder)
    result = folder / "result.json"
    before = result.read_bytes()
    with pytest.raises(InvalidConfig):
        train(small(replay__capacity=100), folder, resume=True)
    assert result.read_bytes() == before  # a refused run changes nothing

    class Stops(Callback):
        def on_progress(self, now: Snapshot) -> bool:
            return np.float32(now.num_steps) >= 0  # type: ignore[return-value]  # a bool of numpy

    stopped = train(small(limits__max_steps=4000), folder, resume=True, callbacks=[Stops()])
    assert stopped.stopped and not result.exists()
    train(small(limits__max_steps=stopped.num_steps + 400), folder, resume=True)
    assert json.loads(result.read_text())["num_sessions"] == 3
