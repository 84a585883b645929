"""The quicker of two ways to the same rows: what is tried when, and that it is the same rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import write_steps

from fleet.fake_nixl import Pair
from fleet.tools import config_of
from relive.core.request import DrawRequest
from relive.fleet.onesided.faster_path import AGAIN, TRIED_CALLS, WARM, Chosen, FasterPath
from relive.fleet.onesided.peer import BY_OWNER, HERE, PeerShard
from relive.fleet.remote.turns import Turns
from relive.fleet.shards import Asked


def gone(choice: FasterPath, count: int, seconds: tuple[float, float]) -> list[int]:
    """The ways of so many calls, each of which takes what its way takes, in the warm ones ten times as long."""
    ways = []
    for _ in range(count):
        turn = choice.choose()
        ways.append(turn.way)
        choice.took(turn, seconds[turn.way] * (1.0 if turn.is_tried else 10.0))
    return ways


@pytest.mark.parametrize("quicker", [0, 1])
def test_both_are_tried_and_the_quicker_is_gone_until_they_are_tried_again(quicker: int) -> None:
    choice = FasterPath()
    seconds = (1.0, 2.0) if quicker == 0 else (2.0, 1.0)
    trial = [0] * TRIED_CALLS + [1] * TRIED_CALLS
    assert gone(choice, AGAIN, seconds) == trial + [quicker] * (AGAIN - 2 * TRIED_CALLS) and choice.best == quicker
    assert gone(choice, AGAIN, seconds[::-1]) == trial + [1 - quicker] * (AGAIN - 2 * TRIED_CALLS)


def test_one_call_that_took_long_decides_nothing() -> None:
    choice = FasterPath()
    for place in range(2 * TRIED_CALLS):
        turn = choice.choose()
        took_s = 1.0 if turn.way == 0 else 2.0
        choice.took(turn, 50.0 if place == WARM else took_s)
    assert choice.choose() == Chosen(0, False)


def test_a_way_that_nobody_came_back_from_is_not_the_quicker() -> None:
    choice = FasterPath()
    for _ in range(2 * TRIED_CALLS):
        turn = choice.choose()
        if turn.way == 1:
            choice.took(turn, 9.0)
    assert choice.best == 1


def test_threads_take_turns() -> None:
    choice = FasterPath()
    ways: list[list[int]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda at=at: ways[at].extend(gone(choice, AGAIN // 4, (2.0, 1.0)))) for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sum(map(len, ways)) == AGAIN and sum(one.count(0) for one in ways) <= TRIED_CALLS + AGAIN // 4


# ---- of a shard ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shard(pair: Pair, shm_name: Any) -> Iterator[tuple[PeerShard, np.ndarray]]:
    """One of 50 steps that may be read here or by its owner, its reads by the fake; and its keys."""
    with pair.served(config_of(shm_name()), must=False) as (owner, made):
        with owner.table.writer() as writer:
            keys = write_steps(writer, 0, 50)
        yield made, np.asarray(keys)


def drawn(shard: PeerShard, num_items: int) -> Any:
    """Rewards and keys of a draw."""
    request = DrawRequest(0, num_items, shard.select(0, ["reward"]))
    part = shard.begin(Asked(request, 10.0, left_s=10.0, counts_nowhere=False, is_read=False, is_only=True))
    arrays, keys, _ = part.take()
    part.commit()
    return arrays[0], keys


@needs_shared_memory
def test_a_draw_ahead_that_is_timed_shares_no_message(pair: Pair, shard: tuple[PeerShard, np.ndarray]) -> None:
    """The wait for a shared message would be that of its first draw."""
    peer, _ = shard
    request, shares = DrawRequest(0, 4, peer.select(0, ["reward"])), []

    class Noted(Turns):  # type: ignore[misc]  # final
        def add(self, *arguments: Any, may_share: bool = False) -> Any:
            shares.append(may_share)
            return super().add(*arguments, may_share=may_share)

    for _ in range(2 * TRIED_CALLS + 3):
        turns: dict[int, Any] = {peer.number: Noted(peer._lines)}
        part = peer.begin(Asked(request, 10.0, 10.0, False, False, True, turns=turns))
        turns[peer.number].send()
        part.take()
        part.commit()
    tried = [True] * WARM + [False] * (TRIED_CALLS - WARM)
    assert shares == tried * 2 + [True] * 3


def slow(pair: Pair, seconds: float) -> None:
    pair.fake.makes = lambda num_cells: time.sleep(seconds)


@needs_shared_memory
def test_what_is_read_slowly_goes_by_the_owner_and_is_the_same(pair: Pair, shard: tuple[PeerShard, np.ndarray]) -> None:
    peer, keys = shard
    rewards = dict(zip(keys.tolist(), range(50), strict=True))
    selection = peer.select(0, ["reward"])
    slow(pair, 0.02)
    for _ in range(2 * TRIED_CALLS):
        values, items = drawn(peer, 8)
        assert values.tolist() == [rewards[key] for key in items.tolist()]
        assert peer.gather(selection, keys, None)[0][0].tolist() == list(range(50))
    assert {kind[0]: choice.best for kind, choice in peer._quickers.items()} == {"draw": BY_OWNER, "gather": BY_OWNER}
    assert peer.path == "nixl" and "its owner is quicker for 2 of 2 kinds" in peer.progress
    num_requests = len(pair.fake.made_by)
    into = np.full(50, -1.0, np.float32)
    assert peer.gather(selection, keys, [into])[1].all() and into.tolist() == list(range(50))
    drawn(peer, 8)
    assert len(pair.fake.made_by) == num_requests, "nothing of it is read here"
    drawn(peer, 50)
    assert len(pair.fake.made_by) > num_requests, "larger batches are a kind of their own"


@needs_shared_memory
def test_what_the_owner_sends_slowly_is_read(
    pair: Pair, shard: tuple[PeerShard, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, _ = shard
    real = FasterPath.took
    monkeypatch.setattr(
        FasterPath, "took", lambda self, turn, took_s: real(self, turn, took_s + (turn.way == BY_OWNER) * 10.0)
    )
    for _ in range(2 * TRIED_CALLS):
        drawn(peer, 8)
    assert [choice.best for choice in peer._quickers.values()] == [HERE] and "quicker" not in peer.progress
    num_requests = len(pair.fake.made_by)
    drawn(peer, 8)
    assert len(pair.fake.made_by) > num_requests
