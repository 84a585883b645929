"""Every sampler with every remover beside a naive twin; what removers by chance keep; what is refused."""

from __future__ import annotations

import itertools
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import DeadlineExceeded, InvalidConfig, NoPriorities

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
SAMPLERS = (
    relive.Uniform(),
    relive.Prioritized(),
    relive.Fifo(),
    relive.Lifo(),
    relive.MaxPriority(),
    relive.MinPriority(),
)
REMOVERS = (
    relive.Fifo(),
    relive.Lifo(),
    relive.MinPriority(),
    relive.MaxPriority(),
    relive.Uniform(),
    relive.Prioritized(1.0),
    relive.Reservoir(),
)
BY_CHANCE = (relive.Uniform, relive.Prioritized, relive.Reservoir)


class Item:
    """An item of the twin: its priority, its place in the order of arrival, and its place in the order of updates."""

    def __init__(self, number: int, priority: float, ticket: int) -> None:
        self.number, self.priority, self.came, self.changed, self.uses = number, priority, ticket, ticket, 0

    def rank(self, kind: Any) -> tuple[float, ...]:
        """The lower the earlier it is drawn, or goes."""
        sign = -1.0 if isinstance(kind, (relive.Lifo, relive.MaxPriority)) else 1.0
        if isinstance(kind, (relive.Fifo, relive.Lifo)):
            return (sign * self.came,)
        return (sign * self.priority, self.changed)


class Twin:
    """The items of one index, as the words say it."""

    def __init__(self, sampler: Any, remover: Any, max_items: int, uses: int | None) -> None:
        self.sampler, self.remover, self.max_items, self.uses = sampler, remover, max_items, uses
        self.items: dict[int, Item] = {}
        self.ticket, self.largest = 0, 1.0

    def insert(self, key: int, number: int, priority: float | None) -> None:
        self.ticket += 1
        self.largest = max(self.largest, priority or 0.0)
        self.items[key] = Item(number, self.largest if priority is None else priority, self.ticket)
        if len(self.items) > self.max_items and not isinstance(self.remover, BY_CHANCE):
            del self.items[min(self.items, key=lambda one: self.items[one].rank(self.remover))]

    def update(self, key: int, priority: float) -> None:
        self.largest = max(self.largest, priority)
        if key in self.items:
            self.ticket += 1
            self.items[key].priority, self.items[key].changed = priority, self.ticket

    def draw(self, count: int) -> list[int] | None:
        """The keys of a batch, in turns of all that are left; None where there are too few uses for it."""
        order = sorted(self.items, key=lambda one: self.items[one].rank(self.sampler))
        if not order:
            return None
        if self.uses is None:
            return [order[k % len(order)] for k in range(count)]
        if sum(self.uses - self.items[key].uses for key in order) < count:
            return None
        chosen: list[int] = []
        while len(chosen) < count:
            left = [key for key in order if self.items[key].uses < self.uses]
            for k in range(count - len(chosen)):
                if self.items[left[k % len(left)]].uses < self.uses:
                    self.items[left[k % len(left)]].uses += 1
                    chosen.append(left[k % len(left)])
        for key in [key for key in order if self.items[key].uses >= self.uses]:
            del self.items[key]
        return chosen


def play(rng: random.Random, table: relive.Table, writer: Any, twin: Twin, keys: list[int], turn: int) -> None:
    """One operation on both."""
    looks = table.config.index["default"].has_priorities
    operation = rng.random()
    if operation < 0.5:
        priority = rng.choice([0.0, 0.5, 1.0, 2.0, 3.5, 1e30, None]) if looks else None
        keys.append(int(writer.append(number=turn, priority=priority)))
        twin.insert(keys[-1], turn, priority)
    elif operation < 0.65 and looks and keys:
        some = rng.sample(keys, min(3, len(keys)))
        given = [rng.choice([0.0, -0.0, 1.0, 2.0, 7.0, 100.0]) for _ in some]
        table.update_priorities(np.array(some), given)
        for key, priority in zip(some, given, strict=True):
            twin.update(key, priority)
    elif operation < 0.72 and twin.items:
        key = rng.choice(sorted(twin.items))
        assert table.delete(np.array([key])) == 1
        del twin.items[key]
    elif twin.items and not isinstance(twin.sampler, BY_CHANCE):
        count = rng.randint(1, 5)
        expected = twin.draw(count)
        if expected is None:
            with pytest.raises(DeadlineExceeded):
                table.sample(count, timeout_s=0.0)
            return
        batch = table.sample(count, timeout_s=0.0)
        got = batch.item_keys.tolist()
        assert got == expected if twin.uses is None else sorted(got) == sorted(expected)
        assert (batch.probabilities == 1.0).all() and (batch.weights(beta=0.4) == 1.0).all()


@pytest.mark.forms(42)
@pytest.mark.core_alone
@pytest.mark.parametrize(("sampler", "remover"), list(itertools.product(SAMPLERS, REMOVERS)))
@pytest.mark.parametrize("uses", [None, 1, 2])
def test_beside_a_twin(sampler: Any, remover: Any, uses: int | None) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        max_items = rng.choice([1, 2, 5, 13])
        index = relive.Index(sampler=sampler, remover=remover, max_items=max_items, max_times_sampled=uses)
        with relive.Table(SPEC, 4000, index, seed=seed) as table, table.writer() as writer:
            twin = Twin(sampler, remover, max_items, uses)
            keys: list[int] = []
            for turn in range(80):
                play(rng, table, writer, twin, keys, turn)
                table.check()
                if keys and isinstance(remover, BY_CHANCE):
                    there = table.gather(np.array(keys)).present
                    kept = {key for key, is_there in zip(keys, there, strict=True) if is_there}
                    twin.items = {key: item for key, item in twin.items.items() if key in kept}
                assert table.num_items() == len(twin.items) <= max_items


@pytest.mark.core_alone
@pytest.mark.parametrize(
    ("remover", "expected"), [(relive.Uniform(), "older less"), (relive.Reservoir(), "all the same")], ids=str
)
def test_how_long_items_stay(remover: Any, expected: str) -> None:
    """10 of 40 items stay. Uniform: each new item ends each of 11 items with 1/11. A reservoir keeps each with 1/4."""
    tables, kept = 1200, np.zeros(40)
    for seed in range(tables):
        index = relive.Index(remover=remover, max_items=10)
        with relive.Table(SPEC, 100, index, seed=seed) as table, table.writer() as writer:
            keys = [int(writer.append(number=n)) for n in range(40)]
            kept += table.gather(np.array(keys)).present
    newcomers = np.minimum(np.arange(40, 0, -1), 30)  # that each item was judged beside, itself among them
    share = (10 / 11) ** newcomers if expected == "older less" else np.full(40, 0.25)
    deviation = (kept - tables * share) / np.sqrt(tables * share * (1 - share))
    assert (deviation**2).sum() < 85, "40 terms of chi-square: above once in 20,000"


@pytest.mark.core_alone
def test_a_prioritized_remover_goes_by_shares() -> None:
    """One of two items and a new item leaves, with its share of the masses. A mass of 0 leaves only if all are 0."""
    gone = np.zeros(3)
    for seed in range(2_000):
        index = relive.Index(remover=relive.Prioritized(2.0), max_items=2)
        with relive.Table(SPEC, 100, index, seed=seed) as table, table.writer() as writer:
            keys = [int(writer.append(number=n, priority=p)) for n, p in enumerate((1.0, 2.0, 3.0))]
            gone += ~table.gather(np.array(keys)).present
    expected = 2_000 * np.array([1.0, 4.0, 9.0]) / 14.0
    assert ((gone - expected) ** 2 / expected).sum() < 18  # two degrees of freedom: once in 8,000
    index = relive.Index(remover=relive.Prioritized(1.0), max_items=2)
    with relive.Table(SPEC, 100, index) as table, table.writer() as writer:
        keys = [int(writer.append(number=n, priority=0.0)) for n in range(30)]
        assert table.num_items() == 2 and sum(table.gather(np.array(keys)).present) == 2
        keys = [int(writer.append(number=n, priority=1.0)) for n in range(2)]
        table.update_priorities(np.array(keys), [0.0, 1.0])
        table.check()


def test_the_same_seed_keeps_the_same_items() -> None:
    def kept(remover: Any, seed: int) -> list[bool]:
        index = relive.Index(remover=remover, max_items=20)
        with relive.Table(SPEC, 1000, index, seed=seed) as table, table.writer() as writer:
            keys = writer.extend(number=np.arange(500))
            return [bool(is_there) for is_there in table.gather(keys).present]

    for remover in (relive.Uniform(), relive.Reservoir(), relive.Prioritized()):
        assert kept(remover, 3) == kept(remover, 3) != kept(remover, 4)


def test_subnormal_priorities_keep_their_order() -> None:
    """Also where a thread of this process flushes subnormal numbers to 0, as learners do."""
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    tiny = np.array([4e-45, 0.0, 1e-40, 1.4e-45], np.float32)
    torch.set_flush_denormal(True)
    try:
        with relive.Table(SPEC, 100, relive.Index(sampler=relive.MinPriority())) as table, table.writer() as writer:
            keys = writer.extend(number=np.arange(4))
            table.update_priorities(keys, tiny)
            assert table.sample(4)["number"].tolist() == [1, 3, 0, 2]
    finally:
        torch.set_flush_denormal(False)


def test_more_than_a_batch_of_a_million_leaves() -> None:
    with relive.Table(SPEC, 50_000, relive.Index(sampler=relive.MaxPriority())) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(50_000))
        priorities = np.random.default_rng(0).permutation(50_000).astype(np.float32)
        table.update_priorities(keys, priorities)
        order = np.argsort(-priorities)
        assert table.sample(4_096)["number"].tolist() == order[:4_096].tolist()
        table.delete(keys[order[:5]])
        assert table.draw(300).item_keys.tolist() == keys[order[5:305]].tolist()


def test_large_batches_have_no_item_twice_while_others_are_left() -> None:
    """Beyond what one critical section claims, and where some of the first ones are used up within the batch."""
    index = relive.Index(sampler=relive.Fifo(), max_times_sampled=2)
    with relive.Table(SPEC, 2_000, index) as table, table.writer() as writer:
        writer.extend(number=np.arange(1_000))
        assert table.sample(300)["number"].tolist() == list(range(300))
        assert table.sample(1_000)["number"].tolist() == list(range(1_000))
        assert table.sample(700)["number"].tolist() == list(range(300, 1_000))
        with pytest.raises(DeadlineExceeded):
            table.sample(1, timeout_s=0.0)
        table.check()


@pytest.mark.parametrize("sampler", SAMPLERS[2:], ids=lambda one: type(one).__name__)
def test_batches_beside_a_writer_are_in_order_and_have_no_item_twice(sampler: Any) -> None:
    """Items leave during draws. A batch shows one moment, or is drawn again."""
    index = relive.Index(sampler=sampler, max_items=600)
    with relive.Table(SPEC, 1_200, index) as table:
        is_over = threading.Event()

        def write() -> None:
            first = 0
            with table.writer() as writer:
                while not is_over.is_set():
                    numbers = np.arange(first, first + 30)
                    writer.extend(number=numbers, priority=numbers * 7 % 100 if index.has_priorities else None)
                    first += 30

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(150):
                batch = table.sample(300, timeout_s=30.0)
                if batch.num_live_items >= 300:
                    assert len(np.unique(batch.item_keys)) == 300
                    numbers = batch["number"] * 7 % 100 if index.has_priorities else batch["number"]
                    sign = -1 if isinstance(sampler, (relive.Lifo, relive.MaxPriority)) else 1
                    assert (np.diff(sign * numbers) >= 0).all()
        finally:
            is_over.set()
            thread.join()
        table.check()


@pytest.mark.parametrize("remover", REMOVERS[1:], ids=lambda one: type(one).__name__)
def test_what_a_remover_needs(remover: Any) -> None:
    name = type(remover).__name__
    with pytest.raises(InvalidConfig, match=f"max_items.*{name}"):
        relive.Index(remover=remover)
    relive.Index(relive.Explicit(relive.Window(3), max_items=20), remover=remover)  # these have their own
    relive.Index(relive.Episodes(8, group_by="prompt", group_size=2, max_groups=10), remover=remover)


def test_one_initial_priority_an_index() -> None:
    with pytest.raises(InvalidConfig, match="initial of the remover"):
        relive.Index(sampler=relive.Prioritized(), remover=relive.MinPriority(initial="given"), max_items=3)
    given = relive.Index(sampler=relive.Prioritized(initial="given"), remover=relive.MinPriority(), max_items=3)
    with relive.Table(SPEC, 10, given) as table, table.writer() as writer:
        key = writer.append(number=1)
        assert table.num_items() == 0
        table.update_priorities([key], [2.0])
        assert table.num_items() == 1
    with pytest.raises(InvalidConfig, match="initial"):
        relive.MaxPriority(initial="least")  # type: ignore[arg-type]
    alone = relive.Index(remover=relive.MaxPriority(initial=4.0), max_items=2)
    with relive.Table(SPEC, 10, alone) as table, table.writer() as writer:
        keys = [int(writer.append(number=n, priority=p)) for n, p in enumerate((3.0, None, 5.0))]
        assert table.gather(np.array(keys)).present.tolist() == [True, True, False]
    with relive.Table(SPEC, 10, relive.Index(remover=relive.Lifo(), max_items=2)) as table, table.writer() as writer:
        with pytest.raises(NoPriorities, match="looks at"):
            table.update_priorities([writer.append(number=0)], [1.0])


@pytest.mark.parametrize(("sampler", "remover"), list(itertools.product(SAMPLERS, REMOVERS)))
def test_it_is_written_down_and_read_again(sampler: Any, remover: Any, tmp_path: Path) -> None:
    index = relive.Index(sampler=sampler, remover=remover, max_items=7)
    assert pickle.loads(pickle.dumps(index)) == index == relive.Index.from_dict(index.to_dict())
    pytest.importorskip("pyarrow.flight", reason="the service is not installed here")
    from relive.service.config import load_config

    path = tmp_path / "table.toml"
    path.write_text(
        f"""
[tables.one]
capacity = 100
storage = "local"
columns = {{ action = {{ dtype = "int64" }} }}
index = {{ max_items = 7, sampler = {{ type = "{type(sampler).__name__}" }}, remover = {{ type = "Lifo" }} }}
"""
    )
    read = load_config(path).tables["one"].index["default"]
    assert type(read.sampler) is type(sampler) and read.remover == relive.Lifo()
