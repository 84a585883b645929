"""Ranks that give up, close, or make another call: the ranks stay in step. The ranks are handles of this process."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, prioritized, write_steps
from processes.shm import needs_shared_memory

import relive
from fleet.tools import config_of, fill, in_threads
from relive import errors
from relive.fleet import GroupReader, RanksDisagree, ShardedTable, ShardOwner, agreement, attach
from relive.fleet.agreement import Agreement

pytestmark = needs_shared_memory
Names = list[str]


class Posts:
    """The calls of a group. A rank does not wait: it posts its bytes, and gives up until all ranks have posted."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.posted: list[list[bytes]] = [[] for _ in range(world)]  # by rank and call
        self.taken = [0] * world  # calls of each rank that ended
        self.calls = [_Calls() for _ in range(world)]

    def rank(self, number: int) -> PostingRank:
        """One more exchange of a rank."""
        return PostingRank(self, number)


class _Calls:
    """The calls of one rank, which its exchanges share."""


class PostingRank:
    """An exchange of one rank."""

    def __init__(self, group: Posts, rank: int) -> None:
        self.group, self.rank, self.world = group, rank, group.world
        self.calls = group.calls[rank]
        self.timeouts_s: list[float] = []

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        self.timeouts_s.append(timeout_s)
        posted, at = self.group.posted, self.group.taken[self.rank]
        if len(posted[self.rank]) == at:
            posted[self.rank].append(mine)
        if any(len(one) <= at for one in posted):
            raise errors.DeadlineExceeded("all ranks", "fewer", timeout_s)
        self.group.taken[self.rank] += 1
        return [one[at] for one in posted]

    def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> Any:
        """No test comes so far."""
        raise NotImplementedError


@pytest.fixture
def shards(shm_name: Any) -> Iterator[Callable[..., Names]]:
    with contextlib.ExitStack() as stack:

        def make(index: Any = None, steps: int = 100) -> Names:
            names = [shm_name() for _ in range(2)]
            for number, name in enumerate(names):
                stack.enter_context(ShardOwner(number, config_of(name, index)))
            if steps:
                with attach(names) as table:
                    for shard in (0, 1):
                        fill(table, shard, 100 * shard, steps)
            return names

        yield make


@pytest.fixture
def tables() -> Iterator[Callable[..., list[ShardedTable]]]:
    """tables(names, posts): a handle a rank, all of them attached."""
    with contextlib.ExitStack() as stack:

        def make(names: Names, posts: Posts, **options: Any) -> list[ShardedTable]:
            def of(rank: int) -> ShardedTable:
                return attach(names, exchange=posts.rank(rank), **options)

            for rank in range(posts.world - 1):
                gives_up(lambda rank=rank: of(rank))
            last = of(posts.world - 1)
            found = [*(of(rank) for rank in range(posts.world - 1)), last]
            return [stack.enter_context(one) for one in found]

        yield make


def gives_up(call: Callable[[], Any]) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        call()


def disagrees(call: Callable[[], Any]) -> RanksDisagree:
    with pytest.raises(RanksDisagree) as caught:
        call()
    return caught.value


def are_in_step(mine: ShardedTable, theirs: ShardedTable, num_items: int = 8) -> bool:
    """Draws on both ranks; whether their slices are of one draw."""
    gives_up(lambda: mine.draw(num_items))
    keys = [theirs.draw(num_items).item_keys, mine.draw(num_items).item_keys]
    together = np.bincount(np.concatenate(keys) >> 51, minlength=2)
    return mine.next_draw == theirs.next_draw and together.tolist() == [num_items, num_items]


def test_draws_of_two_tables_are_not_mixed(shards: Any, tables: Any) -> None:
    posts = Posts(2)
    x, y = tables(shards(), posts), tables(shards(), posts)
    gives_up(lambda: x[0].sample(8))
    assert disagrees(lambda: y[1].sample(8)).what == "a table of its call"
    assert disagrees(lambda: x[0].sample(8)).rank == 1
    assert [one.stats().indexes["default"].sampled for one in (x[0], y[0])] == [0, 0]
    assert are_in_step(*x) and are_in_step(*y)


def test_a_draw_and_a_group_reader_disagree(shards: Any, tables: Any) -> None:
    posts = Posts(2)
    drawing = tables(shards(), posts)[0]
    reader = GroupReader(None, posts.rank(1), leader=0)
    gives_up(lambda: reader.sample(8))
    problem = disagrees(lambda: drawing.sample(8))
    assert problem.rank == 1 and problem.expected == "a draw" and "GroupReader" in str(problem.got)


@pytest.mark.parametrize("root_age", [1, 8])
def test_a_group_reader_over_the_group_of_its_own_table_is_refused(shards: Any, tables: Any, root_age: int) -> None:
    """The draw of the leader would be a call of the other ranks, too, which do not draw."""
    posts = Posts(2)
    table = tables(shards(), posts, root_age=root_age)[0]
    with pytest.raises(errors.InvalidConfig, match="of another group"):
        GroupReader(table, posts.rank(0))
    assert GroupReader(table, Posts(2).rank(0)).is_leader  # the leaders' group is another one


def test_a_group_reader_ends_the_close_of_batches_first(shards: Any, tables: Any) -> None:
    """Rank 0 closes long before rank 1, and then reads over the same group."""
    posts, names = Posts(2), shards()
    group = tables(names, posts)
    mine, theirs = sources(group)
    gives_up(mine.close)
    with attach(names) as own:
        reader = GroupReader(own, posts.rank(0))
        gives_up(lambda: reader.sample(8))
        theirs.close()
        gives_up(lambda: reader.sample(8))  # its question is posted now, and no earlier one
        with pytest.raises(errors.ReliveError) as caught:
            GroupReader(None, posts.rank(1)).sample(16)
    assert isinstance(caught.value, errors.InvalidConfig), "the two ask each other, for unlike batches"


@pytest.mark.parametrize("root_age", [1, 3])
def test_a_changed_retry_leaves_the_ranks_in_step(shards: Any, tables: Any, root_age: int) -> None:
    mine, theirs = tables(shards(), Posts(2), root_age=root_age)
    gives_up(lambda: mine.draw(8))
    assert theirs.draw(8).item_keys.shape == (8,)
    problem = disagrees(lambda: mine.draw(16))
    assert (problem.rank, problem.expected, problem.got) == (0, 16, 8)
    assert mine.next_draw == theirs.next_draw == 1
    for _ in range(root_age - 1):
        keys = [one.draw(8).item_keys for one in (mine, theirs)]
        assert np.bincount(np.concatenate(keys) >> 51).tolist() == [8, 8], "by the roots of the draw that was skipped"
    assert are_in_step(mine, theirs)


def test_a_changed_retry_of_a_draw_that_no_rank_may_make_uses_no_number(shards: Any, tables: Any) -> None:
    mine, theirs = tables(shards(relive.Index(limiter=relive.MinSize(500))), Posts(2))
    gives_up(lambda: mine.draw(8, timeout_s=0.0))
    gives_up(lambda: theirs.draw(8, timeout_s=0.0))
    disagrees(lambda: mine.draw(16, timeout_s=0.0))
    assert mine.next_draw == theirs.next_draw == 0


def sources(tables: list[ShardedTable]) -> list[Any]:
    made = []
    for one in tables:
        batches = one.batches(8)
        made.append(batches._bringer._source)
    return made


@pytest.mark.parametrize("root_age", [1, 4])
@pytest.mark.parametrize("then", ["a larger draw", "an equal draw", "a number"])
def test_batches_that_end_leave_no_draw_to_other_calls(shards: Any, tables: Any, root_age: int, then: str) -> None:
    """Rank 0 has begun one more draw ahead than rank 1 when both close."""
    group = tables(shards(), Posts(2), root_age=root_age)
    mine, theirs = sources(group)
    gives_up(mine.take)
    theirs.take().hold.give_back()
    for _ in range(root_age):
        mine.take().hold.give_back()
    gives_up(mine.take)
    gives_up(mine.close)
    theirs.close()
    if then == "a number":
        gives_up(lambda: group[0].number_draws(7))
        group[1].number_draws(7)
        group[0].number_draws(7)
        assert group[0].next_draw == group[1].next_draw == 7
    assert are_in_step(*group, 8 if then == "an equal draw" else 16)


def test_a_draw_ahead_that_meets_a_close_leaves_no_roots(shards: Any, tables: Any) -> None:
    """Rank 0 learns of the close by its own draw, and makes no close. It drops its roots as the other rank does."""
    group = tables(shards(), Posts(2), root_age=4)
    assert are_in_step(*group, 4)  # by roots for three more draws of at most four items
    mine, theirs = sources(group)
    gives_up(mine.take)  # of eight
    theirs.close()
    disagrees(mine.take)
    mine.close()
    assert are_in_step(*group, 4)


def test_a_number_that_one_rank_does_not_count_is_taken_from_the_others(shards: Any, tables: Any) -> None:
    """As if a signal's handler had raised between the agreement on the roots and the count."""
    mine, theirs = tables(shards(), Posts(2))
    assert are_in_step(mine, theirs)
    mine._fleet.agreement.number -= 1
    assert are_in_step(mine, theirs) and mine.next_draw == 2


class Unhashable(PostingRank):
    """An exchange of a user, whose calls are its own."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, group: Posts, rank: int) -> None:
        super().__init__(group, rank)
        del self.calls


def test_batches_end_together_also_over_an_exchange_without_a_hash(shards: Any) -> None:
    posts, names = Posts(2), shards()
    with contextlib.ExitStack() as stack:
        ranks = [Unhashable(posts, rank) for rank in range(2)]
        gives_up(lambda: attach(names, exchange=ranks[0]))
        theirs, mine = (stack.enter_context(attach(names, exchange=ranks[rank])) for rank in (1, 0))
        ahead, late = sources([mine, theirs])
        gives_up(ahead.take)  # one draw more than the other rank
        gives_up(ahead.close)
        late.close()
        assert are_in_step(mine, theirs, 16)


def test_a_draw_ahead_that_another_rank_made_after_the_close_is_skipped(shards: Any, tables: Any) -> None:
    """Rank 1 is late: it makes the draw that rank 0 gave up, begins one more, and closes after rank 0 goes on."""
    group = tables(shards(), Posts(2))
    mine, theirs = sources(group)
    gives_up(mine.take)
    gives_up(mine.close)
    gives_up(lambda: group[0].draw(8))
    theirs.take().hold.give_back()
    gives_up(lambda: group[0].draw(8))
    problem = disagrees(theirs.take)
    assert (problem.rank, problem.got) == (0, "close() of batches()")
    assert disagrees(theirs.take) is problem
    theirs.close()
    gives_up(lambda: group[0].draw(8))
    assert are_in_step(*group)


def test_the_end_of_batches_is_met_by_a_call_of_another_table(shards: Any, tables: Any) -> None:
    posts = Posts(2)
    x, y = tables(shards(), posts), tables(shards(), posts)
    mine, theirs = sources(x)
    gives_up(mine.close)
    gives_up(lambda: y[0].draw(8))
    theirs.close()
    assert are_in_step(*y) and are_in_step(*x)


def test_batches_of_a_mixture_are_refused_in_a_group(shards: Any) -> None:
    names = shards({"a": prioritized(), "b": relive.Index()})

    def work(rank: int, exchange: Any) -> int:
        with attach(names, exchange=exchange) as table:
            mixture = relive.Mixture({"a": 0.5, "b": 0.5}, table)
            with pytest.raises(errors.InvalidConfig, match="exchange"):
                mixture.batches(8)
            return mixture.sample(8).num_items

    assert in_threads(work, 2) == [8, 8]


@pytest.mark.parametrize("order", [("together", "own"), ("own", "together")])
def test_a_source_that_one_rank_lacks_costs_no_draw_of_all_ranks(shards: Any, order: tuple[str, str]) -> None:
    """Each rank has a source of its own. The ranks draw from the other source together, last and once."""
    names = shards()

    def write(own: relive.Table, count: int) -> None:
        with own.writer() as writer:
            write_steps(writer, 0, count)

    def write_when_it_lacks(own: relive.Table) -> None:
        while not own.stats().indexes["default"].waiting_samplers:
            time.sleep(0.01)
        write(own, 4)

    def work(rank: int, exchange: Any) -> int | None:
        own = relive.Table(plain_spec(), 100, relive.Index(max_times_sampled=1), timeout_s=60.0)
        write(own, 8)
        with own, attach(names, exchange=exchange, timeout_s=60.0) as table:
            with relive.Mixture({name: 0.5 for name in order}, {"together": table, "own": own}) as mixture:
                mixture.sample(8)
                if rank == 0:
                    own.sample(4)
                    writing = threading.Thread(target=write_when_it_lacks, args=(own,))
                    writing.start()
                    mixture.sample(8)
                    writing.join()
                else:
                    mixture.sample(8)
                return table.next_draw

    assert in_threads(work, 2) == [2, 2]


Step = tuple[Any, ...]


def met(call: Callable[[], Any]) -> Iterator[None]:
    """Retries a call until all ranks have made it."""
    while True:
        try:
            call()
            return
        except errors.DeadlineExceeded:
            yield


def take_batches(source: Any, num_batches: int, prefetch: int, rng: random.Random) -> Iterator[None]:
    """Hands out batches, with a thread that draws ahead at any speed, and closes at any time after them."""
    handed_out, drawn, is_ended = 0, 0, False
    while handed_out < num_batches or rng.random() < 0.7:
        yield
        if drawn < handed_out + prefetch and not is_ended and rng.random() < 0.7:
            try:
                source.take().hold.give_back()
                drawn += 1
            except errors.DeadlineExceeded:
                pass
            except RanksDisagree as problem:
                assert problem.got == "close() of batches()" and drawn >= num_batches
                is_ended = True
        handed_out += handed_out < min(drawn, num_batches) and rng.random() < 0.7
    with contextlib.suppress(errors.DeadlineExceeded):
        source.close()


def play(tables: list[ShardedTable], program: list[Step], told: list[int | None], rng: random.Random) -> Iterator[None]:
    for kind, which, *numbers in program:
        table = tables[which]
        if kind == "draw":
            yield from met(lambda table=table, numbers=numbers: table.draw(*numbers))
            told.append(table.next_draw)
        elif kind == "number":
            yield from met(lambda table=table, numbers=numbers: table.number_draws(*numbers))
        else:
            yield from take_batches(sources([table])[0], *numbers, rng)
        yield


@pytest.mark.parametrize("root_age", [1, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_with_one_program_stay_in_step_at_any_speed(shards: Any, tables: Any, world: int, root_age: int) -> None:
    names = shards(), shards()
    for _ in range(200 if os.environ.get("RELIVE_SOAK") else 10):
        seed = int(np.random.default_rng().integers(2**31))
        rng, posts, told = random.Random(seed), Posts(world), [list[int | None]() for _ in range(world)]
        group = list(zip(*(tables(one, posts, root_age=root_age) for one in names), strict=True))
        kinds: list[Callable[[], Step]] = [
            lambda rng=rng: ("batches", rng.randrange(2), rng.randint(0, 4), rng.randint(1, 3)),
            lambda rng=rng: ("draw", rng.randrange(2), rng.choice([4, 8, 16])),
            lambda rng=rng: ("number", rng.randrange(2), rng.randrange(50)),
        ]
        program = [rng.choice(kinds)() for _ in range(6)] + [("draw", 0, 4), ("draw", 1, 4)]
        left = {rank: play(list(group[rank]), program, told[rank], rng) for rank in range(world)}
        for _ in range(20_000):
            if not left:
                break
            rank = rng.choice(list(left))
            for _ in range(rng.choice([1, 1, 5, 20])):
                if rank in left and next(left[rank], "over") == "over":
                    del left[rank]
        assert not left and all(one == told[0] for one in told), f"seed {seed}: {program}"
        for table in itertools.chain(*group):
            table.close()


def test_closing_a_table_alone_exchanges_nothing(shards: Any, tables: Any) -> None:
    posts = Posts(1)
    (table,) = tables(shards(), posts)
    with table.batches(8) as batches:
        assert next(batches).num_items == 8
    assert posts.posted == [[]]


def test_a_larger_draw_than_the_roots_were_agreed_for_agrees_again(shards: Any) -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=100, tolerance=1000)
    names = shards(relive.Index(limiter=limiter), steps=50)
    with attach(names, root_age=8, timeout_s=0.0) as table:
        for _ in range(8):
            table.draw(110)  # to a balance of -780
        for _ in range(2):
            for _ in range(7):
                table.draw(1)
        gives_up(lambda: table.draw(100))


def test_ranks_wait_for_each_other_for_a_second_at_least(shards: Any) -> None:
    names, exchange = shards(), Posts(2).rank(0)
    gives_up(lambda: attach(names, exchange=exchange, timeout_s=0.1))
    assert exchange.timeouts_s[0] > 0.5


# ---- mutants -------------------------------------------------------------------------------------------------------


def _no_comparison(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "_compare", lambda self, head, heads: None)


def _tables_alike(patch: pytest.MonkeyPatch) -> None:
    check = Agreement.check_ranks

    def keep_none(self: Agreement, timeout_s: float) -> None:
        check(self, timeout_s)
        self._table = bytes(8)

    patch.setattr(Agreement, "check_ranks", keep_none)


def _skipped_draws_do_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "_skip", lambda self, given_up, heard: True)


def _roots_of_a_skipped_draw_are_dropped(patch: pytest.MonkeyPatch) -> None:
    skip = Agreement._skip

    def drop(self: Agreement, given_up: Any, heard: list[bytes]) -> bool:
        has_met = skip(self, given_up, heard)
        self._agreed.clear()
        return has_met

    patch.setattr(Agreement, "_skip", drop)


def _every_skipped_draw_counts(patch: pytest.MonkeyPatch) -> None:
    skip = Agreement._skip

    def count(self: Agreement, given_up: Any, heard: list[bytes]) -> bool:
        before, has_met = self.number, skip(self, given_up, heard)
        self.number = max(self.number, before + 1)
        return has_met

    patch.setattr(Agreement, "_skip", count)


def _numbers_of_each_rank(patch: pytest.MonkeyPatch) -> None:
    gathered = Agreement._gathered

    def keep(self: Agreement, head: Any, mine: bytes, timeout_s: float) -> list[bytes]:
        self.number, before = 0, self.number  # no rank has a larger one then
        try:
            return gathered(self, head, mine, timeout_s)
        finally:
            self.number = before

    patch.setattr(Agreement, "_gathered", keep)


def _close_is_no_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "close_batches", lambda self: self._agreed.clear())


def _close_waits_for_no_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agreement, "_end", lambda closing, ends: None)


def _close_meets_no_draw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "_note_end", lambda self, heads: False)


def _closes_of_one_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agreement, "_closing_over", lambda exchange: [])


def _roots_for_any_size(patch: pytest.MonkeyPatch) -> None:
    roots = Agreement.roots

    def grow(self: Agreement, index: int, num_items: int, pace: Any, wait: Any) -> Any:
        agreed = self._agreed.get(index)
        if agreed is not None:
            self._agreed[index] = agreed._replace(num_items=num_items)
        return roots(self, index, num_items, pace, wait)

    patch.setattr(Agreement, "roots", grow)


def _readers_over_any_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "goes_over", lambda self, exchange: False)


def _no_shortest_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agreement, "LEAST_S", 0.0)


def _ends_alike(shards: Any, tables: Any) -> None:
    test_batches_that_end_leave_no_draw_to_other_calls(shards, tables, 4, "a larger draw")


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Any, Any], None]]] = {
    "unlike calls": (_no_comparison, test_a_draw_and_a_group_reader_disagree),
    "unlike tables": (_tables_alike, test_draws_of_two_tables_are_not_mixed),
    "a skipped draw counts": (
        _skipped_draws_do_not_count,
        lambda shards, tables: test_a_changed_retry_leaves_the_ranks_in_step(shards, tables, 1),
    ),
    "roots of a skipped draw": (
        _roots_of_a_skipped_draw_are_dropped,
        lambda shards, tables: test_a_changed_retry_leaves_the_ranks_in_step(shards, tables, 3),
    ),
    "a skipped draw that no rank made": (
        _every_skipped_draw_counts,
        test_a_changed_retry_of_a_draw_that_no_rank_may_make_uses_no_number,
    ),
    "the largest number": (
        _numbers_of_each_rank,
        test_a_number_that_one_rank_does_not_count_is_taken_from_the_others,
    ),
    "close is a call": (_close_is_no_call, _ends_alike),
    "a close that has not met all ranks": (_close_waits_for_no_call, _ends_alike),
    "a close that meets a draw": (_close_meets_no_draw, test_a_draw_ahead_that_meets_a_close_leaves_no_roots),
    "closes of other tables": (_closes_of_one_table, test_the_end_of_batches_is_met_by_a_call_of_another_table),
    "closes before a group's reader": (_closes_of_one_table, test_a_group_reader_ends_the_close_of_batches_first),
    "a larger draw agrees again": (
        _roots_for_any_size,
        lambda shards, tables: test_a_larger_draw_than_the_roots_were_agreed_for_agrees_again(shards),
    ),
    "a reader over the group of its table": (
        _readers_over_any_group,
        lambda shards, tables: test_a_group_reader_over_the_group_of_its_own_table_is_refused(shards, tables, 1),
    ),
    "the shortest wait": (
        _no_shortest_wait,
        lambda shards, tables: test_ranks_wait_for_each_other_for_a_second_at_least(shards),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_finds_each_rule_that_is_taken_away(
    shards: Any, tables: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate, finds = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, errors.ReliveError, pytest.fail.Exception)):
        finds(shards, tables)
