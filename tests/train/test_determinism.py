"""The same seed gives the same parameters, to the byte, for every agent of the registry."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from relive.agents.registry import AGENTS, entry_of  # noqa: E402
from relive.train.acting.environments import describe  # noqa: E402
from relive.train.config import preset  # noqa: E402
from train.inline import learn, one_thread  # noqa: E402

# Not worth the time of the larger networks that agents have by default.
SMALLER = {
    "agent.batch_size": 16, "agent.hidden": (16, 16), "agent.network.hidden": (16, 16), "agent.random_steps": 80,
}  # fmt: skip


def digest(name: str, seed: int) -> str:
    """A hash of all parameters after 200 updates, and of everything else that a checkpoint keeps."""
    env_id = entry_of(name).environment
    known = {option: value for option, value in SMALLER.items() if _has(name, option)}
    config = preset(
        name, env_id, {"environment.seed": seed, "agent.n_step": 2, "agent.priority_exponent": 0.5, **known}
    )
    agent = config.agent.make(describe(env_id), seed=seed, device="cpu")
    learn(agent, env_id, 200, seed=seed)
    assert agent.num_updates == 200
    found = hashlib.sha256()
    for parameters in (agent.parameters(), agent.evaluation_parameters()):
        for parameter, value in parameters.items():
            found.update(parameter.encode() + value.tobytes())
    for part, state in agent.state_dict().items():
        if isinstance(state, dict):
            for key, value in state.items():
                found.update(f"{part} {key}".encode() + value.numpy().tobytes())
    return found.hexdigest()


def _has(name: str, option: str) -> bool:
    kind = preset(name, entry_of(name).environment).agent
    for part in option.split(".")[1:]:
        if not hasattr(kind, part):
            return False
        kind = getattr(kind, part)
    return True


@one_thread()
def digests() -> str:
    """One line an agent."""
    return "\n".join(f"{name} {digest(name, 3)}" for name in AGENTS)


def test_the_same_seed_gives_the_same_bytes_in_any_process() -> None:
    """Whatever the global generators hold, and however hashes of texts come out."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    mine = digests()
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    program = "import train.test_determinism as own; print(own.digests())"
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, cwd=tests,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == mine.split("\n") == digests().split("\n")


def test_another_seed_gives_others() -> None:
    assert digest("dqn", 3) != digest("dqn", 4)
