"""Claims over shards of a Queue: the items that are there, beside one table, racing calls, and a lock that is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec
from processes.shm import needs_shared_memory

import relive
from fleet.test_bounds import alone, passes
from fleet.tools import PATHS
from relive import errors
from relive.core import claiming
from relive.core.claiming import claim_there
from relive.fleet import ShardedTable

pytestmark = needs_shared_memory
Over = Callable[..., ShardedTable]


def counted(sampler: Any, max_times: int) -> relive.Index:
    return relive.Index(sampler=sampler, limiter=relive.Queue(100), max_times_sampled=max_times)


def own(keys: Any) -> relive.Draw:
    """The draw of these keys by a sampler of the caller."""
    return relive.Draw.of(np.asarray(keys, np.int64), np.full(len(keys), 0.1))


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("max_times", [1, 3])
def test_claims_over_shards_of_a_queue_are_those_of_one_table(
    over: Over, paths: tuple[str, ...], max_times: int
) -> None:
    """Keys that are used up, that come twice, and more than one shard has items: the items that are there come."""
    random, table = np.random.default_rng(max_times), over(plain_spec(), counted(relive.Fifo(), max_times), paths)
    one = relive.Table(plain_spec(), 1000, counted(relive.Fifo(), max_times))
    with one.writer() as alike, table.writer(shard=0) as near, table.writer(shard=1) as far:
        pairs = [
            (int((near if number < 10 else far).append(**alone(number))), int(alike.append(**alone(number))))
            for number in range(30)
        ]
    given, plain = (np.array(keys) for keys in zip(*pairs, strict=True))
    while True:
        chosen = random.integers(0, random.integers(1, 31), random.integers(1, 30))
        try:
            taken = one.claim(own(plain[chosen]), timeout_s=0.0).item_keys
        except errors.DeadlineExceeded:
            assert not passes(table.claim, own(given[chosen]))
            if one.num_items() < 3:
                break
            continue
        where = {int(key): place for place, key in enumerate(plain)}
        expected = [int(given[where[int(key)]]) for key in taken]
        assert table.claim(own(given[chosen]), timeout_s=30.0).item_keys.tolist() == expected
        assert table.num_items() == one.num_items()
    counts = [each.stats().indexes["default"] for each in (table, one)]
    assert counts[0].sampled == counts[1].sampled and counts[0].in_flight == 0
    assert [shard.state for shard in table.stats().shards] == ["live", "live"]


@pytest.mark.parametrize("path", ["mapped", "service"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_refused_claim_over_one_shard_claims_nothing(over: Over, path: str, times: int) -> None:
    """The shard takes more keys than it has live items in pieces. The key that is refused is in the last one."""
    table = over(plain_spec(), relive.Index(sampler=relive.Fifo(), max_times_sampled=times), (path,))
    with table.writer() as writer:
        keys = [int(writer.append(**alone(number))) for number in range(3)]
    beyond = keys[0] | (2**10 + 2**16 - 1)
    with pytest.raises(errors.ForeignKey) as refused:
        table.claim(own([*[keys[0]] * 3, keys[1], beyond]))
    assert (refused.value.position, refused.value.key) == (4, beyond)
    assert table.num_items() == 3 and table.stats().indexes["default"].sampled == 0


@pytest.mark.parametrize("paths", PATHS)
def test_a_claim_waits_for_the_totals_and_not_for_a_shard(over: Over, paths: tuple[str, ...]) -> None:
    table = over(plain_spec(), counted(relive.Fifo(), 1), paths)
    with table.writer(shard=0) as near, table.writer(shard=1) as far:
        keys = [int(near.append(**alone(number))) for number in range(4)]
        keys += [int(far.append(**alone(number))) for number in range(2)]
        assert table.claim(own(keys[:3])).num_items == 3
        assert not passes(table.claim, own(keys[:4]))  # three items live
        assert table.num_items() == 3
        far.append(**alone(2))
        assert table.claim(own(keys[:4]), timeout_s=30.0).item_keys.tolist() == keys[3:4]
    with pytest.raises(errors.RequestTooLarge):
        table.claim(own(keys[:1] * 101))


class Racing:
    """A table of four items. Each call of `spoils` comes before the claim of one piece."""

    def __init__(self, *spoils: Callable[[Racing], None]) -> None:
        self.live, self.spoils, self.pieces = 4, list(spoils), list[int]()

    def num_items(self, index: int) -> int:
        return self.live

    def claim(self, index: int, keys: Any, timeout_s: float) -> tuple[Any, int]:
        assert timeout_s == 0.0
        self.pieces.append(len(keys))
        if self.spoils:
            self.spoils.pop(0)(self)
        if len(keys) > self.live:
            raise errors.DeadlineExceeded(f"{len(keys)} live items in the queue", self.live)
        return np.ones(len(keys), bool), self.live


def has_lock(table: Racing) -> None:
    raise errors.DeadlineExceeded("the table lock", "", 0.1, 7)


def passes_by(table: Racing) -> None:
    pass


def takes_three(table: Racing) -> None:
    table.live -= 3


def test_the_answer_to_a_claim_may_take_longer_than_its_wait_for_items(
    over: Over, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over shards a claim waits for no items in its server, and the uses are counted when the answer is sent."""
    pipes = pytest.importorskip("relive.service.server.pipe", reason="the extra `service` is not installed")
    given_up: list[float] = []
    send = pipes.Pipe.send_buffers

    def noted(pipe: Any, header: Any, buffers: Any) -> None:
        if set(header) == {"live"}:
            given_up.append(pipe.gives_up)
        send(pipe, header, buffers)

    monkeypatch.setattr(pipes.Pipe, "send_buffers", noted)
    table = over(plain_spec(), counted(relive.Fifo(), 1), ("service", "service"))
    with table.writer(shard=0) as near, table.writer(shard=1) as far:
        keys = [int(writer.append(**alone(number))) for number, writer in enumerate((near, far, near))]
        assert table.claim(own(keys), timeout_s=30.0).item_keys.tolist() == keys
    assert given_up == [float("inf")] * 2


def test_a_claim_goes_on_beside_calls_that_take_items_meanwhile() -> None:
    table = Racing(takes_three)
    assert claim_there(table, 0, np.arange(4), 0.0)[0].all() and table.pieces == [4, 1, 1, 1, 1]
    table = Racing(*[lambda table: setattr(table, "live", 0)])
    assert not claim_there(table, 0, np.arange(4), 30.0)[0].any() and table.pieces == [4]


def test_a_claim_whose_lock_is_not_free_keeps_the_pieces_that_are_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Racing(has_lock)
    with pytest.raises(errors.DeadlineExceeded, match="process 7"):
        claim_there(table, 0, np.arange(6), 0.0)
    table = Racing(has_lock, passes_by, has_lock, has_lock)
    assert claim_there(table, 0, np.arange(6), 30.0)[0].all() and table.pieces == [4, 4, 2, 2, 2]
    monkeypatch.setattr(claiming, "_REST_S", 0.0)
    table = Racing(passes_by, has_lock)
    assert claim_there(table, 0, np.arange(6), 0.0)[0].tolist() == [True] * 4 + [False] * 2
