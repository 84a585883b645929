"""A pytest plugin: Stable-Baselines3's own tests get our buffers wherever they name the library's."""

from __future__ import annotations

from typing import Any

import pytest
import stable_baselines3
import stable_baselines3.common.buffers as buffers
import stable_baselines3.common.off_policy_algorithm as off_policy
import stable_baselines3.her as her

from relive.adapters import sb3


class NStepReplayBuffer(sb3.ReplayBuffer):
    """The library's class of returns of several steps, whose default is 3 steps."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **options: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **options)


class _AnyBuffer(type(sb3.ReplayBuffer)):  # type: ignore[misc]
    """Every buffer of the library is an instance of the class below, as it is of the library's ReplayBuffer."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, LIBRARY_S)


LIBRARY_S = buffers.ReplayBuffer


class ReplayBuffer(sb3.ReplayBuffer, metaclass=_AnyBuffer):
    """Our buffer in the place of the library's."""


buffers.ReplayBuffer, off_policy.ReplayBuffer = sb3.ReplayBuffer, ReplayBuffer
for module in (buffers, off_policy):
    module.DictReplayBuffer = sb3.DictReplayBuffer
    module.NStepReplayBuffer = NStepReplayBuffer
for module in (stable_baselines3, her):
    module.HerReplayBuffer = sb3.HerReplayBuffer

FILES = ("test_buffers.py", "test_n_step_replay.py", "test_her.py", "test_save_load.py")
# Tests of the library that ask for parts which are not public behaviour, and why each is left out.
LEFT_OUT = {
    "test_buffer_dtypes": "it writes `full` to sample from arrays without steps",
    "test_nstep_no_terminations": "it reads the newest step of an open episode, whose return is not complete: a table"
    " publishes it when it is",
    "test_truncate_last_trajectory": "it reads and writes `ep_length`, `_current_ep_start` and the unused places of the"
    " arrays",
    "test_full_replay_buffer": "it reads `ep_length`, the library's own bookkeeping",
    "test_performance_her": "it trains for minutes; benchmarks/plugins.py compares returns",
    "test_multiprocessing": "its environments run in processes that each import the library anew, for a minute",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of LEFT_OUT with their reasons."""
    for item in items:
        for name, reason in LEFT_OUT.items():
            if item.name == name or item.name.startswith(f"{name}["):
                item.add_marker(pytest.mark.skip(reason=reason))
