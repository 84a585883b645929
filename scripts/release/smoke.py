"""A program that an installed relive must run: writes, draws, updates, shares, saves and loads. Needs numpy only.

usage: python smoke.py [EXTRA ...]

Each extra is imported, and the part of relive that needs it.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile

import numpy as np

import relive

# The packages of each extra, and the modules of relive that need them.
EXTRAS = {
    "gymnasium": ("gymnasium", "relive.adapters.gymnasium"),
    "train": ("torch", "gymnasium", "rich", "relive.train.run", "relive.agents.dqn"),
    "service": ("pyarrow", "relive.service"),
    "ray": ("ray", "relive.fleet.ray"),
    "gpu": ("torch", "triton", "relive.gpu"),
    "mujoco": ("mujoco", "relive.adapters.gymnasium"),
    "wandb": ("wandb",),
}


def main(extras: list[str]) -> int:
    """Runs the program."""
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((3,), "float32", kind="state"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )
    index = relive.Index(relive.Transitions(n_step=3, gamma=0.99), relive.Prioritized(0.6))
    name = f"smoke-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        with relive.Table(spec, 10_000, index, storage=relive.SharedMemory(name)) as table:
            with table.writer() as writer:
                writer.extend(observation=np.ones((101, 3)), reward=np.ones(100), truncated=True)
            with relive.attach(name) as other:
                batch = other.sample(64)
                assert batch["next_observation"].shape == (64, 3) and batch.weights(beta=0.4).shape == (64,)
                assert other.update_priorities(batch.item_keys, np.ones(64)) == 64
            table.save(folder)
        with relive.load(folder) as again:
            assert len(again) == 100
            again.check()
    for extra in extras:
        for module in EXTRAS[extra]:
            importlib.import_module(module)
    print(f"relive {relive.__version__} works with {', '.join(extras) or 'numpy only'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
