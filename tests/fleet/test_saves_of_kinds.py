"""Saves of all shards that go on, beside kinds of items: each save is loaded and compared with a plain model.

The rows that come after the moments of the shards are not in the save.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.groups import SIZE, Twin, episode, grouped, items_of, spec_of_groups
from contract.ragged import write_episodes
from contract.tools import plain_spec, write_steps
from processes.shm import needs_shared_memory

import relive
from fleet.test_bounds import alone, passes, queue
from fleet.test_ragged import check as check_rows
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, attach

pytestmark = needs_shared_memory
CAPACITY = 4096


class Saved:
    """Tables over two shards: shard 0 mapped, shard 1 mapped or served. `loaded` makes them from the newest save."""

    def __init__(self, stack: ExitStack, shm_name: Callable[[], str], folder: Path, is_served: bool) -> None:
        self._stack, self._name, self._is_served = stack, shm_name, is_served
        self._owners_folder, self.path = folder / "owner", folder / "run"
        self._made: tuple[Any, Any] | None = None

    def make(self, spec: relive.StepSpec, index: Any) -> ShardedTable:
        self._made = spec, index
        owners = self._owners(None)
        places = [owner.table.config.storage.name for owner in owners]
        if self._is_served:
            places[1] = owners[1].serve("grpc://127.0.0.1:0", saves=self._owners_folder)
        ways = {"path": "service"} if self._is_served else {}
        return self._stack.enter_context(attach(places, timeout_s=30.0, **ways))

    def loaded(self) -> ShardedTable:
        owners = self._owners(self.path)
        table = self._stack.enter_context(attach([one.table.config.storage.name for one in owners], timeout_s=30.0))
        for owner in owners:
            owner.table.check()
        return table

    def _owners(self, load: Path | None) -> list[Any]:
        assert self._made is not None
        spec, index = self._made
        configs = [relive.TableConfig(spec, CAPACITY, index, relive.SharedMemory(self._name())) for _ in range(2)]
        return [self._stack.enter_context(ShardOwner(k, one, load=load)) for k, one in enumerate(configs)]


@pytest.fixture(params=["mapped", "service"])
def shards(request: Any, shm_name: Any, tmp_path: Path) -> Iterator[Saved]:
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with ExitStack() as stack:
        yield Saved(stack, shm_name, tmp_path, request.param == "service")


class Twins:
    """The groups of both shards, as one twin."""

    size = SIZE

    def __init__(self) -> None:
        self.of_shard = (Twin(20, SIZE), Twin(20, SIZE))

    def items(self) -> list[list[list[int]]]:
        return sorted(one for twin in self.of_shard for one in twin.items())


def add_members(table: ShardedTable, twins: Twins | None, first: int, prompts: tuple[tuple[int, ...], ...]) -> None:
    """Ends an episode of each prompt, in each shard."""
    for shard, of_shard in enumerate(prompts):
        with table.writer(shard=shard) as writer:
            for prompt in of_shard:
                count = 1 + first % 4
                writer.extend(**episode(first, count, prompt, truncated=True))
                if twins is not None:
                    twins.of_shard[shard].end(prompt, list(range(first, first + count)))
                first += 10


def test_groups_that_wait_for_members(shards: Saved, slow: threading.Event) -> None:
    table, twins = shards.make(spec_of_groups(), grouped(max_groups=20)), Twins()
    add_members(table, twins, 0, ((1, 2, 1, 3, 1, 2), (4, 4, 5, 4, 6)))  # full: 1 and 4; the others wait
    with table.writer(shard=0) as writer:
        writer.extend(**episode(1_000, 2, 2))  # open at the moment: the third member of its group, if it ever ends
        saving = table.save(shards.path, wait=False)
        writer.extend(**episode(1_002, 1, 2, truncated=True))
    add_members(table, None, 2_000, ((3, 3), (5, 6, 5)))  # these groups are full now, and not in the save
    assert table.num_items() == 2 + 3
    slow.set()
    saving.wait(20.0)
    copy = shards.loaded()
    assert copy.num_items() == 2 and items_of(copy, twins) == twins.items()
    add_members(copy, twins, 3_000, ((2, 3, 7), (6, 6, 5, 5)))  # 2, 5 and 6 are full; 3 and 7 wait on
    assert items_of(copy, twins) == twins.items() and copy.num_items() == 5
    copy.check()


def test_ragged_episodes(shards: Saved, slow: threading.Event) -> None:
    table = shards.make(plain_spec(), relive.Index(relive.Episodes(8, layout="ragged"), relive.Prioritized(1.0)))
    rows: dict[int, list[int]] = {}
    for shard, lengths in enumerate(((3, 7, 1, 5), (2, 8, 4))):
        with table.writer(shard=shard) as writer:
            keys = write_episodes(writer, lengths, first=100 * shard)
        ends = np.cumsum((100 * shard, *lengths))
        rows |= {int(key): [*range(a, b)] for key, a, b in zip(keys, ends[:-1], ends[1:], strict=True)}
    keys = np.array(list(rows))
    table.update_priorities(keys, np.arange(1.0, 8.0))
    with table.writer(shard=1) as writer:
        write_steps(writer, 500, 3)  # open at the moment: no item, as its lane ends there
        saving = table.save(shards.path, wait=False)
        write_steps(writer, 503, 2, truncated=True)
        write_episodes(writer, (4, 2), first=600)
    assert table.update_priorities(keys[:2], np.array([90.0, 90.0])) == 2 and table.delete(keys[3:4]) == 1
    slow.set()
    saving.wait(20.0)
    copy = shards.loaded()
    assert copy.num_items() == 7 and set(np.concatenate(list(copy.keys())).tolist()) == set(rows)
    check_rows(copy.gather(keys), rows)
    law = dict(zip(keys.tolist(), np.arange(1.0, 8.0) / 28, strict=True))
    for _ in range(4):
        batch = copy.sample(64)
        check_rows(batch, rows)
        assert np.allclose(batch.probabilities, [law[key] for key in batch.item_keys.tolist()])
    copy.check()


def test_a_queue(shards: Saved, slow: threading.Event) -> None:
    table = shards.make(plain_spec(), queue(6))
    lists: list[list[int]] = [[], []]
    with table.writer(shard=0) as near, table.writer(shard=1) as far:
        for number in range(6):
            (near, far)[number % 2].append(**alone(number))
            lists[number % 2].append(number)
        got = sorted(table.sample(3)["action"].tolist())
        lists = [[item for item in one if item not in got] for one in lists]
        saving = table.save(shards.path, wait=False)
        assert passes(near.append, **alone(50)) and len(table.sample(2)["action"]) == 2
    slow.set()
    saving.wait(20.0)
    copy = shards.loaded()
    assert copy.num_items() == 3
    with copy.writer(shard=0) as near, copy.writer(shard=1) as far:
        for number in (60, 61, 62):
            (near, far)[number % 2].append(**alone(number), timeout_s=5.0)
            lists[number % 2].append(number)
        assert not passes(near.append, **alone(70)) and not passes(far.append, **alone(70))
        left = [list(one) for one in lists]
        while any(left):
            for item in copy.sample(1)["action"].tolist():
                of = next(one for one in left if item in one)
                assert of.pop(0) == item, "the oldest of its shard comes first"
        assert copy.num_items() == 0 and passes(far.append, **alone(80))
    copy.check()


def test_late_columns(shards: Saved, slow: threading.Event) -> None:
    """Late columns that come after the moment may be in the save, and are whole then. Waiting rows wait on."""
    spec = plain_spec(score=relive.ArraySpec((3,), "float32", late=True))
    table = shards.make(spec, relive.Index(sampler=relive.Prioritized(1.0)))
    values: dict[int, int] = {}
    for shard in (0, 1):
        with table.writer(shard=shard) as writer:
            keys = write_steps(writer, 100 * shard, 40)
        values |= dict(zip(keys.tolist(), range(100 * shard, 100 * shard + 40), strict=True))
    keys = np.array(list(values))

    def complete(of: ShardedTable, chosen: np.ndarray) -> int:
        scores = np.array([np.full(3, 7 * values[key]) for key in chosen.tolist()], np.float32)
        return int(of.complete(chosen, score=scores))

    before, after, never = keys[::3], keys[1::3], keys[2::3]
    assert complete(table, before) == len(before)
    saving = table.save(shards.path, wait=False)
    assert complete(table, after) == len(after)
    slow.set()
    saving.wait(20.0)
    copy = shards.loaded()

    def are_whole(chosen: np.ndarray) -> list[bool]:
        batch = copy.gather(chosen, columns=["action", "score"])
        there = np.asarray(batch.present)
        expected = np.array([values[key] for key in chosen.tolist()])
        assert (batch["action"][there] == expected[there]).all()
        assert (batch["score"][there] == 7 * expected[there, None]).all()
        return there.tolist()

    assert all(are_whole(before)) and not any(are_whole(never))
    rest = after[~np.array(are_whole(after))]
    assert copy.num_items() == len(keys) - len(never) - len(rest)
    assert complete(copy, np.concatenate([never, rest])) == len(never) + len(rest)
    assert all(are_whole(keys)) and copy.num_items() == len(keys)
    with pytest.raises(errors.AlreadyCompleted):
        complete(copy, before[:1])
    batch = copy.sample(256, columns=["action", "score"])
    assert (batch["score"] == 7 * batch["action"][:, None]).all() and set(batch.item_keys.tolist()) <= set(values)
    copy.check()
