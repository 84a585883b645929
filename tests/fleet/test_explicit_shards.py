"""Explicit items of a table over one shard: the limiter of their index acts on them, and not on the steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps
from processes.shm import needs_shared_memory
from processes.tools import eventually

import relive
from relive import errors
from relive.fleet import ShardOwner, attach
from relive.fleet.draws.pace import Wait
from relive.fleet.writing import made_as_let_in
from relive.writing.new_items import NewItems

pytestmark = needs_shared_memory
PACED: dict[str, Any] = {"limiter": relive.SamplesPerInsert(1.0, min_size=4, tolerance=4.0)}
QUEUE: dict[str, Any] = {"limiter": relive.Queue(8), "max_times_sampled": 1}
Make = Callable[..., Any]


@pytest.fixture(params=["mapped", "service"])
def make(request: Any, shm_name: Any) -> Iterator[Make]:
    """make(**more): a table over one shard with an index of explicit items."""
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with contextlib.ExitStack() as stack:

        def one(**more: Any) -> Any:
            name = shm_name()
            indexes = {"steps": relive.Index(), "items": relive.Index(relive.Explicit(1, max_items=100), **more)}
            config = relive.TableConfig(plain_spec(), 1000, indexes, relive.SharedMemory(name))
            owner = stack.enter_context(ShardOwner(0, config))
            place = owner.serve("grpc://127.0.0.1:0") if request.param == "service" else name
            return stack.enter_context(attach([place], path=request.param, timeout_s=60.0))

        yield one


@pytest.mark.parametrize("paced", [PACED, QUEUE], ids=["samples_per_insert", "queue"])
def test_a_limiter_of_explicit_items_stops_items_and_no_steps(make: Make, paced: dict[str, Any]) -> None:
    table = make(**paced)
    with table.writer() as writer:
        keys = write_steps(writer, 0, 20)
        for key in keys[:8]:
            writer.create_item(key, index="items", timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            writer.create_item(keys[8], index="items", timeout_s=0.0)
        assert write_steps(writer, 20, 20).shape == (20,) and table.num_items("items") == 8
        for _ in range(4):
            table.sample(1, index="items", timeout_s=0.0)
        for key in keys[8:12]:
            writer.create_item(key, index="items", timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            writer.create_item(keys[12], index="items", timeout_s=0.0)


def test_more_items_than_there_is_room_for_are_made_as_draws_make_room(make: Make) -> None:
    table = make(**PACED)
    with table.writer() as writer:
        keys = write_steps(writer, 0, 20)
        made: list[Any] = []
        creating = threading.Thread(target=lambda: made.append(table.create_items(keys, timeout_s=60.0)))
        creating.start()
        for _ in range(12):
            assert table.sample(1, index="items", timeout_s=60.0).num_items == 1
        creating.join()
        assert table.gather(made[0], index="items")["action"].ravel().tolist() == list(range(20))


def test_the_first_fill_lets_in_at_most_a_window_at_once_as_in_one_table(make: Make) -> None:
    indexes = {"steps": relive.Index(), "items": relive.Index(relive.Explicit(1, max_items=100), **PACED)}
    made = []
    for table in (make(**PACED), relive.Table(plain_spec(), 1000, indexes)):
        with table, table.writer() as writer:
            keys = write_steps(writer, 0, 40)
            table.create_items(keys[:3], timeout_s=0.0)
            with pytest.raises(errors.DeadlineExceeded) as stopped:
                table.create_items(keys[3:20], timeout_s=0.0)
            made.append((stopped.value.stored, table.num_items("items")))
    assert made == [(8, 11)] * 2  # an insert of a window of 8, while fewer than min_size items are live


@pytest.mark.parametrize("waits", [QUEUE, {"limiter": relive.StalenessBudget(0.0, 8), "max_times_sampled": 1}])
def test_the_deadline_of_a_wait_for_a_limiter_names_the_limiter(make: Make, waits: dict[str, Any]) -> None:
    table = make(**waits)
    with table.writer() as writer:
        keys = write_steps(writer, 0, 20)
        table.create_items(keys[:8], timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded) as stopped:
            table.create_items(keys[8:10], timeout_s=0.05)
    assert "index items: " in str(stopped.value) and "oldest rows" not in str(stopped.value)


def test_a_call_that_ends_in_the_middle_tells_which_items_are_made(make: Make) -> None:
    table = make(**PACED)
    with table.writer() as writer:
        cleared = write_steps(writer, 0, 1, truncated=True)
        table.clear()
        keys = write_steps(writer, 0, 20)
        table.create_items(keys[:6])
        with pytest.raises(errors.DeadlineExceeded, match="the first 2 of 5 items are made") as stopped:
            table.create_items(keys[:5], timeout_s=0.0)
        told = stopped.value.keys
        assert stopped.value.stored == 2 and told is not None
        assert table.gather(told, index="items")["action"].ravel().tolist() == [0, 1]

        gone: list[Any] = []

        def create() -> None:
            with pytest.raises(errors.RowGone, match="the first 4 of 5 items are made") as refused:
                table.create_items(np.append(keys[:4], cleared), timeout_s=60.0)
            gone.append(refused.value)

        creating = threading.Thread(target=create)
        creating.start()
        for num_items in range(8, 13):  # each draw makes room for one item
            assert eventually(lambda there=num_items: table.num_items("items") == there)
            table.sample(1, index="items", timeout_s=60.0)
        creating.join()
        assert gone[0].item == 4 == gone[0].stored == len(gone[0].keys) and table.num_items("items") == 12


@pytest.mark.parametrize("stored", [0, 1])
def test_the_exception_of_a_handler_tells_which_items_are_made(stored: int) -> None:
    """It raises while the call waits for room after three items, or in the core when that has made one more."""
    room, looks = [3, 2], [0]

    def create(part: NewItems, left_s: float) -> Any:
        if looks[0] == 2:
            interrupt = KeyboardInterrupt()
            interrupt.stored, interrupt.keys = stored, part.windows[:stored]  # type: ignore[attr-defined]
            raise interrupt
        return part.windows

    def lets_in(count: int, left_s: float) -> bool:
        looks[0] += count == 1
        if looks[0] == 2 and not stored:
            raise KeyboardInterrupt
        return count <= room[looks[0] - 1]

    items = NewItems(np.arange(100, 110), [], None, [])
    with pytest.raises(KeyboardInterrupt) as stopped:
        made_as_let_in(items, create, lets_in, Wait(60.0))
    assert stopped.value.stored == 3 + stored  # type: ignore[attr-defined]
    assert stopped.value.keys.tolist() == list(range(100, 103 + stored))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [errors.ServiceUnavailable, KeyboardInterrupt])
def test_items_whose_answer_is_lost_are_told_apart_from_made_ones(kind: Any) -> None:
    """The first three are made. The next two were sent, and the others were not."""
    room, error = [3, 2], kind("there", 1.0)

    def create(part: NewItems, left_s: float) -> Any:
        if room:
            return part.windows
        if isinstance(error, errors.ServiceUnavailable):
            error.tell_items(np.zeros(0, np.int64), 2, 2)
        raise error

    def lets_in(count: int, left_s: float) -> bool:
        return count <= (room[0] if room else 0) or count == 1

    def made(part: NewItems, left_s: float) -> Any:
        room.pop(0)
        return create(part, left_s)

    with pytest.raises(kind) as stopped:
        made_as_let_in(NewItems(np.arange(100, 110), [], None, []), made, lets_in, Wait(60.0))
    told: Any = stopped.value
    assert (told.stored, told.keys.tolist(), told.unanswered) == (3, [100, 101, 102], 2)
    if isinstance(told, errors.ServiceUnavailable):
        assert "made the first 3 of 10 items" in str(told) and "may have made 2 of the items after them" in str(told)
