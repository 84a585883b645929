"""Writes a golden save of shards: a small table over two shards as today's formats save it, and the answers of it.

usage: python tests/fleet/make_golden.py        (after a change of the region format or of the formats of saves)

A golden save is two files under tests/fleet/golden: `shardsS-formatF-regionR.tar.xz`, the folder, and
`shardsS-formatF-regionR.npz.xz`, the answers of the table that was saved. Files of earlier formats stay:
test_golden_saves loads each of them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from saving.make_golden import SPEC, answers, keep  # noqa: E402

import relive  # noqa: E402
from relive.fleet import ShardedTable, ShardOwner, attach  # noqa: E402
from relive.fleet.saved import FORMAT as SHARDS_FORMAT  # noqa: E402
from relive.saving.current import FORMAT  # noqa: E402

GOLDEN = Path(__file__).resolve().parent / "golden"
BESIDE = {"learner": b"bytes beside the shards"}
INDEXES = {
    "steps": relive.Index(relive.Transitions(n_step=3, gamma=0.5), relive.Prioritized(0.6)),
    "groups": relive.Index(
        relive.Episodes(10, group_by="prompt", group_size=2, max_groups=12),
        relive.PromptGroups("mean", of="score", priority_exponent=0.5),
    ),
    "sequences": relive.Index(relive.Sequences(6, burn_in=2, period=3, at_end="shift")),
}


@contextmanager
def owned(names: list[str], load: Any = None) -> Iterator[None]:
    """Owners of two shards in this process, new or from a save."""
    with ExitStack() as stack:
        for number, name in enumerate(names):
            config = relive.TableConfig(SPEC, 120, INDEXES, relive.SharedMemory(name), seed=41, max_lanes=4)
            stack.enter_context(ShardOwner(number, config, load=load))
        yield


def opened(names: list[str]) -> ShardedTable:
    """A new handle on both shards, whose draws are those of one stream from its beginning."""
    return attach(names, stream=5, timeout_s=30.0)


def present_name() -> str:
    """The name of a golden save of today's formats."""
    with relive.Table(SPEC, 100) as table:
        version = table.core.geometry["format_version"]
    return f"shards{SHARDS_FORMAT}-format{FORMAT}-region{version}"


def write(table: ShardedTable) -> set[int]:
    """Steps of both shards, some of them evicted; groups wait for members, and steps for late columns. Returns keys."""
    rng = np.random.default_rng(7)
    keys: list[int] = []
    for shard in (0, 1):
        with table.writer(shard=shard) as writer:
            for episode in range(25 + 4 * shard):
                length = 3 + episode % 6
                for step in range(length):
                    row = {"action": 1_000 * shard + 10 * episode + step, "reward": float(rng.integers(10))}
                    state, after = (np.array([episode, at, shard], np.float32) for at in (step, step + 1))
                    row |= {"observation": state, "memory": np.full(20, episode, np.float32), "prompt": episode // 3}
                    keys.append(writer.append(**row, next_observation=after, terminated=step == length - 1))
                    if episode % 5 != 3:
                        table.complete([keys[-1]], score=[float(rng.integers(1, 8))])
    recent = np.array(keys[-100:], np.int64)
    table.update_priorities(recent, rng.uniform(0.1, 6.0, len(recent)), index="steps")
    table.set_policy_version(3)
    for index in table.indexes:
        table.sample(5, index=index)
    return set(keys)


def main() -> None:
    names = [f"golden-shards-{os.getpid()}-{number}" for number in (0, 1)]
    with tempfile.TemporaryDirectory() as folder, owned(names):
        with opened(names) as table:
            write(table)
            table.save(folder, BESIDE)
        with opened(names) as table:
            keep(Path(folder), GOLDEN / present_name(), answers(table))


if __name__ == "__main__":
    main()
