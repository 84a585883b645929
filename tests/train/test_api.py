"""Runs from Python: train, its callbacks, and the policy that a run leaves."""

from __future__ import annotations

import io
import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from rich.console import Console  # noqa: E402

import relive.train  # noqa: E402
from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch  # noqa: E402
from relive.train import Callback, CurvePoint, RunResult, Snapshot, TrainConfig, load_policy, preset  # noqa: E402
from relive.train.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from train.runs import has_checkpoint  # noqa: E402

SMALL = {
    "replay.min_size": 100,
    "acting.num_actors": 1,
    "evaluation.num_episodes": 2,
    "evaluation.num_final_episodes": 2,
    "evaluation.stop_return": None,
    "limits.max_minutes": 1.0,
}


def small(agent: str = "dqn", env_id: str = "CartPole-v1", **more: object) -> TrainConfig:
    network = {"agent.network.hidden": (16,)} if agent == "dqn" else {"agent.hidden": (16,), "agent.random_steps": 50}
    settings = {**SMALL, **network, "agent.batch_size": 16}
    return preset(agent, env_id, {**settings, **{name.replace("__", "."): value for name, value in more.items()}})


class Diary(Callback):
    """Writes down what it hears; stops the run after so many of one kind."""

    def __init__(self, stop_at: str = "", raise_at: str = "") -> None:
        self.told: list[str] = []
        self.points: list[CurvePoint] = []
        self.snapshots: list[Snapshot] = []
        self.results: list[RunResult] = []
        self._stop_at, self._raise_at = stop_at, raise_at

    def _hear(self, what: str) -> bool:
        self.told.append(what)
        if what == self._raise_at:
            raise RuntimeError(f"no more of {what}")
        return what == self._stop_at

    def on_start(self, config: TrainConfig, run_dir: Path) -> None:
        assert (run_dir / "config.json").exists() and config.agent.name
        self._hear("start")

    def on_progress(self, now: Snapshot) -> bool:
        self.snapshots.append(now)
        return self._hear("progress")

    def on_evaluation(self, point: CurvePoint) -> bool:
        self.points.append(point)
        return self._hear("evaluation")

    def on_checkpoint(self, path: Path, num_updates: int) -> bool:
        assert path.exists() and num_updates >= 0
        return self._hear("checkpoint")

    def on_end(self, result: RunResult) -> None:
        self.results.append(result)
        self._hear("end")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Diary, RunResult]:
    """A run to its end, and what a callback heard of it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    diary = Diary()
    config = small(limits__max_steps=1500, evaluation__period_updates=100)
    result = relive.train.train(config, str(folder), callbacks=[diary, Callback()])
    return folder, diary, result


def test_a_run_tells_its_callbacks(ended: tuple[Path, Diary, RunResult]) -> None:
    folder, diary, result = ended
    assert diary.told[0] == "start" and diary.told[-1] == "end" and diary.results == [result]
    assert {"progress", "evaluation", "checkpoint"} <= set(diary.told)
    assert len(diary.points) >= 2 and diary.points[-1].num_updates >= 100
    steps = [now.num_steps for now in diary.snapshots]
    assert steps == sorted(steps) and steps[-1] >= 1500
    assert not result.stopped and len(result.returns) == 2 and result.run_dir == str(folder)
    assert multiprocessing.active_children() == []


def test_the_policy_of_a_run_acts(ended: tuple[Path, Diary, RunResult]) -> None:
    folder, _, result = ended
    policy = load_policy(folder)
    assert policy.num_steps == result.num_steps and policy.config.environment.env_id == "CartPole-v1"
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    before = observations.copy()
    actions = policy.act(observations)
    assert actions.shape == (5,) and actions.dtype == np.int64
    assert [int(policy.act(one)) for one in observations] == actions.tolist()
    np.testing.assert_array_equal(observations, before)
    assert np.shape(policy.act(observations[0])) == () and policy.act(observations[0].tolist()) == actions[0]
    assert load_policy(str(folder), which="last").act(observations).shape == (5,)


def test_exploring_comes_from_the_seed(ended: tuple[Path, Diary, RunResult]) -> None:
    observations = np.zeros((500, 4), np.float32)
    drawn = [load_policy(ended[0], seed=seed).act(observations, explore=True) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any() and set(drawn[0].tolist()) == {0, 1}


def test_observations_that_do_not_fit_are_refused(ended: tuple[Path, Diary, RunResult]) -> None:
    policy = load_policy(ended[0])
    for wrong in (np.zeros(3), np.zeros((2, 3)), np.zeros((2, 2, 4)), np.zeros((0, 4)), 1.0):
        with pytest.raises(ShapeMismatch, match="observation"):
            policy.act(wrong)
    for wrong in (["a", "b", "c", "d"], None, [[1.0], [1.0, 2.0]], np.zeros(4, complex)):
        with pytest.raises(DtypeMismatch, match="observation"):
            policy.act(wrong)
    with pytest.raises(InvalidConfig, match="kept"):
        load_policy(ended[0], which="best")  # type: ignore[arg-type]


def test_a_policy_of_continuous_actions_keeps_to_its_box(tmp_path: Path) -> None:
    config = small("sac", "Pendulum-v1", limits__max_steps=300)
    relive.train.train(config, tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    for explore in (False, True):
        actions = policy.act(np.zeros((7, 3)), explore=explore)
        assert actions.shape == (7, 1) and actions.dtype == np.float32 and np.abs(actions).max() <= 2.0
        assert policy.act(np.zeros(3), explore=explore).shape == (1,)


@pytest.mark.parametrize("agent", ["dqn", "iqn"])
def test_discrete_actions_are_of_the_dtype_of_their_space(agent: str, tmp_path: Path) -> None:
    options: dict[str, object] = {**SMALL, "topology": "inline", "agent.network.hidden": (8,), "agent.batch_size": 16}
    config = preset(agent, "train.worlds:Narrow-v0", {**options, "limits.max_steps": 300})
    relive.train.train(config, tmp_path / "run")  # the environment asserts that its space contains each action
    policy = load_policy(tmp_path / "run")
    for explore in (False, True):
        actions = policy.act(np.zeros((50, 4)), explore=explore)
        assert actions.dtype == np.int32 and all(policy.spaces.action.contains(action) for action in actions)
        assert policy.spaces.action.contains(policy.act(np.zeros(4), explore=explore))


def test_a_run_of_another_kind_of_device_is_played_and_goes_on(tmp_path: Path) -> None:
    """A generator of CUDA has a state of 16 bytes. Learning goes on with a generator from the seed."""
    folder, text = tmp_path / "run", io.StringIO()
    options: dict[str, object] = {"topology": "inline", "update": "handwritten", "checkpoint__table": "never"}
    first = relive.train.train(small("sac", "Pendulum-v1", limits__max_steps=400, **options), folder)
    learner, progress = load_checkpoint(str(folder))
    before = load_policy(folder, which="last").parameters
    save_checkpoint(folder, {**learner, "generator": torch.zeros(16, dtype=torch.uint8)}, progress)
    policy = load_policy(folder, which="last")
    assert all(np.array_equal(value, before[name]) for name, value in policy.parameters.items())
    more = small("sac", "Pendulum-v1", limits__max_steps=600, **options)
    for _ in range(2):  # the checkpoint of the second session is of this device again
        last = relive.train.train(more, folder, resume=True, console=Console(file=text, width=300))
        assert last.num_updates > first.num_updates and text.getvalue().count("another kind of device") == 1


@pytest.mark.parametrize("what", ["progress", "evaluation", "checkpoint"])
def test_a_callback_stops_the_run_and_it_goes_on(what: str, tmp_path: Path) -> None:
    folder, diary = tmp_path / "run", Diary(stop_at=what)
    result = relive.train.train(
        small(limits__checkpoint_period_s=0.1, evaluation__period_updates=20), folder, callbacks=[diary]
    )
    assert result.stopped and result.returns == () and diary.told[-1] == "end" and has_checkpoint(folder)
    assert load_policy(folder).act(np.zeros(4)) in (0, 1)
    if what == "progress":
        again = Diary(stop_at="evaluation")
        resumed = relive.train.train(run_dir=folder, resume=True, callbacks=[again])
        assert resumed.stopped and resumed.num_sessions == 2 and resumed.num_updates >= result.num_updates


@pytest.mark.parametrize("what", ["start", "progress", "checkpoint"])
def test_what_a_callback_raises_comes_out_and_leaves_nothing(what: str, tmp_path: Path) -> None:
    diary = Diary(raise_at=what)
    with pytest.raises(RuntimeError, match=f"no more of {what}"):
        relive.train.train(small(limits__checkpoint_period_s=0.1), tmp_path / "run", callbacks=[diary])
    assert diary.told[-1] == what and multiprocessing.active_children() == []
    assert has_checkpoint(tmp_path / "run") == (what != "start") == (tmp_path / "run").exists()


def test_files_that_a_callback_wrote_before_it_raised_stay_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    class Writes(Callback):
        def on_start(self, config: TrainConfig, run_dir: Path) -> None:
            (run_dir / "log.csv").write_text("of the callback")
            raise RuntimeError("no more")

    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="no more"):
        relive.train.train(small(topology="inline"), folder, callbacks=[Writes()])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "log.csv"]
    assert relive.train.train(run_dir=folder, resume=True).num_sessions == 1


def test_a_resumed_run_stays_if_a_callback_raises_at_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    small(topology="inline").save(folder / "config.json")
    with pytest.raises(RuntimeError, match="no more of start"):
        relive.train.train(run_dir=folder, resume=True, callbacks=[Diary(raise_at="start")])
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize("wrong", [[Diary], [print], Diary(), None, "all"])
def test_what_is_no_callback_is_refused(wrong: Sequence[Callback], tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="callbacks"):
        relive.train.train(small(), tmp_path / "run", callbacks=wrong)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    for wrong in (
        lambda: relive.train.train("dqn", tmp_path / "run"),  # type: ignore[arg-type]
        lambda: relive.train.train(small(), 3),  # type: ignore[arg-type]
        lambda: relive.train.train(small(), ""),
        lambda: relive.train.load_config(3),  # type: ignore[arg-type]
        lambda: load_policy(3),  # type: ignore[arg-type]
        lambda: load_policy("", seed=1),
        lambda: load_policy(tmp_path, seed=-1),
        lambda: relive.train.play_run(tmp_path, video=3),  # type: ignore[arg-type]
        lambda: relive.train.train(resume=True),
        lambda: relive.train.train(),
        lambda: relive.train.train(small(device="meta"), tmp_path / "run"),
        lambda: relive.train.train(small(device="mps"), tmp_path / "run"),
        lambda: load_policy(tmp_path),
    ):
        with pytest.raises(InvalidConfig):
            wrong()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AttributeError, match="nothing"):
        _ = relive.train.nothing  # type: ignore[attr-defined]


def test_a_program_without_the_guard_of_spawn_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from relive.train import preset, train\n"
        "config = preset('dqn', 'CartPole-v1', {'acting.num_actors': 1, 'limits.max_steps': 1_000})\n"
        f"train(config, {str(tmp_path / 'run')!r})\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and 'under `if __name__ == "__main__":`' in done.stderr


@pytest.mark.parametrize("topology", ["actors", "learners(2, async)", "central"])
def test_a_run_that_starts_processes_is_refused_in_a_daemonic_process(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(InvalidConfig, match=r"call of train\(\).*daemon=False.*topology = inline"):
        relive.train.train(small(topology=topology), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_an_inline_run_goes_on_in_a_daemonic_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = small(topology="inline", update="compiled", limits__max_steps=200)  # it starts a compiler
    assert relive.train.train(config, tmp_path / "run").num_updates > 0
    assert list((tmp_path / "relive" / "updates").glob("*.log"))


def test_every_public_name_is_there() -> None:
    assert all(getattr(relive.train, name).__name__ == name for name in relive.train.__all__)
    assert set(relive.train.__all__) == set(relive.train._HOMES)


def test_the_package_itself_needs_no_torch() -> None:
    """And says what is missing where one of its names does."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import relive.train\nfrom relive.errors import MissingPackage\n"
        "try: relive.train.load_policy\n"
        "except MissingPackage as problem: print(problem.package)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "torch\n", done.stderr
