"""The small pieces of a run: configurations, checkpoints, seeds, the scoreboard, evaluation."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive.agents.agent import Agent  # noqa: E402
from relive.agents.config import LinearSchedule, OptimizerConfig  # noqa: E402
from relive.agents.registry import AGENTS  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train.acting.actor_pool import ActorPool  # noqa: E402
from relive.train.acting.environments import acting_seed, describe, evaluation_seeds, final_seeds  # noqa: E402
from relive.train.config import TrainConfig, preset  # noqa: E402
from relive.train.errors import ActorsKeepDying  # noqa: E402
from relive.train.evaluating.evaluate import Evaluator  # noqa: E402
from relive.train.learners.numerics import learner_numerics, threads_of  # noqa: E402
from relive.train.memory.parameters import ParameterBoard, ParameterLayout  # noqa: E402
from relive.train.memory.scoreboard import Scoreboard  # noqa: E402
from relive.train.memory.shared_block import SharedBlock  # noqa: E402
from relive.train.run import train  # noqa: E402
from relive.train.sections import ActingConfig, EnvironmentConfig, ReplayConfig  # noqa: E402
from relive.train.settings import changed, options  # noqa: E402
from relive.train.setup import check_has_server  # noqa: E402
from relive.train.watching.checkpoint import FILE_NAME, CurvePoint, Progress, load_checkpoint, save_checkpoint  # noqa: E402
from relive.train.watching.curve import draw_curve  # noqa: E402
from train.batches import discrete_batch, discrete_spaces  # noqa: E402
from train.workers import count  # noqa: E402


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "Acrobot-v1"])
def test_configurations_go_to_json_and_back(env_id: str, tmp_path: Path) -> None:
    config = preset("dqn", env_id, {"environment.seed": 7})
    config = dataclasses.replace(config, acting=dataclasses.replace(config.acting, num_actors=3))
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config
    assert '"name": "dqn"' in (tmp_path / "config.json").read_text()
    assert config.environment.seed == 7


def test_wrong_configurations_are_refused(tmp_path: Path) -> None:
    for wrong in (
        lambda: EnvironmentConfig(""),
        lambda: ReplayConfig(capacity=10, min_size=20),
        lambda: ActingConfig(num_actors=-1),
        lambda: preset("dqn", "CartPole-v1", {"acting.num_actors": 0}),
        lambda: preset(
            "dqn",
            "CartPole-v1",
            {"acting.num_actors": 0, "serving.address": "grpc://127.0.0.1:0", "topology": "inline"},
        ),
        lambda: preset("dqn", "CartPole-v1", {"serving.address": "http://127.0.0.1:0"}),
        lambda: preset("dqn", "CartPole-v1", {"serving.max_staleness_s": 0.5}),
        lambda: ReplayConfig(updates_per_step=0.0),
        lambda: preset("dqn", "CartPole-v1", {"threads": -1}),
    ):
        with pytest.raises(InvalidConfig):
            wrong()
    texts = ['{"environment": {}}', '{"agent": {"name": "nobody"}}', '{"agent": {"name": "dqn", "gama": 1}}', "[]"]
    for text in (*texts, "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InvalidConfig):
            TrainConfig.load(tmp_path / "config.json")
    with pytest.raises(InvalidConfig):
        TrainConfig.load(tmp_path / "none.json")


@pytest.mark.parametrize("option", ["tokens", "tls_cert", "tls_key", "client_ca", "insecure"])
def test_options_of_serving_need_an_address_or_a_cluster(option: str, tmp_path: Path) -> None:
    """Not those of a run that goes on: it may have been served before."""
    value = True if option == "insecure" else "file"
    path, on_cluster = f"serving.{option}", {"cluster.kind": "ray"}
    alone = preset("dqn", "CartPole-v1", {path: value})
    with pytest.raises(InvalidConfig, match=rf"{path}: expected (none|false) without serving.address .*cluster.kind"):
        train(alone, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    served = [{"serving.address": "grpc://127.0.0.1:0"}, *[on_cluster] * (option != "client_ca")]
    for settings in served:
        check_has_server(preset("dqn", "CartPole-v1", {path: value, **settings}))
    with pytest.raises(InvalidConfig, match="resume"):
        train(alone, tmp_path / "run", resume=True)


def test_schedules() -> None:
    epsilon = LinearSchedule(1.0, 0.2, 100)
    assert [epsilon.at(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    optimizer = OptimizerConfig(1e-3, 1e-4, 1000)
    assert optimizer.learning_rate_at(0) == optimizer.learning_rate
    assert optimizer.learning_rate_at(10**9) == pytest.approx(optimizer.final_learning_rate)


def test_seeds_of_acting_evaluation_and_the_final_result_never_meet() -> None:
    for run_seed in (0, 1, 12345, 2**31 - 1):
        acting = {
            acting_seed(run_seed, actor, incarnation) + copy
            for actor in range(8) for incarnation in range(8) for copy in range(16)
        }  # fmt: skip
        evaluation = set(evaluation_seeds(run_seed, 0, 5000))
        final = set(final_seeds(run_seed, 20))
        assert len(evaluation) == 5000 and len(final) == 20
        assert not acting & evaluation and not acting & final and not evaluation & final
        assert max(acting | evaluation | final) < 2**31
        assert evaluation_seeds(run_seed, 40, 2) == evaluation_seeds(run_seed, 0, 42)[40:]


def learner(seed: int) -> Agent:
    config = preset("dqn", "CartPole-v1", {"agent.batch_size": 16})
    return config.agent.make(discrete_spaces(), seed=seed, device="cpu")


def test_a_checkpoint_round_trip(tmp_path: Path) -> None:
    one = learner(0)
    for seed in range(3):
        one.update(discrete_batch(seed))
    progress = Progress(num_steps=123, elapsed_s=4.5, parameter_version=9, kept_return=77.0, num_sessions=2)
    progress.kept_parameters = one.evaluation_parameters()
    progress.curve.append(CurvePoint(1.0, 10, 3, 22.0, None))
    save_checkpoint(tmp_path, one.state_dict(), progress)
    save_checkpoint(tmp_path, one.state_dict(), progress)  # over the first one
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    state, again = load_checkpoint(tmp_path)
    for name, value in progress.kept_parameters.items():
        np.testing.assert_array_equal(again.kept_parameters[name], value)
    assert vars(again) | {"kept_parameters": 0} == vars(progress) | {"kept_parameters": 0}
    other = learner(1)
    other.load_state_dict(state)
    np.testing.assert_array_equal(one.update(discrete_batch(9)), other.update(discrete_batch(9)))


def test_a_checkpoint_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, learner(0).state_dict(), Progress(num_steps=1))
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        save_checkpoint(tmp_path, {"not": lambda: None}, Progress(num_steps=2))
    assert load_checkpoint(tmp_path)[1].num_steps == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_broken_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        load_checkpoint(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"half of a file")
    with pytest.raises(InvalidConfig):
        load_checkpoint(tmp_path)


def test_the_scoreboard_counts_over_processes() -> None:
    scoreboard = Scoreboard(2, steps_before=1000)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count, args=(scoreboard, actor)) for actor in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert scoreboard.num_steps == 1000 + 2 * 300 * 4 and scoreboard.num_episodes == 600
    assert scoreboard.steps_behind(1) == (300 * 4, 2 * 300 * 4) and scoreboard.steps_behind(2)[0] == 0
    assert scoreboard.wait_s == 1.0 and not scoreboard.stopping
    assert sorted(scoreboard.recent_returns(10)) == sorted([295.0, 296.0, 297.0, 298.0, 299.0] * 2)
    scoreboard.stop()
    assert scoreboard.stopping
    scoreboard.close()


def test_actors_that_die_before_their_first_step_are_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    config = preset("dqn", "CartPole-v1")
    config = dataclasses.replace(config, acting=dataclasses.replace(config.acting, num_actors=1))
    agent = learner(0)
    board, scoreboard = ParameterBoard(ParameterLayout.of(agent.parameters())), Scoreboard(1)
    pool = ActorPool(config, agent.policy(), "a-table-that-is-not-there", board, scoreboard)
    pool.start()
    deadline_s = time.monotonic() + 120
    with pytest.raises(ActorsKeepDying) as caught:
        while time.monotonic() < deadline_s:
            pool.watch()
            time.sleep(0.05)
    assert (caught.value.actor, caught.value.num_deaths, caught.value.exit_code) == (0, 3, 1)
    pool.stop()
    assert pool.pids == []
    assert "NoSuchTable" in capfd.readouterr().err


def test_spaces_of_environments() -> None:
    cartpole = describe("CartPole-v1")
    assert (cartpole.observation_shape, int(cartpole.action.n), cartpole.stack) == ((4,), 2, {})
    with pytest.raises(InvalidConfig):
        describe("NoSuchThing-v0")
    pytest.importorskip("ale_py", reason="Atari needs ale-py")
    pong = describe("ALE/Pong-v5")
    assert (pong.observation_shape, int(pong.action.n), pong.stack) == ((4, 84, 84), 6, {"observation": 4})
    assert pong.spec().columns["observation"].shape == (84, 84)
    with pytest.raises(InvalidConfig):
        describe("ALE/NoSuchGame-v5")


def test_a_refused_environment_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    for env_id in ("FrozenLake-v1", "Pendulum-v1", "NoSuchThing-v0"):
        for folder in (tmp_path / "new", tmp_path / "old"):
            with pytest.raises(InvalidConfig) as caught:
                train(preset("dqn", env_id), folder, moving_aside=True)
            assert env_id.partition("-")[0] in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_numerics_are_as_they_were_after_a_run() -> None:
    threads, tiny = torch.get_num_threads(), torch.tensor([1e-38])
    with learner_numerics(1):
        assert torch.get_num_threads() == 1 and float(tiny * 0.01) == 0.0
    assert torch.get_num_threads() == threads and float(tiny * 0.01) > 0.0
    assert threads_of(3, 2) == 3 and threads_of(0, 10**6) == 1


def test_threads_of_zero_are_those_of_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7, 8, 9})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert threads_of(0, 1) == 4 and threads_of(0, 1, 2) == 2 and threads_of(0, 5) == 1


def test_evaluation_repeats_and_counts_one_episode_a_seed() -> None:
    agent = learner(0)
    evaluator = Evaluator("CartPole-v1", agent.policy(), 500)
    constant = {name: np.zeros_like(value) for name, value in agent.parameters().items()}
    constant["q.2.bias"][1] = 1.0  # the advantage of going left: always left: falls after 8 to 10 steps
    seeds = evaluation_seeds(0, 0, 10)
    first, second = evaluator.play(constant, seeds), evaluator.play(constant, seeds)
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.returns, first.lengths)  # CartPole gives 1 a step
    assert first.returns.shape == (10,) and 8 <= first.returns.min() and first.returns.max() <= 11
    assert first.ended.all() and (evaluator.num_ended, evaluator.num_steps) == (10, first.lengths.sum())
    evaluator.close()


def test_an_evaluation_that_is_cut_says_so() -> None:
    agent = learner(0)
    evaluator = Evaluator("CartPole-v1", agent.policy(), 500)
    steps = iter(range(4))
    cut = evaluator.play(agent.parameters(), evaluation_seeds(0, 0, 3), lambda: next(steps) < 3)
    assert cut.num_cut == 3 and not cut.ended.any() and cut.lengths.tolist() == [4, 4, 4]
    assert cut.returns.tolist() == [4.0, 4.0, 4.0]
    evaluator.close()
    short = Evaluator("CartPole-v1", agent.policy(), 5)
    met = short.play(agent.parameters(), evaluation_seeds(0, 0, 3))
    assert met.num_cut == 0 and met.lengths.tolist() == [5, 5, 5]
    short.close()


def test_an_evaluator_without_time_plays_a_step() -> None:
    agent = learner(0)
    evaluator = Evaluator("CartPole-v1", agent.policy(), 500)
    assert evaluator.play(agent.parameters(), [1, 2], lambda: False).lengths.tolist() == [1, 1]
    evaluator.close()


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    curve = [CurvePoint(float(at), 100 * at, at, 5.0 * at, None if at < 2 else 1.0 * at) for at in range(6)]
    draw_curve(tmp_path / "curve.png", "title", curve, 20.0)
    draw_curve(tmp_path / "one.png", "title", curve[:1], None)
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_a_view_outlives_the_close_of_its_memory() -> None:
    """Whoever closes a block leaves no view behind that kills its process when it is read."""
    block = SharedBlock(4096)
    view = block.array(np.float32, (8,), 64)
    view[:] = 3.0
    block.close()
    block.close()
    assert view.sum() == 24.0


WORDS = ["", "nan", "inf", "-1", "0", "0.5", "1e308", "1" * 40, "none", "true", "x", "1,2"]


@pytest.mark.parametrize(
    "agent", [name if name in ("dqn", "sac") else pytest.param(name, marks=pytest.mark.thorough) for name in AGENTS]
)
def test_every_value_of_an_option_is_refused_or_kept(agent: str) -> None:
    """A value that is kept is written as JSON, which has neither nan nor infinity, and read back."""
    num_kept, usual = 0, preset(agent, AGENTS[agent].environment)
    for option in options(usual):
        for word in WORDS:
            try:
                config = changed(usual, {option.path: word})
            except InvalidConfig:
                continue
            num_kept += 1
            written = json.dumps(config.to_tree(), allow_nan=False)
            assert TrainConfig.from_tree(json.loads(written)) == config, (option.path, word)
    assert num_kept > 50


def test_a_number_that_json_does_not_have_is_refused_in_any_part() -> None:
    config = preset("dqn", "CartPole-v1")
    optimizer = dataclasses.replace(config.agent.optimizer, max_gradient_norm=float("inf"))  # type: ignore[attr-defined]
    with pytest.raises(InvalidConfig, match=r"agent\.optimizer\.max_gradient_norm"):
        dataclasses.replace(config, agent=dataclasses.replace(config.agent, optimizer=optimizer))  # type: ignore[call-arg]
