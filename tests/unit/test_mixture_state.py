"""The cursor of a mixture: the frontier of the batches that were handed out, and going on from it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
import relive.checkpoint
from relive import errors
from relive.over import mixed_draws, mixed_source

SHARES = {"a": 0.7, "b": 0.3}
SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})


def filled(index: relive.Index | None = None, count: int = 60, **options: Any) -> relive.Table:
    table = relive.Table(SPEC, 200, index or relive.Index(sampler=relive.Prioritized(1.0)), **options)
    with table.writer() as writer:
        for number in range(count):
            writer.append(number=number, truncated=True)
    return table


def sources() -> dict[str, relive.Table]:
    return {"a": filled(seed=1), "b": filled(seed=2)}


def told(batch: relive.Batch) -> tuple[list[int], list[int]]:
    assert batch.source is not None
    return batch["number"].tolist(), batch.source.tolist()


def test_the_batches_after_a_state_are_those_that_would_have_come() -> None:
    mixture = relive.Mixture(SHARES, sources(), seed=3)
    for _ in range(5):
        mixture.sample(7)
    state = json.loads(json.dumps(mixture.state_dict()))  # plain values
    expected = [told(mixture.sample(7)) for _ in range(4)]
    other = relive.Mixture(SHARES, sources(), seed=9)
    other.sample(7)
    other.load_state_dict(state)
    assert [told(other.sample(7)) for _ in range(4)] == expected


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_the_state_stands_after_the_last_batch_that_was_handed_out(num_taken: int) -> None:
    """However many batches a thread has drawn ahead: they come again."""
    plain = relive.Mixture(SHARES, sources(), seed=3)
    expected = [told(plain.sample(7)) for _ in range(num_taken + 4)]
    mixture = relive.Mixture(SHARES, sources(), seed=3)
    with mixture.batches(7, prefetch=4, timeout_s=20.0) as batches:
        taken = [told(next(batches)) for _ in range(num_taken)]
        while sum(not hold.is_over for hold in mixture._draws._ahead) < 2:  # the thread is ahead
            pass
        state = mixture.state_dict()
        with pytest.raises(errors.InvalidConfig, match="before its batches"):
            mixture.load_state_dict(state)
    other = relive.Mixture(SHARES, sources(), seed=3)
    other.load_state_dict(state)
    assert taken + [told(other.sample(7)) for _ in range(4)] == expected


def test_a_state_is_refused_while_batches_are_open_with_none_ahead() -> None:
    """The thread draws on at any time, so a position that is set beside it would be one of two."""
    mixture = relive.Mixture(SHARES, {"a": filled(seed=1), "b": used_twice(4)}, seed=3)
    state = mixture.state_dict()
    with mixture.batches(4, prefetch=1, timeout_s=0.3) as batches:
        with pytest.raises(errors.DeadlineExceeded):
            for _ in range(9):  # 'b' has 8 draws, and then no batch can be ahead
                next(batches)
        with pytest.raises(errors.InvalidConfig, match="before its batches"):
            mixture.load_state_dict(state)
    mixture.load_state_dict(state)


class Trial:
    """A draw that finds out whether a source has its part. The part comes now. The draw goes back after `goes_on`."""

    def __init__(self, table: relive.Table) -> None:
        self.table = table
        self.lack_of = mixed_source.lack_of
        self.has_come, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, draws: Any, *rest: Any) -> Any:
        self.draws = draws
        with self.table.writer() as writer:
            writer.extend(number=np.arange(8), truncated=True)
        return self.lack_of(self, *rest)

    def draw(self, *arguments: Any) -> Any:
        drawn = self.draws.draw(*arguments)
        self.has_come.set()
        self.goes_on.wait(60.0)
        return drawn


def test_a_state_has_no_draw_that_finds_out_whether_a_source_has_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of batches() makes such a draw while calls of the mixture pass, and gives it back."""
    trial = Trial(filled(count=0))
    monkeypatch.setattr(mixed_source, "lack_of", trial)
    with relive.Mixture(SHARES, {"a": filled(), "b": trial.table}, timeout_s=60.0) as mixture:
        before = mixture.state_dict()
        with mixture.batches(4, prefetch=1, timeout_s=60.0) as batches:
            assert trial.has_come.wait(60.0)
            going_on = threading.Timer(0.2, trial.goes_on.set)
            going_on.start()
            assert mixture.state_dict() == before
            going_on.join()
            next(batches)


def test_a_handler_that_interrupts_next_may_ask_for_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has the source of batches() for itself, to count the batch."""
    with relive.Mixture(SHARES, sources(), timeout_s=60.0) as mixture:
        before, told, count = mixture.state_dict(), list[Any](), mixed_draws.MixedDraws.count

        def counts(*arguments: Any) -> None:
            told.append(mixture.state_dict())
            count(*arguments)

        with mixture.batches(7, prefetch=2, timeout_s=60.0) as batches:
            monkeypatch.setattr(mixed_draws.MixedDraws, "count", counts)
            next(batches)
        assert told == [before]


def test_two_sources_of_one_handle_have_one_number() -> None:
    indexes = {"a": relive.Index(), "b": relive.Index(sampler=relive.Prioritized(1.0))}

    def made() -> relive.Table:
        table = relive.Table(SPEC, 200, indexes, seed=4)
        with table.writer() as writer:
            writer.extend(number=np.arange(50))
        return table

    plain = relive.Mixture(SHARES, made(), seed=3)
    expected = [told(plain.sample(7)) for _ in range(4)]
    mixture = relive.Mixture(SHARES, made(), seed=3)
    with mixture.batches(7, prefetch=3, timeout_s=20.0) as batches:
        first = told(next(batches))
        while sum(not hold.is_over for hold in mixture._draws._ahead) < 2:
            pass
        state = mixture.state_dict()
    other = relive.Mixture(SHARES, made(), seed=3)
    other.load_state_dict(state)
    assert [first, *(told(other.sample(7)) for _ in range(3))] == expected


def used_twice(count: int = 40) -> relive.Table:
    return filled(relive.Index(sampler=relive.Fifo(), max_times_sampled=2), count)


def go_on(folder: Path) -> tuple[relive.Mixture, dict[str, relive.Table]]:
    found = relive.checkpoint.load(folder / "a")
    again = {"a": found.table, "b": relive.load(folder / "b")}
    mixture = relive.Mixture({"a": 0.5, "b": 0.5}, again, seed=1)
    mixture.load_state_dict(found.cursor)
    return mixture, again


def test_no_item_is_skipped_and_none_is_trained_more_often_than_its_uses(tmp_path: Path) -> None:
    tables = {"a": used_twice(), "b": used_twice()}
    mixture, trained = relive.Mixture({"a": 0.5, "b": 0.5}, tables, seed=1), []
    for _ in range(4):
        trained += zip(*told(mixture.sample(8)), strict=True)
    relive.checkpoint.save(tmp_path / "a", table=tables["a"], cursor=mixture)
    tables["b"].save(tmp_path / "b")
    mixture, again = go_on(tmp_path)
    for _ in range(16):
        trained += zip(*told(mixture.sample(8, timeout_s=5.0)), strict=True)
    assert sorted(trained) == sorted([(number, source) for number in range(40) for source in (0, 1)] * 2)
    assert [one.num_items() for one in again.values()] == [0, 0]


def test_uses_of_batches_that_were_drawn_ahead_stay_counted(tmp_path: Path) -> None:
    """As after the death of a sampler: such an item may be trained less often than its uses, and never more often."""
    tables = {"a": used_twice(), "b": used_twice()}
    mixture, trained = relive.Mixture({"a": 0.5, "b": 0.5}, tables, seed=1), []
    with mixture.batches(8, prefetch=3, timeout_s=20.0) as batches:
        for _ in range(4):
            trained += zip(*told(next(batches)), strict=True)
        while len(mixture._draws._ahead) < 3:
            pass
        relive.checkpoint.save(tmp_path / "a", table=tables["a"], cursor=mixture)
        tables["b"].save(tmp_path / "b")
    mixture, again = go_on(tmp_path)
    while min(one.num_items() for one in again.values()) >= 4:
        trained += zip(*told(mixture.sample(8, timeout_s=5.0)), strict=True)
    counts = [trained.count(one) for one in set(trained)]
    assert max(counts) == 2 and len(trained) >= 160 - 4 * 8


def test_shares_stay_exact_over_a_load() -> None:
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    totals, state = np.zeros(3, np.int64), None
    for number in range(20):
        mixture = relive.Mixture(shares, {name: filled() for name in shares})
        if state is not None:
            mixture.load_state_dict(state)
        totals += np.bincount(mixture.sample(number % 4 + 1).source, minlength=3)  # type: ignore[arg-type]
        state = mixture.state_dict()
        assert (np.abs(totals - totals.sum() * np.array(list(shares.values()))) < 1.0).all()


def test_a_handle_of_another_stream_keeps_its_own_draws() -> None:
    mixture = relive.Mixture(SHARES, sources(), seed=3)
    mixture.sample(7)
    state = {**mixture.state_dict(), "streams": [0, 5]}
    tables = sources()
    before = tables["b"].next_draw
    relive.Mixture(SHARES, tables).load_state_dict(state)
    assert (tables["a"].next_draw, tables["b"].next_draw) == (state["next_draws"][0], before)


@pytest.mark.parametrize(
    "wrong",
    [
        None, {}, [], {"version": 2}, {"shares": {"a": 3, "b": 7}}, {"shares": {"b": 3, "a": 7}}, {"num_items": -1},
        {"num_items": 10}, {"num_items": True}, {"of_source": [1]}, {"of_source": [7, 0]}, {"of_source": "no"},
        {"random": {}}, {"random": None}, {"streams": [0]}, {"next_draws": [-1, 0]}, {"next_draws": ["a", 0]},
        {"next_draws": None},
    ],
)  # fmt: skip
def test_other_states_are_refused_and_change_nothing(wrong: Any) -> None:
    mixture = relive.Mixture(SHARES, sources(), seed=3)
    mixture.sample(7)
    before = mixture.state_dict()
    given = {**before, **wrong} if isinstance(wrong, dict) and wrong else wrong
    with pytest.raises(errors.InvalidConfig):
        mixture.load_state_dict(given)
    assert mixture.state_dict() == before
