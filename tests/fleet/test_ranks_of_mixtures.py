"""Mixtures of ranks that draw from one source together: the ranks stay in step. The ranks are threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps
from processes.shm import needs_shared_memory

import relive
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
