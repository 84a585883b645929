"""Mixtures of ranks that draw from one source together: the ranks stay in step. The ranks are threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps
from processes.shm import needs_shared_memory

import relive
from fleet.test_ranks_in_step import PostingRank, Posts, disagrees, gives_up, sources
from fleet.tools import config_of, fails_once, fill, in_threads
from relive import errors
from relive.fleet import ShardOwner, attach
from relive.over.mixed_draws import MixedDraws

pytestmark = needs_shared_memory


@pytest.fixture(params=["mapped", "service"])
def places(request: Any, shm_name: Any) -> Iterator[list[str]]:
    """A shard of 60 steps, and how the ranks reach it."""
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name = shm_name()
    with ShardOwner(0, config_of(name)) as owner, attach([name]) as whole:
        fill(whole, 0, 0, 60)
        yield [name if request.param == "mapped" else owner.serve()]


def mixture_of(together: Any) -> relive.Mixture:
    """Three quarters from the source of all ranks, and a quarter from a table of this rank."""
    own = relive.Table(plain_spec(), 100)
    with own.writer() as writer:
        write_steps(writer, 0, 20)
    return relive.Mixture({"together": 0.75, "own": 0.25}, {"together": together, "own": own}, timeout_s=60.0)


def parts_of(batch: relive.Batch) -> list[int]:
    assert batch.source is not None
    return np.bincount(batch.source, minlength=2).tolist()


PROBLEMS = {"items": errors.DeadlineExceeded("8 items", 4, 1.0), "interrupt": KeyboardInterrupt()}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_batch_that_one_rank_lost_after_the_ranks_agreed_is_used_up_on_all(places: list[str], problem: str) -> None:
    """A draw of all ranks is never made again, so the shares of the rank that failed go on with it."""

    def work(rank: int, exchange: Any) -> Any:
        with attach(places, exchange=exchange, timeout_s=60.0) as table, mixture_of(table) as mixture:
            if rank == 1:
                with fails_once(table, PROBLEMS[problem]), pytest.raises(type(PROBLEMS[problem])):
                    mixture.sample(10)
            else:
                assert parts_of(mixture.sample(10)) == [8, 2]
            return parts_of(mixture.sample(10)), parts_of(mixture.sample(10)), mixture.state_dict()["of_source"]

    assert in_threads(work, 2) == [([7, 3], [8, 2], [2, 0])] * 2


def test_a_batch_that_one_rank_lost_after_all_its_draws_is_used_up_on_all(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for the batch."""
    as_it_is, lacks = MixedDraws.batch, list[MixedDraws]()

    def batch(draws: MixedDraws, *arguments: Any) -> relive.Batch:
        if draws in lacks:
            lacks.remove(draws)
            raise MemoryError
        return as_it_is(draws, *arguments)

    monkeypatch.setattr(MixedDraws, "batch", batch)

    def work(rank: int, exchange: Any) -> Any:
        with attach(places, exchange=exchange, timeout_s=60.0) as table, mixture_of(table) as mixture:
            if rank == 1:
                lacks.append(mixture._draws)
                with pytest.raises(MemoryError):
                    mixture.sample(10)
            else:
                mixture.sample(10)
            return parts_of(mixture.sample(10))

    assert in_threads(work, 2) == [[7, 3]] * 2


def test_a_batch_that_the_ranks_did_not_agree_on_comes_again(places: list[str]) -> None:
    """A rank whose own source lacks its part has made no draw of all ranks."""

    def work(rank: int, exchange: Any) -> Any:
        with attach(places, exchange=exchange, timeout_s=60.0) as table, mixture_of(table) as mixture:
            if rank == 1:
                own = mixture._draws.sources[1].table
                own.delete(own.sample(20).item_keys)
                left = own.num_items()
                own.set_limiter(relive.MinSize(20))
                with pytest.raises(errors.DeadlineExceeded, match="'own'"):
                    mixture.sample(10, timeout_s=0.0)
                with own.writer() as writer:
                    write_steps(writer, 20, 20 - left)
            return parts_of(mixture.sample(10))

    assert in_threads(work, 2) == [[8, 2]] * 2


Ranks = list[tuple[Any, relive.Mixture]]


@contextlib.contextmanager
def late_ranks(places: list[str], posts: Posts | None = None) -> Iterator[Ranks]:
    """The table and the mixture of two ranks. A rank that calls first gives up, as if the other rank were late."""
    posts = Posts(2) if posts is None else posts
    gives_up(lambda: attach(places, exchange=posts.rank(0), timeout_s=60.0))
    tables = [attach(places, exchange=posts.rank(rank), timeout_s=60.0) for rank in (1, 0)][::-1]
    with tables[0], tables[1], mixture_of(tables[0]) as mine, mixture_of(tables[1]) as theirs:
        yield [(tables[0], mine), (tables[1], theirs)]


@pytest.fixture
def late(places: list[str]) -> Iterator[Ranks]:
    with late_ranks(places) as ranks:
        yield ranks


def position_of(mixture: relive.Mixture) -> Any:
    state = mixture.state_dict()
    return state["num_items"], state["of_source"]


def check_in_step(mine: relive.Mixture, theirs: relive.Mixture, expected: list[int]) -> None:
    """The next batches of both ranks have the expected parts, and so have the batches after them."""
    for _ in range(2):
        gives_up(lambda: mine.sample(10))
        assert parts_of(theirs.sample(10)) == parts_of(mine.sample(10)) == expected
        assert position_of(mine) == position_of(theirs)
        expected = [15 - expected[0], 5 - expected[1]]


def draws_of_the_tables(table: Any, other: Any) -> None:
    gives_up(lambda: table.sample(16))
    other.sample(16)
    table.sample(16)


def test_a_mixture_counts_no_batch_for_a_draw_of_its_table_that_was_given_up(late: Ranks) -> None:
    (table, mine), (other, theirs) = late
    gives_up(lambda: table.sample(16))
    gives_up(lambda: mine.sample(10))
    other.sample(16)
    disagrees(lambda: mine.sample(10))
    assert position_of(mine) == position_of(theirs)
    check_in_step(mine, theirs, [8, 2])


@pytest.mark.parametrize("then", ["a larger batch", "an unlike draw", "an equal draw"])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_batch_that_was_given_up_counts_with_its_size_if_the_other_ranks_made_it(
    late: Ranks, then: str, retries: int
) -> None:
    """The next call has other arguments, or is one of the table."""
    (table, mine), (_, theirs) = late
    calls: dict[str, Callable[[], Any]] = {
        "a larger batch": lambda: mine.sample(21),
        "an unlike draw": lambda: table.sample(16),
        "an equal draw": lambda: table.sample(8),
    }
    gives_up(lambda: mine.sample(10))
    for _ in range(retries):
        gives_up(calls[then])
    assert parts_of(theirs.sample(10)) == [8, 2]
    if then == "an equal draw":  # it takes up the draw that was given up
        assert calls[then]().num_items == 8
    else:
        disagrees(calls[then])
    assert position_of(mine) == position_of(theirs) == (2, [2, 0])
    check_in_step(mine, theirs, [7, 3])


def test_a_batch_whose_wait_was_interrupted_counts_if_the_other_ranks_made_it(
    late: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange keeps the bytes of this rank, as after a deadline."""
    (_, mine), (_, theirs) = late
    gather = PostingRank.all_gather

    def interrupted(exchange: PostingRank, given: bytes, timeout_s: float) -> list[bytes]:
        gives_up(lambda: gather(exchange, given, timeout_s))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PostingRank, "all_gather", interrupted)
        mine.sample(10)
    assert parts_of(theirs.sample(10)) == [8, 2]
    disagrees(lambda: mine.sample(21))
    assert position_of(mine) == position_of(theirs) == (2, [2, 0])
    check_in_step(mine, theirs, [7, 3])


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("then", ["a draw", "a close", "a number"])
def test_a_batch_that_was_given_up_has_its_outcome_from_a_call_of_another_table(
    shm_name: Any, is_made: bool, then: str
) -> None:
    """is_made: the other rank makes the batch before its call of the other table."""
    names, posts = [shm_name(), shm_name()], Posts(2)
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(ShardOwner(0, config_of(name)))
            with attach([name]) as whole:
                fill(whole, 0, 0, 60)
        (table, mine), (other, theirs) = stack.enter_context(late_ranks(names[:1], posts))
        near, far = (one for one, _ in stack.enter_context(late_ranks(names[1:], posts)))
        calls: dict[str, Callable[[Any], Any]] = {
            "a draw": lambda one: disagrees(lambda: one.sample(16)),
            "a number": lambda one: disagrees(lambda: one.number_draws(5)),
            "a close": lambda one: sources([one])[0].close(),
        }
        gives_up(lambda: mine.sample(10))
        if is_made:
            assert parts_of(theirs.sample(10)) == [8, 2]
            if then == "a close":
                gives_up(lambda: calls[then](near))  # after the batch: the close itself waits for the other rank
                calls[then](far)
            else:
                calls[then](near)
        else:
            calls[then](far)
            calls[then](near)
            draws_of_the_tables(table, other)
        check_in_step(mine, theirs, [7, 3] if is_made else [8, 2])
        draws_of_the_tables(near, far)
        assert near.next_draw == far.next_draw == 1


@pytest.mark.parametrize("call", ["a close", "an unlike draw", "a number"])
@pytest.mark.parametrize("then", ["a retry", "a close"])
def test_a_batch_that_was_given_up_does_not_count_if_it_met_another_call(late: Ranks, call: str, then: str) -> None:
    """Later draws of the table change nothing."""
    (table, mine), (other, theirs) = late
    gives_up(lambda: mine.sample(10))
    if call == "a close":
        sources([other])[0].close()
    elif call == "a number":
        disagrees(lambda: other.number_draws(5))
    else:
        disagrees(lambda: other.sample(16))
    if then == "a close":
        sources([table])[0].close()
    else:
        disagrees(lambda: mine.sample(10))
    draws_of_the_tables(table, other)
    check_in_step(mine, theirs, [8, 2])


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_batch_that_was_given_up_does_not_count_if_the_limiter_refused_it(shm_name: Any, is_changed: bool) -> None:
    """is_changed: the next call of this rank is another one."""
    name = shm_name()
    config = config_of(name, relive.Index(limiter=relive.MinSize(60)))
    with ShardOwner(0, config), attach([name]) as whole, late_ranks([name]) as ((table, mine), (other, theirs)):
        fill(whole, 0, 0, 59)
        for one in (mine, theirs):
            gives_up(lambda one=one: one.sample(10, timeout_s=0.0))
        if is_changed:
            disagrees(lambda: table.sample(16, timeout_s=0.0))
        else:
            gives_up(lambda: mine.sample(10, timeout_s=0.0))
        fill(whole, 0, 59, 1)
        draws_of_the_tables(table, other)
        check_in_step(mine, theirs, [8, 2])


def test_ranks_that_share_an_epoch_draw_each_item_once(shm_name: Any) -> None:
    """A source that is shuffled, and whose ranks draw together, is drawn from once a batch."""
    name = shm_name()
    config = config_of(name, relive.Index(sampler=relive.Shuffle()))

    def work(rank: int, exchange: Any) -> Any:
        with attach([name], exchange=exchange, timeout_s=60.0) as table:
            mixture = relive.Mixture({"together": 1.0}, {"together": table}, timeout_s=60.0)
            keys = [mixture.sample(10).item_keys for _ in range(3)]
            return np.concatenate(keys).tolist()

    with ShardOwner(0, config), attach([name]) as whole:
        fill(whole, 0, 0, 60)
        drawn = [key for keys in in_threads(work, 2) for key in keys]
        assert len(set(drawn)) == 60
        (stats,) = whole.stats().indexes.values()
        assert (stats.sampled, stats.in_flight) == (60, 0)
