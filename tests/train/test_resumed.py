"""Runs that go on: after another return was asked for, and after a session that was refused."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

import relive.train.setup as setups  # noqa: E402
from relive.errors import StorageFull  # noqa: E402
from relive.train import Callback, TrainConfig, preset, train  # noqa: E402
from relive.train.checkpoint import load_checkpoint  # noqa: E402
from relive.train.watching.result import Ending  # noqa: E402

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


def test_a_checkpoint_that_does_not_say_which_return_it_reached_has_that_of_its_last_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(1.0, checkpoint__table="never"), folder)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["counters"]["solved_return"]
    torch.save(state, folder / "checkpoint.pt")
    progress = load_checkpoint(folder)[1]
    mean = progress.curve[-1].evaluation_return
    assert progress.has_reached(mean) and not progress.has_reached(mean + 1.0) and not progress.has_reached(None)


# ---- a session that is refused -------------------------------------------------------------------------------------


def test_a_refused_session_keeps_the_options_of_a_run_that_had_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session ended before its first checkpoint: the directory has config.json alone."""

    class Raises(Callback):
        def on_start(self, config: TrainConfig, run_dir: Path) -> None:
            raise ArithmeticError

    def full(*arguments: object) -> None:
        raise StorageFull("/dev/shm", 2, 1)

    folder = tmp_path / "run"
    with pytest.raises(ArithmeticError):
        train(small(None), folder, callbacks=[Raises()])
    with monkeypatch.context() as patched:
        patched.setattr(setups, "make_table", full)
        for resume in (True, False):
            with pytest.raises(StorageFull):
                train(None if resume else small(None), folder if resume else tmp_path / "new", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # a new run that is refused leaves no directory
    assert train(run_dir=folder, resume=True).num_sessions == 1
