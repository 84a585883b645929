"""Learners with batches of their own, whole: one beside none, their processes' deaths, and a run's replay ratio."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive import MinSize, SharedMemory, Table, attach  # noqa: E402
from relive.train import preset, train  # noqa: E402
from relive.train.learners import async_learner as learners  # noqa: E402
from relive.train.learners.parameter_server import ParameterServer, ServerOptions  # noqa: E402
from train.test_parameter_server import AGENTS, ROWS, NoProcess, made  # noqa: E402


class InThread(NoProcess):
    """A learner's whole loop in a thread of the test's process: no seconds of starting."""

    def start(self) -> None:
        self.task = replace(self.task, pipe=Connection(os.dup(self.task.pipe.fileno())))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        task = self.task
        with attach(task.table_name, stream=task.stream) as table:
            agent = task.agent.make(task.spaces, seed=task.seed, device=task.device)
            try:
                learners._AsyncLearner(task, agent, table).run()
            except (EOFError, OSError):
                pass

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()


@contextmanager
def filled(agent: Any, seed: int) -> Iterator[tuple[Table, str]]:
    """A shared table of 200 steps, the same for the same seed."""
    name = f"test-{os.getpid()}-{secrets.token_hex(3)}"
    rng = np.random.default_rng(seed)
    spec, box = agent.spec(), agent.spaces.action
    with Table(spec, 1_000, agent.index(MinSize(10)), storage=SharedMemory(name), seed=seed, timeout_s=5.0) as table:
        with table.writer() as writer:
            for step in range(200):
                box.seed(int(rng.integers(2**31)))
                writer.append(
                    observation=rng.normal(size=agent.spaces.observation_shape).astype(np.float32),
                    action=box.sample(), reward=np.float32(rng.random()),
                    terminated=step % 20 == 19, truncated=False,
                )  # fmt: skip
        yield table, name


@pytest.mark.parametrize("agent", list(AGENTS))
def test_one_learner_is_as_good_as_none(agent: str) -> None:
    """Its steps are those of an agent that updates from the same draws, priorities and noise included."""
    alone, config, spaces = made(agent)
    with filled(alone, 3) as (_, name), attach(name, stream=1) as table:
        for _ in range(20):
            batch = table.sample(ROWS, columns=alone.columns)
            priorities = alone.update(batch)
            if priorities is not None:
                table.update_priorities(batch.item_keys, priorities)
    served, _, _ = made(agent)
    with filled(served, 3) as (_, name):
        server = ParameterServer(served, config, spaces, name, ServerOptions(1, 0, "cpu", 1, seed=4))
        server._context = type("Context", (), {"Pipe": staticmethod(server._context.Pipe), "Process": InThread})()  # type: ignore[assignment]
        server.start()
        try:
            for _ in range(20):
                assert server.serve(30.0)
        finally:
            server.stop()
    assert server.num_dropped == server.num_restarts == 0 and served.num_updates == 20
    for (path, one), (_, other) in zip(flat(alone.state_dict()), flat(served.state_dict()), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=lambda text, of=path: f"{of}: {text}")


def flat(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}.")
        elif isinstance(value, torch.Tensor):
            yield path + name, value


# ---- processes -------------------------------------------------------------------------------------------------------


def test_processes_learn_and_lost_ones_are_replaced() -> None:
    """Killed it is heard of at once; stopped, when its deadline is over. Draws are those of updates, and few more."""
    agent, config, spaces = made("dqn")
    with filled(agent, 3) as (table, name):
        server = ParameterServer(agent, config, spaces, name, ServerOptions(2, 4, "cpu", 1, seed=4, deadline_s=2.0))
        server.start()
        try:
            for how in (signal.SIGKILL, signal.SIGSTOP):
                until(server, agent, agent.num_updates + 20)
                until_all_learn(server)
                (victim, _), restarts = server.pids, server.num_restarts
                os.kill(victim, how)
                until(server, agent, agent.num_updates + 20)
                deadline_s = time.monotonic() + 60
                while server.num_restarts == restarts and time.monotonic() < deadline_s:
                    server.serve(0.2)
                assert server.num_restarts == restarts + 1 and not Path(f"/proc/{victim}").exists()
                until(server, agent, agent.num_updates + 20)
                assert len(server.pids) == 2
        finally:
            server.stop()
        assert server.pids == []
        (index,) = table.stats().indexes.values()
        assert ROWS * agent.num_updates <= index.sampled <= ROWS * (agent.num_updates + 4)


def until_all_learn(server: ParameterServer) -> None:
    """A process that has just been started may be silent for minutes."""
    deadline_s = time.monotonic() + 120
    while any(member.version < 0 for member in server._members.values()):
        server.serve(0.2)
        assert time.monotonic() < deadline_s


def until(server: ParameterServer, agent: Any, num_updates: int) -> None:
    deadline_s = time.monotonic() + 120
    while agent.num_updates < num_updates:
        server.serve(0.2)
        assert time.monotonic() < deadline_s


def test_a_run_holds_its_replay_ratio_and_tells_what_it_dropped(tmp_path: Path) -> None:
    """Nothing may be stale: what is not applied is learnt from again, so that updates are as many as were asked for."""
    settings = {
        "topology": "learners(2, async)", "learning.max_gradient_staleness": 0, "acting.num_actors": 1,
        "replay.min_size": 100, "replay.updates_per_step": 0.5, "agent.batch_size": 16, "agent.network.hidden": (16,),
        "limits.max_steps": 3_000, "evaluation.num_episodes": 1, "evaluation.num_final_episodes": 1, "profile": True,
    }  # fmt: skip
    result = train(preset("dqn", "CartPole-v1", settings), tmp_path / "run")
    assert result.num_dropped > 0
    # The limiter lets either side be ahead by a tenth, or by four rounds of all environments.
    assert result.num_updates == pytest.approx(0.5 * (result.num_steps - 100), rel=0.15)
