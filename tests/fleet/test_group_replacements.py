"""Items that go between a draw and its gather: a leader draws others alone, and the leaders stay in step."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from processes.tools import eventually

import relive
from fleet.test_group_reader import bits
from fleet.tools import PATHS, Together, config_of, fill, in_threads
from relive import errors
from relive.core.request import DrawRequest
from relive.fleet import GroupReader, ShardedTable, ShardOwner, attach
from relive.fleet.drawing import Drawn

pytestmark = needs_shared_memory
CAPACITY = 128  # steps of a shard
Places = list[str]
Work = Callable[[int, ShardedTable, GroupReader], Any]


@pytest.fixture
def shards(shm_name: Any) -> Iterator[Callable[..., Places]]:
    """shards(paths, index, steps): the places of shards, each with so many steps."""
    with contextlib.ExitStack() as stack:

        def make(paths: tuple[str, ...] = ("mapped", "mapped"), index: Any = None, steps: int = CAPACITY) -> Places:
            names = [shm_name() for _ in paths]
            owners = [
                stack.enter_context(ShardOwner(number, config_of(name, index, CAPACITY)))
                for number, name in enumerate(names)
            ]
            with attach(names) as table:
                for number in range(len(names)):
                    fill(table, number, CAPACITY * number, steps)
            return [owners[at].serve() if path == "service" else names[at] for at, path in enumerate(paths)]

        yield make


def opened(places: Places, **options: Any) -> ShardedTable:
    path: Any = "service" if any("://" in place for place in places) else None
    return attach(places, path=path, timeout_s=30.0, **options)


def on_mesh(places: Places, work: Work, root_age: int = 1, is_shared: bool = True) -> list[Any]:
    """work(group, table, reader) on 2 x 2 ranks: two groups that read by keys, whose leaders draw together.

    is_shared=False: each leader draws for itself.
    """
    groups = [Together(2) for _ in range(3)]
    data, *tensor = ([*group.ranks()] for group in groups)

    def rank(number: int, _: Any) -> Any:
        group, place = divmod(number, 2)
        exchange = data[group] if place == 0 and is_shared else None
        try:
            with opened(places, exchange=exchange, root_age=1 if place else root_age, stream=number) as table:
                return work(group, table, GroupReader(table, tensor[group][place], "keys"))
        except BaseException as error:
            for one in groups:
                one.abort()
            raise AssertionError(f"rank {number}: {error!r}") from error

    return in_threads(rank, 4)


class Between:
    """Calls a function with the keys of the next batch, between its draw and its gather by this handle."""

    def __init__(self, table: ShardedTable) -> None:
        self._plain = table.gather_arrays
        self._next: list[Callable[[np.ndarray], object]] = []
        table.gather_arrays = self._gather  # type: ignore[method-assign]

    def then(self, removes: Callable[[np.ndarray], object]) -> None:
        """Once, in the next gather."""
        self._next.append(removes)

    def _gather(self, selection: Any, keys: np.ndarray, timeout_s: float | None = None) -> Any:
        if self._next:
            self._next.pop()(keys.copy())
        return self._plain(selection, keys, timeout_s)


class Seen:
    """The roots and numbers that the ranks of a leader agreed on, and its draws."""

    def __init__(self, table: ShardedTable) -> None:
        self.agreed: list[Any] = []
        self.drawn: list[Drawn] = []
        self._drawing, self._roots = table._fleet.drawing, table._fleet.agreement.roots
        self._taken = self._drawing._taken
        self._drawing.agreement.roots = self._agree  # type: ignore[method-assign]
        self._drawing._taken = self._take  # type: ignore[method-assign]

    def _agree(self, *arguments: Any) -> Any:
        roots = self._roots(*arguments)
        self.agreed.append((self._drawing.agreement.number, roots))
        return roots

    def _take(self, *arguments: Any) -> Drawn:
        self.drawn.append(self._taken(*arguments))
        return self.drawn[-1]


def exchanged(table: ShardedTable) -> list[bytes]:
    """The bytes of each call of the handle's exchange from now on."""
    exchange, told = table._fleet.agreement._exchange, list[bytes]()
    plain = exchange.all_gather

    def all_gather(mine: bytes, timeout_s: float) -> list[bytes]:
        told.append(mine)
        return plain(mine, timeout_s)

    exchange.all_gather = all_gather  # type: ignore[method-assign]
    return told


def counts(table: ShardedTable) -> tuple[int, int]:
    """Items sampled, and items in flight."""
    index = table.stats().indexes["default"]
    return index.sampled, index.in_flight


# ---- a mesh --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize(("root_age", "is_shared"), [(1, True), (3, True), (3, False)])
def test_items_that_are_evicted_are_replaced_by_their_leader_alone(
    shards: Any, paths: tuple[str, ...], root_age: int, is_shared: bool
) -> None:
    """Each batch of group 0 loses items to a writer, and each third batch of group 1."""
    places, num_calls, num_items = shards(paths), 7, 16
    actions, lock, first = dict[int, int](), threading.Lock(), itertools.count(2 * CAPACITY, 64)
    gone = [0, 0]

    def evict(table: ShardedTable, group: int, keys: np.ndarray) -> None:
        with lock:
            for shard in (0, 1):
                value = next(first)
                with table.writer(shard=shard) as writer:
                    some = np.arange(value, value + 64)
                    states = np.repeat(np.append(some, value + 64)[:, None], 2, axis=1)
                    made = writer.extend(observation=states, action=some, reward=some, truncated=True)
                actions.update(zip(made.tolist(), some.tolist(), strict=True))
        gone[group] += int((~table.gather(keys).present).sum())

    with opened(places) as table:
        there = np.concatenate([*table.keys()])
        actions.update(zip(there.tolist(), table.gather(there)["action"].tolist(), strict=True))

    def work(group: int, table: ShardedTable, reader: GroupReader) -> Any:
        if not reader.is_leader:
            return [reader.sample(num_items) for _ in range(num_calls)], None
        between, seen, told = Between(table), Seen(table), exchanged(table)
        batches = []
        for call in range(num_calls):
            if group == 0 or call % 3 == 1:
                between.then(lambda keys: evict(table, group, keys))
            batches.append(reader.sample(num_items))
        return batches, (seen, len(told), table._fleet.agreement.number)

    results = on_mesh(places, work, root_age, is_shared)
    for (mine, _), (theirs, _) in (results[:2], results[2:]):
        assert [bits(one) for one in mine] == [bits(one) for one in theirs]
        for batch in mine:
            assert [actions[key] for key in batch.item_keys.tolist()] == batch["action"].tolist()
            assert (batch["observation"] == batch["action"][:, None]).all()
            assert ((batch.probabilities > 0.5 / 256) & (batch.probabilities < 2.0 / 100)).all()
    assert min(gone) > 0
    (seen, num_told, number), (other, other_told, other_number) = results[0][1], results[2][1]
    assert len(seen.drawn) > num_calls and len(other.drawn) > num_calls  # with the replacements
    if is_shared:
        assert number == other_number == num_calls and seen.agreed == other.agreed
        assert num_told == other_told == -(-num_calls // root_age)
    with opened(places) as table:
        num_drawn = sum(len(drawn.item_keys) for drawn in seen.drawn + other.drawn)
        assert eventually(lambda: counts(table) == (num_drawn, 0)), "the items that are gone count, too"
        table.check()


@pytest.mark.parametrize("paths", PATHS)
def test_a_replacement_waits_for_the_limiter(shards: Any, paths: tuple[str, ...]) -> None:
    """The items that are gone count, too: with the replacements the batch is more than the limiter lets pass."""
    limiter = relive.SamplesPerInsert(1.0, min_size=8, tolerance=8)  # 0 to 16 samples less than inserts
    places = shards(paths, relive.Index(limiter=limiter), steps=8)
    others_have, has_failed = [threading.Event(), threading.Event()], threading.Event()
    num_gone: list[int] = []

    def work(group: int, table: ShardedTable, reader: GroupReader) -> Any:
        first, between = reader.sample(4), Between(table)

        def removes(keys: np.ndarray) -> None:
            assert others_have[len(num_gone)].wait(60.0)  # the draw of the other leader
            assert table.delete(keys[:1]) == 1
            num_gone.append(int((keys == keys[0]).sum()))

        if group == 1:
            batches = [first]
            for one in others_have:
                batches.append(reader.sample(4))
                if reader.is_leader:
                    one.set()
                assert has_failed.wait(60.0)
            return [bits(one) for one in batches]
        if reader.is_leader:
            between.then(removes)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            reader.sample(4, timeout_s=4.0)
        if reader.is_leader:
            assert f"{num_gone[0]} samples left" in str(caught.value.needs)
            assert eventually(lambda: counts(table) == (12, 0)), "the draw goes back"
            fill(table, 0, 500, 8)
            between.then(removes)
            has_failed.set()
        return [bits(first), bits(reader.sample(4))]

    results = on_mesh(places, work)
    assert results[0] == results[1] and results[2] == results[3]
    with opened(places) as table:
        assert eventually(lambda: counts(table) == (12 + 4 + num_gone[1] + 4, 0))


def test_ctrl_c_gives_a_batch_and_its_replacements_back(shards: Any) -> None:
    places = shards()

    def work(rank: int, exchange: Any) -> Any:
        with opened(places, exchange=exchange, stream=rank) as table:
            (alone,) = Together(1).ranks()
            reader, between = GroupReader(table, alone, "keys"), Between(table)

            def interrupts(keys: np.ndarray) -> None:
                assert counts(table)[1] >= 20
                raise KeyboardInterrupt

            def removes(keys: np.ndarray) -> None:
                table.delete(keys[:4])
                between.then(interrupts)

            if rank == 0:
                between.then(removes)
                with pytest.raises(KeyboardInterrupt):
                    reader.sample(16)
            else:
                reader.sample(16)
            exchange.all_gather(b"", 60.0)
            assert eventually(lambda: counts(table)[1] == 0)
            sampled = counts(table)
            exchange.all_gather(b"", 60.0)
            reader.sample(16)
            return sampled, table._fleet.agreement.number

    assert in_threads(work, 2) == [((16, 0), 2)] * 2


# ---- the draw of one rank ------------------------------------------------------------------------------------------


def replaced(table: ShardedTable, first: Drawn, num_items: int, times: int) -> list[Drawn]:
    """A draw in place of the first one, a draw in place of that, and so on. All go back at the end."""
    drawing, chain = table._fleet.drawing, [first]
    for _ in range(times):
        chain.append(drawing.replace(chain[-1].call, DrawRequest(0, num_items), 10.0))
    for one in reversed(chain[1:]):
        drawing.give_back(one)
    return chain[1:]


def test_the_numbers_of_replacements_are_those_of_no_other_draw(shards: Any) -> None:
    """They follow from the replaced draw and the stream of the rank. The ranks' own numbers and roots stay."""

    def run(is_disturbed: bool) -> list[Any]:
        places = shards()

        def work(rank: int, exchange: Any) -> Any:
            with opened(places, exchange=exchange, stream=rank, root_age=3) as table:
                drawing, agreement = table._fleet.drawing, table._fleet.agreement
                first = drawing.hold(DrawRequest(0, 16), 10.0)
                told, before = exchanged(table), (agreement.number, dict(agreement._agreed))
                chain = replaced(table, first, 5, times=4)
                if is_disturbed:  # as after another history of this rank, in which a draw was replaced more often
                    replaced(table, chain[-1], 5, times=3)
                assert not told and before == (agreement.number, dict(agreement._agreed))
                drawing.commit(first)
                calls = [drawing.hold(DrawRequest(0, 16), 10.0).call for _ in range(3)]
                assert calls == [1, 2, 3] and len(told) == 1
                shown = [table.gather(one.item_keys)["action"].tolist() for one in chain]
                return [one.call for one in chain], shown

        return in_threads(work, 2)

    told = run(False)
    assert told == run(True)
    numbers = [call for calls, _ in told for call in calls]
    assert len(set(numbers)) == len(numbers) == 8 and min(numbers) > 2**40
    assert len({tuple(one) for _, shown in told for one in shown}) == 8


@pytest.mark.parametrize("paths", PATHS)
def test_few_items_come_from_each_shard_by_its_share(shards: Any, paths: tuple[str, ...]) -> None:
    places, times = shards(paths, steps=32), 600

    def work(rank: int, exchange: Any) -> Any:
        with opened(places, exchange=exchange, stream=rank) as table:
            if rank == 0:
                fill(table, 1, 1_000, 64)
            first = table._fleet.drawing.hold(DrawRequest(0, 16), 10.0)
            chain = replaced(table, first, 1, times) if rank == 1 else []
            table._fleet.drawing.give_back(first)
            exchange.all_gather(b"", 60.0)
            return np.array([(one.item_keys[0] >> 51, one.probabilities[0]) for one in chain])

    _, drawn = in_threads(work, 2)
    assert np.allclose(drawn[:, 1], 1 / 128)
    assert abs(np.mean(drawn[:, 0]) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / times)


@pytest.mark.parametrize("path", ["mapped", "service"])
def test_an_only_shard_gives_all_replacements(shards: Any, path: str) -> None:
    if path == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    results = on_mesh(shards((path,)), _loses_four)
    assert results[0] == results[1] and results[2] == results[3]


def _loses_four(group: int, table: ShardedTable, reader: GroupReader) -> Any:
    if reader.is_leader and group == 0:
        Between(table).then(lambda keys: table.delete(keys[:4]))
    return [bits(reader.sample(16)) for _ in range(2)]
