"""Whole runs through the command line: they learn, stop cleanly, resume, and survive the death of their actors."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("rich", reason="the command line needs rich")

from relive.agents.registry import AGENTS  # noqa: E402
from train.runs import children_of, has_checkpoint, run_of, tables_of  # noqa: E402


def test_a_run_learns_and_restarts_a_killed_actor(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["--env", "CartPole-v1", "--actors", "2", "--run-dir", str(folder)]
    limits = ["--max-steps", "12000", "--max-minutes", "20", "--stop-return", "501"]  # 500 is the largest return
    with run_of(tmp_path, *arguments, *limits) as run:
        run.wait_until_it_learns()
        actors = children_of(run.pid)
        assert len(actors) == 2 and len(tables_of(run.pid)) == 1
        os.kill(actors[0], signal.SIGKILL)
        assert run.process.wait(1500) == 0, run.text
        run.wait_until_gone(actors)
        assert tables_of(run.pid) == []
        text = run.text
    result = json.loads((folder / "result.json").read_text())
    assert result["num_restarts"] == 1
    assert len(result["returns"]) == 20 and result["mean_return"] > 60.0, text
    assert result["num_updates"] > 300 and result["num_steps"] >= 6000
    for word in ("steps", "updates", "return", "table", "replay ratio", "waiting", "actor restarts 1", "greedy return"):
        assert word in text
    assert (folder / "curve.png").stat().st_size > 1000 and has_checkpoint(folder)
    assert list((folder / "tensorboard").glob("events*"))


@pytest.mark.forms(1)
@pytest.mark.parametrize("agent", [name for name, entry in AGENTS.items() if entry.environment == "Pendulum-v1"])
def test_agents_of_continuous_actions_run_to_their_end(agent: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = (
        "agent.hidden=16,16", "agent.batch_size=16", "agent.random_steps=50", "replay.min_size=100",
        "evaluation.num_episodes=1", "evaluation.num_final_episodes=2", "agent.n_step=2",
    )  # fmt: skip
    settings = [word for option in options for word in ("--set", option)]
    arguments = ["--run-dir", str(folder), "--max-steps", "400", "--actors", "1", "--seed", "5", *settings]
    with run_of(tmp_path, *arguments, agent=agent) as run:
        assert run.process.wait(180) == 0, run.text
        assert tables_of(run.pid) == []
    result = json.loads((folder / "result.json").read_text())
    assert (result["agent"], result["env_id"], len(result["returns"])) == (agent, "Pendulum-v1", 2)
    # An update for each step after the table is filled; min_size items are there a little after as many steps.
    assert 250 <= result["num_updates"] <= result["num_steps"] - 90 and -3000 < result["mean_return"] < 0
    config = json.loads((folder / "config.json").read_text())["agent"]
    assert (config["name"], config["hidden"], config["n_step"], config["gamma"]) == (agent, [16, 16], 2, 0.99)


def test_ctrl_c_leaves_nothing_and_resume_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with run_of(tmp_path, "--run-dir", str(folder), "--seed", "3") as run:
        run.wait_until_it_learns()
        actors = children_of(run.pid)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert run.process.wait(60) == 130, run.text
        run.wait_until_gone(actors)
        assert tables_of(run.pid) == []
        text = run.text
    assert "Traceback" not in text and f"--resume {folder}" in text
    assert not (folder / "result.json").exists()
    from relive.train.watching.checkpoint import load_checkpoint

    before = load_checkpoint(folder)[1]
    assert before.num_steps > 0 and before.num_sessions == 1
    more = str(before.num_steps + 1500)
    with run_of(tmp_path, "--resume", str(folder), "--max-steps", more, log="log2") as run:
        assert run.process.wait(180) == 0, run.text
    result = json.loads((folder / "result.json").read_text())
    assert result["seed"] == 3 and result["num_sessions"] == 2
    assert result["num_steps"] >= before.num_steps + 1500 or "return" in result["ending"]
    after = load_checkpoint(folder)[1]
    assert after.parameter_version > before.parameter_version and after.elapsed_s > before.elapsed_s
    assert after.curve[: len(before.curve)] == before.curve


def test_actors_end_with_their_learner(tmp_path: Path) -> None:
    """Two runs side by side: one is asked to end, the other is killed."""
    with (
        run_of(tmp_path, "--run-dir", str(tmp_path / "asked"), log="asked.log") as asked,
        run_of(tmp_path, "--run-dir", str(tmp_path / "killed"), log="killed.log") as killed,
    ):
        for run, number, code in ((asked, signal.SIGTERM, 130), (killed, signal.SIGKILL, -signal.SIGKILL)):
            run.wait_until_it_learns()
            actors = children_of(run.pid)
            assert len(actors) == 2
            os.kill(run.pid, number)
            assert run.process.wait(60) == code, run.text
            run.wait_until_gone(actors)
            # The last of them to close the table removes it: nothing to tidy up by hand.
            assert tables_of(run.pid) == []


@pytest.mark.forms(1)
@pytest.mark.parametrize(
    ("topology", "num_processes"), [("learners(2, sync)", 3), ("learners(2, async)", 4), ("double", 3)]
)
def test_a_killed_leader_is_the_end_of_its_followers(topology: str, num_processes: int, tmp_path: Path) -> None:
    """Rules D3 and E2 of several learners: they wait for its words without a deadline, and hear its death. An inference
    process, and actors that wait for it, see that their parent is another.
    """
    with run_of(tmp_path, "--set", f"topology={topology}", "--run-dir", str(tmp_path / "run")) as run:
        run.wait_until_it_learns()
        children = children_of(run.pid)
        assert len(children) == num_processes, "two actors, and others"
        os.kill(run.pid, signal.SIGKILL)
        assert run.process.wait(60) == -signal.SIGKILL
        run.wait_until_gone(children, 60.0)
        assert tables_of(run.pid) == []


def test_a_second_run_in_a_directory_moves_the_first_aside(tmp_path: Path) -> None:
    from rich.console import Console

    from relive.train.config import preset
    from relive.train.run_directory import move_aside

    folder = tmp_path / "run"
    for _ in range(2):
        folder.mkdir()
        preset("dqn", "CartPole-v1").save(folder / "config.json")
        move_aside(folder, Console(quiet=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.1", "run.2"]


def test_train_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    from relive.errors import InvalidConfig
    from relive.train.config import preset
    from relive.train.run import train

    with pytest.raises(InvalidConfig):
        train(None, tmp_path / "none", resume=True)
    with pytest.raises(InvalidConfig):
        train(None, tmp_path / "none")
    with pytest.raises(InvalidConfig, match="stop_when: expected a function"):
        train(preset("dqn", "CartPole-v1"), tmp_path / "none", stop_when=5)  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidConfig):
        train(preset("dqn", "CartPole-v1"), tmp_path)


def test_an_environment_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    with run_of(tmp_path, "--env", "NoSuchThing-v3", "--run-dir", str(tmp_path / "run")) as run:
        assert run.process.wait(60) == 1
        assert run.text.startswith("relive: ") and "NoSuchThing" in run.text and "Traceback" not in run.text
