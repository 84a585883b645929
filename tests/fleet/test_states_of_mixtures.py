"""States of mixtures over shards: ranks go on from them together, or not at all. Ranks are threads, or take turns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract.tools import plain_spec, write_steps
from processes.shm import needs_shared_memory

import relive
from fleet.test_ranks_in_step import PostingRank, Posts, disagrees, gives_up
from fleet.test_ranks_of_mixtures import mixture_of, parts_of
from fleet.tools import PATHS, config_of, fill, in_threads
from relive import errors
from relive.fleet import RanksDisagree, ShardedTable, ShardOwner, attach

pytestmark = needs_shared_memory
SHARES = {"a": 0.5, "b": 0.5}


@pytest.fixture
def shards(shm_name: Any) -> Iterator[list[str]]:
    """Names of two shards of one table. Batches of 10 have items of both."""
    names = [shm_name(), shm_name()]
    with ShardOwner(0, config_of(names[0])), ShardOwner(1, config_of(names[1])), attach(names) as whole:
        fill(whole, 0, 0, 60)
        fill(whole, 1, 60, 60)
        yield names


def position_of(mixture: relive.Mixture) -> Any:
    """The state without the random numbers that place items, which each rank draws for itself."""
    state = mixture.state_dict()
    return state["num_items"], state["of_source"], state["next_draws"]


# ---- ranks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=PATHS)
def ways(request: Any, shm_name: Any) -> Iterator[list[list[str]]]:
    """The way of each of two ranks to a shard of 60 steps."""
    name = shm_name()
    with ShardOwner(0, config_of(name)) as owner, attach([name]) as whole:
        fill(whole, 0, 0, 60)
        address = owner.serve() if "service" in request.param else ""
        yield [[name if path == "mapped" else address] for path in request.param]


def test_ranks_go_on_from_their_states_whatever_their_ways_to_the_shards(ways: list[list[str]]) -> None:
    """The state of each rank has the number of the draw that all ranks make next, and each rank makes the same call."""

    def work(rank: int, exchange: Any, state: Any = None) -> Any:
        path = "service" if "://" in ways[rank][0] else None
        with attach(ways[rank], exchange=exchange, timeout_s=60.0, path=path) as table, mixture_of(table) as mixture:
            if state is not None:
                mixture.load_state_dict(state)
            told = [parts_of(mixture.sample(10)) for _ in range(3)]
            return told, mixture.state_dict(), table.next_shared_draw

    first = in_threads(work, 2)
    assert [told for told, *_ in first] == [[[8, 2], [7, 3], [8, 2]]] * 2
    assert [state["next_draws"] for _, state, _ in first] == [[3, 3]] * 2
    again = in_threads(lambda rank, exchange: work(rank, exchange, first[rank][1]), 2)
    assert [(told, number) for told, _, number in again] == [([[7, 3], [8, 2], [7, 3]], 6)] * 2


def test_states_of_two_moments_change_nothing_on_any_rank(ways: list[list[str]]) -> None:
    def work(rank: int, exchange: Any) -> Any:
        path = "service" if "://" in ways[rank][0] else None
        with attach(ways[rank], exchange=exchange, timeout_s=60.0, path=path) as table, mixture_of(table) as mixture:
            states = []
            for _ in range(2):
                mixture.sample(10)
                states.append(mixture.state_dict())
            with pytest.raises(RanksDisagree):
                mixture.load_state_dict(states[rank])
            assert mixture.state_dict() == states[1]
            parts = parts_of(mixture.sample(10))
            mixture.load_state_dict(states[1])
            return parts, parts_of(mixture.sample(10)), position_of(mixture)

    assert in_threads(work, 2) == [([8, 2], [8, 2], (2, [2, 0], [3, 3]))] * 2


def test_a_rank_whose_state_has_no_number_leaves_out_no_call(ways: list[list[str]]) -> None:
    """As a state of an older version, of a rank that reads the shards by way of an owner."""

    def work(rank: int, exchange: Any) -> Any:
        with attach(ways[rank], exchange=exchange, timeout_s=60.0) as table, mixture_of(table) as mixture:
            before = mixture.state_dict()
            with pytest.raises(RanksDisagree):
                mixture.load_state_dict({**before, "next_draws": [[3, 0], [None, 0]][rank]})
            assert mixture.state_dict() == before
            return parts_of(mixture.sample(10)), table.next_shared_draw

    assert in_threads(work, 2) == [([8, 2], 1)] * 2


def test_ranks_keep_the_number_of_their_next_draw_if_no_state_has_one(ways: list[list[str]]) -> None:
    """As states of mixtures whose ranks each drew alone, by way of an owner."""

    def work(rank: int, exchange: Any) -> Any:
        with attach(ways[rank], exchange=exchange, timeout_s=60.0) as table, mixture_of(table) as mixture:
            mixture.sample(10)
            state = {**mixture.state_dict(), "next_draws": [None, None]}
            mixture.sample(10)
            mixture.load_state_dict(state)
            return position_of(mixture), parts_of(mixture.sample(10))

    assert in_threads(work, 2) == [((2, [2, 0], [2, 2]), [7, 3])] * 2


# ---- ranks that draw from two tables ---------------------------------------------------------------------------------

Ranks = list[tuple[relive.Mixture, list[ShardedTable]]]


@pytest.fixture
def two_tables(shm_name: Any) -> Iterator[Ranks]:
    """A mixture of two tables on each of two ranks. A rank that calls first gives up, as if the other were late."""
    posts, ranks = Posts(2), list[list[ShardedTable]]([[], []])
    with contextlib.ExitStack() as stack:
        for name in (shm_name(), shm_name()):
            stack.enter_context(ShardOwner(0, config_of(name)))
            with attach([name]) as whole:
                fill(whole, 0, 0, 60)
            gives_up(lambda name=name: attach([name], exchange=posts.rank(0), timeout_s=60.0))
            for rank in (1, 0):
                ranks[rank].append(stack.enter_context(attach([name], exchange=posts.rank(rank), timeout_s=60.0)))
        yield [(relive.Mixture(SHARES, dict(zip(SHARES, tables, strict=True))), tables) for tables in ranks]


def state_with(*numbers: int) -> dict[str, Any]:
    """The state of a mixture of two tables that is one item further than a new one, with these next draws."""
    table = relive.Table(plain_spec(), 100)
    with table.writer() as writer:
        write_steps(writer, 0, 20)
    mixture = relive.Mixture(SHARES, {"a": table, "b": table})
    mixture.sample(11)
    return {**mixture.state_dict(), "streams": [None, None], "next_draws": list(numbers)}


def draw_together(table: ShardedTable, other: ShardedTable) -> None:
    """One draw of both ranks."""
    gives_up(lambda: table.draw(8))
    assert [one.draw(8).item_keys.shape for one in (other, table)] == [(8,), (8,)]
    assert table.next_shared_draw == other.next_shared_draw


def numbers_of(ranks: Ranks) -> list[list[int | None]]:
    return [[table.next_shared_draw for table in tables] for _, tables in ranks]


def test_a_load_that_fails_at_a_later_table_leaves_the_mixture_as_it_was(two_tables: Ranks) -> None:
    """The tables before it have their new numbers, on every rank. So the ranks are in step, and may load again."""
    (mine, tables), (theirs, other_tables) = two_tables
    before = [mine.state_dict(), theirs.state_dict()]
    states = state_with(5, 7), state_with(5, 9)
    gives_up(lambda: mine.load_state_dict(states[0]))  # at 'a'
    gives_up(lambda: theirs.load_state_dict(states[1]))  # at 'b'
    disagrees(lambda: mine.load_state_dict(states[0]))
    disagrees(lambda: theirs.load_state_dict(states[1]))
    assert numbers_of(two_tables) == [[5, 0]] * 2
    assert [one.state_dict() | {"next_draws": [0, 0]} for one in (mine, theirs)] == before
    for table, other in zip(tables, other_tables, strict=True):
        draw_together(table, other)
    gives_up(lambda: mine.load_state_dict(states[0]))  # from the first table on
    gives_up(lambda: theirs.load_state_dict(states[0]))
    mine.load_state_dict(states[0])
    theirs.load_state_dict(states[0])
    assert position_of(mine) == position_of(theirs) == (states[0]["num_items"], states[0]["of_source"], [5, 7])


@pytest.mark.parametrize("ended_by", ["a deadline", "an interrupt"])
def test_a_rank_that_gave_up_a_load_takes_it_up_where_it_was(
    two_tables: Ranks, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    """The other rank has loaded the state since, and makes no call of an earlier table again."""
    (mine, tables), (theirs, other_tables) = two_tables
    state, gather = state_with(5, 7), PostingRank.all_gather

    def interrupted(*arguments: Any) -> list[bytes]:
        try:
            return gather(*arguments)
        except errors.DeadlineExceeded:
            raise KeyboardInterrupt from None

    gives_up(lambda: mine.load_state_dict(state))  # at 'a'
    before = theirs.state_dict()
    with monkeypatch.context() as patch:
        if ended_by == "an interrupt":
            patch.setattr(PostingRank, "all_gather", interrupted)
        with pytest.raises(errors.DeadlineExceeded if ended_by == "a deadline" else KeyboardInterrupt):
            theirs.load_state_dict(state)  # at 'b'
    assert theirs.state_dict() == {**before, "next_draws": [5, 0]}
    mine.load_state_dict(state)
    theirs.load_state_dict(state)
    assert position_of(mine) == position_of(theirs) == (state["num_items"], state["of_source"], [5, 7])
    assert numbers_of(two_tables) == [[5, 7]] * 2
    for table, other in zip(tables, other_tables, strict=True):
        draw_together(table, other)


def test_a_rank_that_drew_after_it_gave_up_a_load_begins_the_next_load_at_the_first_table(two_tables: Ranks) -> None:
    """Else it would wait at the second table for ranks that wait at the first one."""
    (mine, tables), (theirs, other_tables) = two_tables
    state = state_with(0, 0)
    gives_up(lambda: mine.load_state_dict(state))  # at 'a'
    gives_up(lambda: theirs.load_state_dict(state))  # at 'b'
    mine.load_state_dict(state)
    disagrees(lambda: other_tables[1].draw(8))  # this rank does not load again
    draw_together(tables[1], other_tables[1])
    gives_up(lambda: mine.load_state_dict(state))  # at 'a'
    gives_up(lambda: theirs.load_state_dict(state))  # at 'b'
    mine.load_state_dict(state)
    theirs.load_state_dict(state)
    assert numbers_of(two_tables) == [[0, 0]] * 2


@pytest.mark.parametrize("next_draw", [2**63, -1, 1.0, True])
def test_a_refused_number_of_a_later_source_changes_no_source(shards: list[str], next_draw: Any) -> None:
    with attach(shards, stream=3) as first, attach(shards, stream=3) as second:
        mixture = relive.Mixture(SHARES, {"a": first, "b": second})
        state = mixture.state_dict()
        mixture.sample(10)
        before = mixture.state_dict()
        with pytest.raises(errors.InvalidConfig, match="next_draws"):
            mixture.load_state_dict({**state, "next_draws": [0, next_draw]})
        assert mixture.state_dict() == before


# ---- streams ---------------------------------------------------------------------------------------------------------


def of_shards(table: ShardedTable) -> relive.Mixture:
    return relive.Mixture(SHARES, {"a": table, "b": table}, seed=3)


def keys(mixture: relive.Mixture, count: int = 3) -> list[list[int]]:
    return [mixture.sample(30).item_keys.tolist() for _ in range(count)]


def test_a_mixture_over_shards_goes_on_with_the_same_batches_on_the_same_stream(shards: list[str]) -> None:
    with attach(shards, stream=7) as table:
        mixture = of_shards(table)
        keys(mixture)
        state = json.loads(json.dumps(mixture.state_dict()))
        expected = keys(mixture)
    with attach(shards, stream=7) as table:
        mixture = of_shards(table)
        mixture.load_state_dict(state)
        assert keys(mixture) == expected


@pytest.mark.parametrize("stream", [None, 8, 7])
def test_a_mixture_over_shards_keeps_its_own_draws_on_another_stream(shards: list[str], stream: int | None) -> None:
    """As one over one table. The shards in another order have other streams, too (7)."""
    with attach(shards, stream=7) as table:
        mixture = of_shards(table)
        keys(mixture)
        state = mixture.state_dict()
    with attach(shards[::-1] if stream == 7 else shards, stream=stream) as table:
        before = table.stream
        mixture = of_shards(table)
        mixture.load_state_dict(state)
        assert table.next_draw == 0 and table.stream == before != state["streams"][0]
        assert position_of(mixture) == (state["num_items"], state["of_source"], [0, 0])


def test_a_mixture_over_served_shards_keeps_its_own_draws(shm_name: Any) -> None:
    """The owner at an address draws with random numbers of its own, whatever the stream of the handle."""
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name = shm_name()
    with ShardOwner(0, config_of(name)) as owner, attach([name]) as whole:
        fill(whole, 0, 0, 60)
        with attach([owner.serve()], stream=7, path="service", timeout_s=60.0) as table:
            mixture = of_shards(table)
            keys(mixture)
            state = mixture.state_dict()
            assert table.stream is None and (state["streams"], state["next_draws"]) == ([None, None], [None, None])
            mixture.load_state_dict(state)
            assert len(keys(mixture)) == 3


def test_a_state_that_does_not_tell_the_stream_has_the_number_of_the_next_draw(shards: list[str]) -> None:
    """As states of earlier releases. With equal streams the same batches come."""
    with attach(shards, stream=7) as table:
        mixture = of_shards(table)
        keys(mixture)
        state = {**mixture.state_dict(), "streams": [None, None]}
        expected = keys(mixture)
    with attach(shards, stream=7) as table:
        mixture = of_shards(table)
        mixture.load_state_dict(state)
        assert keys(mixture) == expected
