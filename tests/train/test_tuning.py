"""The tuner: its clocks by hand, and the whole of it on small runs. Nothing here depends on how fast anything is."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("rich", reason="the command line needs rich")

from relive import MinSize, Table  # noqa: E402
from relive.cli.entry import run  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train import ActorsKeepDying, EnvironmentRaised, Tuning, load_config, preset, tune  # noqa: E402
from relive.train.config import TrainConfig  # noqa: E402
from relive.train.memory import core_waits  # noqa: E402
from relive.train.memory.core_waits import waited_for_core_s, working_clock  # noqa: E402
from relive.train.memory.parameters import ParameterBoard, ParameterLayout  # noqa: E402
from relive.train.setup import prepare  # noqa: E402
from relive.train.tuning.calibrate import Sizes, calibrate  # noqa: E402
from relive.train.tuning.one_process import OneProcess  # noqa: E402
from relive.train.tuning.throughput import Limit, Prediction, Setting  # noqa: E402
from relive.train.tuning.trial import Trial, Windows, run_trial  # noqa: E402
from relive.train.tuning.tuner import Tried, crowded  # noqa: E402
from relive.train.tuning.tuner import _asked as asked_setting  # noqa: E402
from relive.train.tuning.tuner import _choice as choice  # noqa: E402

SMALL: dict[str, object] = {"replay.min_size": 100, "agent.batch_size": 16, "agent.network.hidden": (16,)}


def small(**more: object) -> TrainConfig:
    return preset("dqn", "CartPole-v1", {**SMALL, **more})


def nothing_is_left() -> bool:
    """No child process, no shared table of this process."""
    tables = [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name]
    return not multiprocessing.active_children() and not tables


# ---- the clock of a trial --------------------------------------------------------------------------------------------


def told(windows: Windows, rate: float, ratio: float, burst: float = 0.0, until_s: float = 100.0) -> float:
    """Ticks every 10 ms, steps at the rate, updates behind them, some of these at once; when it was over."""
    for number in range(int(100 * until_s)):
        now_s = number / 100
        num_updates = min(int(now_s * rate * ratio + burst), int(now_s * 1e6))
        if windows.tick(now_s, int(now_s * rate), num_updates, lambda now_s=now_s: {"relive-learner": now_s / 4}):
            return now_s
    raise AssertionError("never over")


def test_windows_begin_when_both_sides_go_at_the_pace_of_the_slower() -> None:
    windows = Windows(2.0, updates_per_step=0.5, slack_steps=200.0)
    over_s = told(windows, rate=100.0, ratio=0.5)
    assert 2.0 + 2.0 <= over_s <= 2.2 + 2.0, "200 steps learnt from, and two seconds"
    trial = windows.result()
    assert trial is not None and trial.steps_per_s == pytest.approx(100.0, rel=0.05)
    assert trial.updates_per_s == pytest.approx(trial.steps_per_s / 2)
    assert trial.lowest <= trial.steps_per_s <= trial.highest and trial.spread < 0.1
    assert trial.learning_waited == pytest.approx(0.25) and trial.acting_waited == 0.0


def test_a_learner_that_is_ahead_does_not_count() -> None:
    """It learns from what was stored before at a rate that does not last: steps are the pace."""
    windows = Windows(1.0, updates_per_step=1.0, slack_steps=10.0**9)
    for number in range(2_000):
        if windows.tick(number / 100, number, 10 * number, lambda: {}):
            break
    trial = windows.result()
    assert trial is not None and trial.steps_per_s == pytest.approx(100.0, rel=0.05)


def test_a_trial_of_which_nothing_came_is_none() -> None:
    assert Windows(1.0, 1.0, 1.0).result() is None
    stuck = Windows(1.0, 1.0, 1.0)
    for number in range(2_000):
        stuck.tick(number / 100, 0, 1, lambda: {})
    assert stuck.result() is None


# ---- what is chosen --------------------------------------------------------------------------------------------------


def tried(num_actors: int, predicted: float, measured: float, spread: float = 0.0, waited: float = 0.0) -> Tried:
    prediction = Prediction(Setting(num_actors, 4, 64), 8, predicted, predicted, Limit.LEARNING, 1.0)
    low, high = measured * (1 - spread / 2), measured * (1 + spread / 2)
    return Tried(prediction, Trial(measured, measured, low, high, waited, 0.0))


def chosen(*ones: Tried) -> int:
    found = choice(ones)
    assert found is not None
    return found.setting.num_actors


def test_what_was_measured_wins_over_what_was_predicted() -> None:
    assert chosen(tried(1, 100, 200), tried(2, 300, 100)) == 1
    assert chosen(tried(1, 100, 98), tried(2, 300, 100)) == 2, "measured alike: the prediction"
    assert chosen(tried(1, 100, 90, 0.3), tried(2, 300, 100, 0.3)) == 2
    assert chosen(tried(1, 300, 90, 0.3), tried(2, 100, 100, 0.3)) == 1
    assert chosen(tried(2, 100, 100), tried(1, 100, 99)) == 1, "all alike: the fewest processes"
    assert choice(()) is None


def test_where_others_take_the_cores_it_goes_by_the_prediction() -> None:
    one, two = tried(1, 100, 200, waited=0.5), tried(2, 300, 100)
    assert crowded((one, two)) and chosen(one, two) == 2
    assert one.quiet_steps_per_s == pytest.approx(400) and one.error == pytest.approx(-0.75)
    many = dataclasses.replace(one, prediction=dataclasses.replace(one.prediction, cores=1))
    assert not many.fits and not crowded((many,)) and many.quiet_steps_per_s == 200, "its own processes take turns"


def test_waiting_for_a_core_is_not_working() -> None:
    before_s, began_s = waited_for_core_s(), working_clock()
    time.sleep(0.05)
    assert waited_for_core_s() - before_s < 1.0 and working_clock() - began_s >= 0.0
    assert waited_for_core_s(pid=2**31 - 1) == 0.0


@pytest.mark.parametrize("reading", [1, 2, 3], ids="the wait comes before reading {}".format)
def test_the_clock_does_not_go_back_when_a_wait_comes_while_it_is_read(
    reading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine takes the core for a second while the clock is read for the second time, 0.1 s after the first."""
    now_s, waited_s, readings = [5.0], [3.0], [0]

    def read(clock: list[float]) -> float:
        readings[0] += 1
        if readings[0] == reading:
            now_s[0] += 1.0
            waited_s[0] += 1.0
        return clock[0]

    readings[0] = reading  # no wait yet
    monkeypatch.setattr(core_waits, "waited_for_core_s", lambda: read(waited_s))
    monkeypatch.setattr(core_waits.time, "perf_counter", lambda: read(now_s))
    began_s = working_clock()
    now_s[0] += 0.1
    readings[0] = 0
    assert working_clock() - began_s == pytest.approx(0.1)


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_every_part_is_measured_and_everything_ends() -> None:
    lines: list[str] = []
    costs = calibrate(small(), Sizes((1, 2), (16, 8), learners_too=True), 0.1, lines.append)
    assert [size for size, _ in costs.steps] == [1, 2] and [size for size, _ in costs.samples] == [8, 16]
    assert [size for size, _ in costs.updates] == [4, 8, 16] and costs.gradients == 1.0
    assert [size for size, _ in costs.steps_here] == [size for size, _ in costs.slow_here] == [1, 2]
    assert all(times >= 1 for _, times in costs.slow_here), "between turns nothing is quicker than by itself"
    assert (
        costs.sync_s is not None and costs.sync_s >= 0 and costs.add_s > 0 and costs.publish_s > 0 and costs.take_s > 0
    )
    for shares in costs.parts.values():
        assert set(shares) == {"environment", "inference", "insert"}
        assert all(0 < share < 1 for share in shares.values()) and sum(shares.values()) <= 1
    assert len(lines) == 2 and "3 rounds" in lines[1]
    assert nothing_is_left()


def test_many_updates_a_turn_are_measured_by_a_few() -> None:
    config = small(**{"replay.updates_per_step": 1000.0})
    agent = prepare(config).agent
    board = ParameterBoard(ParameterLayout.of(agent.parameters()))
    board.publish(agent.parameters())
    learnt: list[int] = []
    with (
        Table(agent.spec(), 1_000, agent.index(MinSize(1))) as table,
        OneProcess(config, (1,), agent, table, board) as it,
    ):
        step_s, learn_s = it.take(1, 0.0, lambda: learnt.append(1), lambda: None)
        assert len(table) > 0 and step_s > 0 and learn_s >= 0
    board.close()
    assert len(learnt) == 1 + 2 * 8, "one before the first of three turns, eight before each of the others"


def test_gradients_are_counted_not_known() -> None:
    """TD3's actor learns with every other update."""
    config = preset("td3", "Pendulum-v1", {"replay.min_size": 100, "agent.batch_size": 4, "agent.hidden": (8,)})
    assert calibrate(config, Sizes((1,), (4,), learners_too=False), 0.1).gradients == 1.5


def test_an_actor_that_is_killed_is_told_of() -> None:
    def kill() -> None:
        for child in multiprocessing.active_children():
            assert child.name == "relive-tune-actor" and child.pid
            os.kill(child.pid, signal.SIGKILL)

    sizes = Sizes((1,), (16,), learners_too=False)
    with pytest.raises(ActorsKeepDying) as raised:
        calibrate(small(), sizes, 60.0, lambda line: kill())  # said once it runs
    assert (raised.value.actor, raised.value.exit_code) == (0, -signal.SIGKILL)
    assert nothing_is_left()


def test_an_environment_that_raises_is_told_of() -> None:
    config = preset("dqn", "train.worlds:Faulty-v0", SMALL)
    with pytest.raises(EnvironmentRaised) as raised:
        calibrate(config, Sizes((1,), (16,), learners_too=False), 0.1)
    assert raised.value.actor == 0 and "the world ends at step 150" in raised.value.traceback
    assert nothing_is_left()


@pytest.mark.forms(1)
def test_a_trial_is_no_run_of_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TrainConfig] = []
    monkeypatch.setattr("relive.train.tuning.trial.train", lambda config, *_, **__: seen.append(config))
    assert run_trial(small(**{"logging.wandb": True}), Setting(1, 1, 16, inline=True), 1.0) is None
    assert not seen[0].logging.wandb


@pytest.mark.forms(1)
def test_a_trial_of_a_run_that_is_served_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TrainConfig] = []
    monkeypatch.setattr("relive.train.tuning.trial.train", lambda config, *_, **__: seen.append(config))
    served = {"serving.address": "grpc://127.0.0.1:0", "serving.tokens": "tokens", "serving.insecure": True}
    assert run_trial(small(**served), Setting(1, 1, 16, inline=True), 1.0) is None
    assert not seen[0].is_served


@pytest.mark.parametrize("setting", [Setting(1, 2, 16, inline=True), Setting(2, 1, 16)], ids=str)
def test_a_trial_leaves_nothing(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trial = run_trial(small(), setting, 2.0)
    assert trial is not None and 0 <= trial.lowest <= trial.steps_per_s <= trial.highest
    assert list(tmp_path.iterdir()) == [] and nothing_is_left()


def test_a_signal_ends_a_trial() -> None:
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_trial(small(), Setting(1, 1, 16, inline=True), 60.0)
    finally:
        timer.cancel()
    assert nothing_is_left()


# ---- the whole -------------------------------------------------------------------------------------------------------


def test_options_of_a_topology_that_is_not_chosen_go() -> None:
    asked = small(**{"topology": "learners(2, async)", "learning.max_gradient_staleness": 3})
    tuning = tune(asked, budget_s=2.0)
    assert tuning.config.learning.max_gradient_staleness is None and nothing_is_left()


def test_a_tuning_is_settings_that_a_run_takes(tmp_path: Path) -> None:
    asked = small(**{"agent.gamma": 0.9, "topology": "inline", "evaluation.stop_return": None})
    lines: list[str] = []
    tuning = tune(asked, budget_s=8.0, say=lines.append)
    assert isinstance(tuning, Tuning) and tuning.asked is asked and nothing_is_left()
    assert tuning.chosen in [one.prediction for one in tuning.tried]
    rates = [one.steps_per_s for one in tuning.predictions]
    assert all(0 < rate for rate in rates) and rates[0] >= 0.97 * max(rates)
    assert {one.setting.batch_size for one in tuning.predictions} == {16}, "the batch is not the tuner's"
    assert {one.setting.batch_size for one in tuning.other_batches} == {8, 32}
    assert all(one.cores > tuning.costs.cores and one.beyond for one in tuning.more_cores)
    config = tuning.config
    assert config.agent == asked.agent and config.replay == asked.replay and config.tuned == str(tuning)
    assert (config.num_actors, config.environment.num_envs_per_actor) == (
        tuning.chosen.setting.num_actors, tuning.chosen.setting.num_envs,
    )  # fmt: skip
    path = tmp_path / "made" / "tuned.toml"
    tuning.write_settings(path)
    assert load_config(path) == config and [one.name for one in path.parent.iterdir()] == ["tuned.toml"]
    tuning.save(tmp_path / "tuning.json")
    tree = json.loads((tmp_path / "tuning.json").read_text())
    assert tree["settings"]["topology"] == str(config.topology) and len(tree["predictions"]) == len(rates)
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config


def test_what_the_model_does_not_know_is_not_tried() -> None:
    assert asked_setting(small()) == Setting(2, 4, 16)
    assert asked_setting(small(topology="inline")) == Setting(2, 4, 16, inline=True)
    assert asked_setting(small(topology="learners(2, sync)")) == Setting(2, 4, 16, 2)
    for other in ("learners(2, async)", "central(16, 500)", "double(2)"):
        assert asked_setting(small(topology=other)) is None
    served = small(**{"serving.address": "grpc://127.0.0.1:0/run", "acting.num_actors": 0})
    assert asked_setting(served) is None, "its actors are elsewhere"


def test_what_cannot_be_is_refused() -> None:
    for config in (None, {}, "CartPole-v1"):
        with pytest.raises(InvalidConfig, match="config: expected a TrainConfig"):
            tune(config)  # type: ignore[arg-type]
    for budget_s in (0, -1.0, float("nan"), float("inf"), True, "60"):
        with pytest.raises(InvalidConfig):
            tune(small(), budget_s=budget_s)  # type: ignore[arg-type]
    for more_cores in ((0,), (1.5,), 4, ("4",), (10**6,)):
        with pytest.raises(InvalidConfig):
            tune(small(), budget_s=1.0, more_cores=more_cores)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig):
        tune(preset("sac", "CartPole-v1"), budget_s=1.0)
    assert nothing_is_left()


# ---- the commands ----------------------------------------------------------------------------------------------------


def relive_command(*arguments: str) -> str:
    """The output of a command that ends well, in this process: test_cli.py tries it in a process of its own."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "90")
        patch.setenv("TERM", "dumb")
        assert run(arguments) == 0
    return printed.getvalue()


def sets() -> list[str]:
    texts = {path: ",".join(map(str, value)) if isinstance(value, tuple) else value for path, value in SMALL.items()}
    return [word for path, value in texts.items() for word in ("--set", f"{path}={value}")]


def test_the_command_writes_settings_and_shows_predictions_beside_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = relive_command("tune", "--agent", "dqn", "--budget", "3", "--json", "new/all.json", *sets())
    config = load_config(tmp_path / "runs" / "tuned-dqn-CartPole-v1.toml")
    assert config.agent.batch_size == 16 and config.tuned
    words = ("a step of an actor", "environment", "inference", "insert", "sample", "update", "learning at once")
    more = ("tried with batch 16", "run", "quiet", "not measured", "chosen: ", "--config runs/tuned-dqn-")
    for word in (*words, *more):
        assert word in printed, word
    assert json.loads((tmp_path / "new" / "all.json").read_text())["tried"]


def test_a_run_that_chooses_first_says_so_in_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relive.train.tuning.tuner.AUTO_BUDGET_S", 3.0)
    limits = ("--max-steps", "400", "--set", "evaluation.num_final_episodes=1", "--set", "evaluation.num_episodes=1")
    printed = relive_command("train", "dqn", "--auto", "--run-dir", "run", *limits, *sets())
    config = TrainConfig.load(tmp_path / "run" / "config.json")
    tree = json.loads((tmp_path / "run" / "tuning.json").read_text())
    assert config.tuned and config.tuned in " ".join(printed.split())
    assert tree["settings"]["topology"] == str(config.topology)
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("train dqn --auto --actors 3", "acting.num_actors"), ("train dqn --auto --set topology=inline", "topology"),
        ("train dqn --auto --resume run", "--resume"), ("tune --agent sax", "sac"),
        ("tune --agent dqn --env Pendulum-v1", "Discrete"), ("tune --agent dqn --budget -1", "budget_s"),
        ("train dqn --auto --tokens tokens.toml", "serving.tokens"),
    ],
)  # fmt: skip
def test_what_the_tuner_chooses_is_not_given_beside_it(
    words: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relive.train.tuning.tuner.calibrate", lambda *given, **options: pytest.fail("measures"))
    (tmp_path / "run").mkdir()
    small().save(tmp_path / "run" / "config.json")
    with pytest.raises(InvalidConfig, match=what):
        relive_command(*words.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", [["--out", "tuned.conf"], ["--out", "folder.toml"], ["--json", "file/all.json"]])
def test_files_that_cannot_be_written_are_refused_before_the_measurements(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("relive.train.tuning.tuner.tune", lambda *given, **options: pytest.fail("measures"))
    with pytest.raises(SystemExit, match="2"):
        run(["tune", "--agent", "dqn", *option])
    assert option[0] in capsys.readouterr().err
