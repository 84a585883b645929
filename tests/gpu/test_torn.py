"""Pages that change while kernels read them: what was torn is never handed out, and without the re-check it would be.

The pause of a round stands for whatever another process does between two launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import relive
from gpu.tools import (
    DEVICE,
    DeviceReader,
    before_load,
    bools_at,
    numbered_rows,
    numbered_spec,
    set_rounds,
    torch,
    wrong_rows,
)
from relive.gpu.kernels.words import PRESENT, READY
from relive.gpu.launch import Rounds, Scratch

pytestmark = pytest.mark.usefixtures("words_of_pages")


@contextmanager
def opened(capacity: int, count: int) -> Iterator[tuple[relive.Table, relive.Writer, DeviceReader, np.ndarray]]:
    """A table whose pages are full of numbered steps, and are reused soon."""
    index = relive.Index(relive.Transitions(), relive.Prioritized(priority_exponent=1.0))
    with relive.Table(numbered_spec(), capacity, index, max_lanes=2, seed=3) as table, table.writer() as writer:
        keys = writer.extend(**numbered_rows(0, count), truncated=True)
        with DeviceReader(table, DEVICE) as reader:
            yield table, writer, reader, keys


def overwrite(writer: relive.Writer, first: int, count: int) -> None:
    writer.extend(**numbered_rows(first, count), truncated=True)


@pytest.mark.forms(2)
@pytest.mark.parametrize("where", ["walked", "copied"])
def test_an_item_evicted_while_it_is_read_is_not_present(where: str) -> None:
    """Its frames hold other rows before its columns are copied, or just afterwards."""
    with opened(64, 64) as (_, writer, reader, keys):
        done = []

        def pause(stage: str) -> None:
            if stage == where and not done:
                done.append(stage)
                overwrite(writer, 1000, 200)

        set_rounds(reader, pause)
        batch = reader.gather(keys[:60])
        assert done and not batch.present.any()
        assert all(not array.any() for array in batch.flat().values()), "rows of absent items are zeros"


def test_without_the_recheck_torn_rows_would_be_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programme of the test above does tear rows: with the re-check gone they come out as present."""

    def believe(self: Rounds, span: object, scratch: Scratch, present: int, only_generation: bool) -> None:
        scratch.state[scratch.state == int(READY.value)] = int(PRESENT.value)
        bools_at(present, scratch.num_items).fill_(True)

    monkeypatch.setattr(Rounds, "_recheck", believe)
    with opened(64, 64) as (_, writer, reader, keys):
        set_rounds(reader, lambda stage: overwrite(writer, 1000, 200) if stage == "walked" else None)
        batch = reader.gather(keys[:60])
        rows = np.flatnonzero(batch.present.cpu().numpy())
        assert len(rows) and (batch["action"].cpu().numpy()[rows] >= 1000).any(), (
            "nothing was torn: the tests show nothing"
        )


@pytest.mark.forms(1)
def test_items_whose_pages_move_are_read_again() -> None:
    with opened(200, 150) as (table, _, reader, keys):
        moves = []

        def pause(stage: str) -> None:
            if len(moves) < 3:
                moves.append(table._core.move_all_pages())

        set_rounds(reader, pause)
        batch = reader.gather(keys[:140])
        assert batch.present.all() and sum(moves) > 10
        assert batch["action"].tolist() == list(range(140))
        assert not wrong_rows(batch, np.arange(140))


@pytest.mark.forms(1)
def test_pages_that_never_hold_still_are_read_by_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.gpu.gather.ROUNDS", 3)
    with opened(64, 40) as (table, _, reader, keys):
        set_rounds(reader, lambda stage: table._core.move_all_pages() and None)
        batch = reader.gather(keys[:20])
        assert batch.present.all() and batch["action"].tolist() == list(range(20))
        assert not wrong_rows(batch, np.arange(20))


@pytest.mark.forms(2)
@pytest.mark.parametrize("where", ["walked", "copied"])
def test_a_sample_draws_torn_items_again(where: str) -> None:
    """All of the first round's items are evicted under it; the batch is whole and of what lives now."""
    with opened(64, 64) as (_, writer, reader, _):
        turns = iter(range(2))

        def pause(stage: str) -> None:
            if stage == where and next(turns, None) is not None:
                overwrite(writer, 5000, 130)

        set_rounds(reader, pause)
        batch = reader.sample(48)
        assert not wrong_rows(batch, np.arange(48))
        assert (batch["action"].cpu().numpy() >= 5000).all()
        assert (batch.probabilities > 0).all()


@pytest.mark.forms(2)
@pytest.mark.parametrize("where", ["linked", "walked"])
def test_a_page_before_that_was_freed_and_reused_is_not_read_as_the_old_one(where: str) -> None:
    """The slow lane's second page stays, its first becomes another lane's, before its link is followed or after.

    Links are followed with generations, and neighbours are re-checked as the item's own page is.
    """
    index = relive.Index(relive.Transitions(stack={"observation": 3}), relive.Prioritized(priority_exponent=1.0))
    with relive.Table(numbered_spec(), 128, index, max_lanes=2) as table:
        slow, busy = table.writer(), table.writer()
        first = numbered_rows(0, 8)  # without the state after it, which would open the second page too
        slow.extend(**{name: values[:8] for name, values in first.items()})
        busy.extend(**numbered_rows(1000, 112))
        reaching = slow.extend(**numbered_rows(8, 8))[:2]
        all_keys = table.draw(2000).item_keys
        table.update_priorities(all_keys, np.zeros(2000, np.float32))
        table.update_priorities(reaching, np.ones(2, np.float32))
        facts, done = table._core.geometry, []

        def pause(stage: str) -> None:
            if stage == where and not done:
                done.append(facts["page_len"])
                busy.extend(**numbered_rows(1112, 104))

        with DeviceReader(table, DEVICE) as reader:
            set_rounds(reader, pause)
            with reader._view.held() as span:
                page = (int(reaching[0]) & (1 << facts["slot_bits"]) - 1) // facts["page_len"]
            record = span.address + facts["pages_offset"] + page * facts["structs"]["page"]["num_bytes"]
            link = record + facts["structs"]["page"]["prev"]
            with before_load(link, 8, lambda: pause("linked")):  # after the item's leaf was read, in the same launch
                batch = reader.sample(24)
        assert done == [8]
        stacked = batch["observation"].cpu().numpy()[:, :, 0]
        action = batch["action"].cpu().numpy()
        assert (stacked == action[:, None] + np.arange(-2, 1)).all(), "a stack over two lanes"
        assert not set(batch.item_keys.tolist()) & set(reaching.tolist())
        slow.close()
        busy.close()


def test_a_leaf_that_lost_its_mass_after_the_descent_is_not_taken() -> None:
    with opened(64, 60) as (table, _, reader, keys):
        table.update_priorities(keys, np.r_[np.ones(30), np.zeros(30)].astype(np.float32))
        turned = []

        def pause(stage: str) -> None:
            if stage == "drawn" and not turned:
                turned.append(table.update_priorities(keys, np.r_[np.zeros(30), np.ones(30)].astype(np.float32)))

        set_rounds(reader, pause)
        drawn = reader.draw(40)
        assert turned == [60] and set(drawn.item_keys.tolist()) <= set(keys[30:].tolist())


@pytest.mark.forms(1)
def test_a_draw_alone_pairs_key_and_mass_of_one_item() -> None:
    with opened(64, 64) as (table, writer, reader, _):
        drawn = reader.draw(64)
        overwrite(writer, 9000, 130)
        batch = reader.gather(drawn)
        assert not batch.present.any() and torch.equal(batch.probabilities, drawn.probabilities)
        assert reader.gather(reader.draw(16)).present.all()


def run_beside(work: Callable[[], None], stop: threading.Event) -> tuple[threading.Thread, list[BaseException]]:
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=loop)
    thread.start()
    return thread, failures


@pytest.mark.forms(1)
def test_nothing_torn_beside_a_writer_that_never_stops() -> None:
    """A page lives for a few milliseconds, shorter than a round; what does come out is whole."""
    with opened(400, 400) as (table, writer, reader, _):
        stop = threading.Event()
        position = [400]

        def write() -> None:
            overwrite(writer, position[0], 8)
            position[0] += 8
            stop.wait(0.03)

        thread, failures = run_beside(write, stop)
        try:
            seen = rounds = 0
            # A card may be done before the writer has written twice.
            while rounds < 2 or (position[0] <= 416 and not failures):
                rounds += 1
                batch = reader.sample(32, timeout_s=100.0)
                assert not wrong_rows(batch, np.arange(32))
                again = reader.gather(batch.item_keys)
                rows = np.flatnonzero(again.present.cpu().numpy())
                assert not wrong_rows(again, rows)
                assert (again["action"].cpu().numpy()[rows] == batch["action"].cpu().numpy()[rows]).all()
                seen += len(rows)
        finally:
            stop.set()
            thread.join()
        assert not failures
        table.check()


def test_only_items_whose_pages_went_are_absent() -> None:
    """The first pages become others before rows are copied. In the batch, items that go lie between items that stay."""
    with opened(200, 200) as (table, writer, reader, keys):
        done: list[str] = []

        def pause(stage: str) -> None:
            if stage == "walked" and not done:
                done.append(stage)
                overwrite(writer, 1000, 90)

        set_rounds(reader, pause)
        number = np.arange(200).reshape(2, 100)[::-1].T.ravel()
        batch = reader.gather(keys[number])
        present = batch.present.cpu().numpy()
        assert (batch["action"].cpu().numpy() == np.where(present, number, 0)).all()
        assert not wrong_rows(batch, np.flatnonzero(present))
        assert done and 60 < present.sum() < 160
        assert (table.gather(keys[number]).present <= present).all()


def test_a_draw_alone_never_pairs_an_old_key_with_a_new_mass() -> None:
    """The pages of the drawn leaves become other pages before the leaves are read again: those masses are of others."""
    with opened(64, 64) as (table, writer, reader, _):
        done: list[str] = []

        def pause(stage: str) -> None:
            if stage == "drawn" and not done:
                done.append(stage)
                overwrite(writer, 1000, 130)

        set_rounds(reader, pause)
        drawn = reader.draw(32)
        assert done and table.gather(drawn.item_keys.cpu().numpy()).present.all()
