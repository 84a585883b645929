"""A second signal in the middle of an update: the checkpoint that follows is of whole updates."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive.agents.critics import Critics  # noqa: E402
from relive.train import preset, train  # noqa: E402
from relive.train.checkpoint import load_checkpoint  # noqa: E402
from relive.train.signals import stop_signals, uninterrupted  # noqa: E402
from train.test_topology import batch_of, group_of  # noqa: E402
from train.test_tuning import nothing_is_left  # noqa: E402

SMALL: dict[str, object] = {
    "agent.hidden": (8,), "agent.batch_size": 16, "agent.policy_delay": 1, "replay.min_size": 100,
    "acting.num_actors": 1, "update": "handwritten", "evaluation.period_updates": 10**6, "limits.max_steps": 10**6,
}  # fmt: skip


@pytest.mark.parametrize("topology", ["inline", "learners(2, sync)", "learners(2, async)"])
def test_a_second_signal_between_the_steps_of_critics_and_actor(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sent = False

    def sending(step: Any) -> Any:
        """The same step of the critics; after the third update two signals come."""

        def watched(self: Any, *given: Any) -> Any:
            nonlocal is_sent
            result = step(self, *given)
            if given[-1] >= 3 and not is_sent:
                is_sent = True
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGTERM)
            return result

        return watched

    for name in ("learn", "apply"):
        monkeypatch.setattr(Critics, name, sending(getattr(Critics, name)))
    config = preset("td3", "Pendulum-v1", {**SMALL, "topology": topology})
    with suppress(KeyboardInterrupt):
        assert train(config, tmp_path / "run").stopped
    state, _ = load_checkpoint(tmp_path / "run")
    steps = {name: float(state[f"{name}_optimizer"]["step"]) for name in ("critic", "actor")}
    assert is_sent and steps == dict.fromkeys(steps, state["num_updates"]) and nothing_is_left()


def test_an_update_waits_for_no_learner_after_a_second_signal() -> None:
    """The learner that stands still is killed. Its deadline is longer than a test may take."""
    with group_of("sac", 2, deadline_s=10_000.0) as (leader, group), stop_signals():
        group.update(batch_of("sac", 0))
        (pid,) = group.pids
        os.kill(pid, signal.SIGSTOP)
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert group.update(batch_of("sac", 1)) is None
        steps = {name: float(leader.state_dict()[f"{name}_optimizer"]["step"]) for name in ("critic", "actor")}
    assert steps == {"critic": 2.0, "actor": 2.0} and not Path(f"/proc/{pid}").exists()
