"""Calls that go to several shards: what they wait for, what is refused before a shard changes, what comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from processes.test_locks import stopped_holder
from processes.tools import stop_process

import relive
from relive import errors
from relive.fleet import ShardOwner, attach, calls
from relive.fleet.agreement import Agreement
from relive.fleet.calls import Calls
from relive.fleet.drawing import Drawing
from relive.fleet.draws.sharing import Sharing
from relive.fleet.shards import STALL_S, Later

pytestmark = needs_shared_memory

PLAIN = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
LATE = relive.StepSpec({"a": relive.ArraySpec((), "int64"), "s": relive.ArraySpec((), "float32", late=True)})
FRAMES = relive.StepSpec({"a": relive.ArraySpec((), "int64"), "o": relive.ArraySpec((64, 64, 4), "uint8")})
ORDERS = (
    relive.Fifo(),
    relive.Lifo(),
    relive.Fresh(),
    relive.MaxPriority(),
    relive.MinPriority(),
    relive.RankBased(),
    relive.TopK(3),
)
Make = Callable[..., Any]
NAMES: list[str] = []  # of the shards of make()
TRIES = 5  # of a call that is timed


@pytest.fixture(params=["mapped", "service"])
def make(request: Any, shm_name: Any) -> Iterator[Make]:
    """make(number of shards, spec, index): a table over shards of this process, by either path."""
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    NAMES.clear()
    with contextlib.ExitStack() as stack:

        def one(count: int, spec: Any = PLAIN, index: Any = None, **attached: Any) -> Any:
            places = []
            for number in range(count):
                name = shm_name()
                NAMES.append(name)
                config = relive.TableConfig(spec, 1000, index, relive.SharedMemory(name), timeout_s=5.0, seed=1)
                owner = stack.enter_context(ShardOwner(number, config))
                places.append(owner.serve("grpc://127.0.0.1:0") if request.param == "service" else name)
            path = "service" if request.param == "service" else None
            return stack.enter_context(attach(places, path=path, **attached))

        yield one


def rows(count: int, **more: Any) -> dict[str, Any]:
    return {"a": np.arange(count), "truncated": True, **more}


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_refused_completion_completes_no_row(make: Make) -> None:
    table = make(3, LATE)
    keys = [table.writer(shard=number).extend(**rows(3)) for number in range(3)]
    table.complete(keys[1][2:], s=[9.0])
    for order in ([0, 1, 2], [2, 1, 0]):
        given = np.concatenate([keys[number] for number in order])
        with pytest.raises(errors.AlreadyCompleted) as caught:
            table.complete(given, s=np.arange(9.0))
        error = caught.value
        assert (error.position, error.key, error.column, error.applied) == (5, keys[1][2], "s", 0)
        assert table.num_items() == 1
    given = np.concatenate([keys[0], keys[1][:2], keys[2], keys[0][1:2]])
    with pytest.raises(errors.AlreadyCompleted) as caught:
        table.complete(given, s=np.arange(9.0))
    assert (caught.value.position, caught.value.key, table.num_items()) == (8, keys[0][1], 1)
    assert table.complete(np.concatenate([keys[0], keys[1][:2], keys[2]]), s=np.arange(8.0)) == 8
    assert table.num_items() == 9


def test_rows_that_are_gone_refuse_no_completion(make: Make) -> None:
    table = make(2, LATE)
    near, far = (table.writer(shard=number).extend(**rows(4)) for number in (0, 1))
    table.complete(near[:2], s=[1.0, 2.0])
    table.delete(near[:2])
    table.delete(far[3:])
    assert table.complete(np.concatenate([near, far]), s=np.arange(8.0)) == 5
    assert table.num_items() == 5


def test_a_row_that_is_completed_meanwhile_is_told_with_the_rows_that_were(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is not under the lock: a row that another process completes after it refuses its shard's part."""
    monkeypatch.setattr(Calls, "_check_unfilled", lambda self, keys: None)
    completed_meanwhile(make)


def completed_meanwhile(make: Make) -> None:
    table = make(2, LATE)
    near, far = (table.writer(shard=number).extend(**rows(3)) for number in (0, 1))
    table.complete(far[1:2], s=[9.0])
    with pytest.raises(errors.AlreadyCompleted) as caught:
        table.complete(np.concatenate([near, far]), s=np.arange(6.0))
    assert (caught.value.position, caught.value.applied) == (4, 3)
    assert table.num_items() == 4


def test_two_refusals_count_the_rows_of_both_shards(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard completes many rows in parts, so a row that is completed meanwhile may refuse a later part of them."""
    table = make(3, LATE)
    keys = np.concatenate([table.writer(shard=number).extend(**rows(4)) for number in range(3)])
    for at, applied in ((0, 2), (2, 1)):
        answer = Later(partial(raising, errors.AlreadyCompleted(3, int(keys[4 * at + 3]), "s", applied)))
        monkeypatch.setattr(table._fleet.shards[at], "ask", lambda call, *values, answer=answer: answer)
    with pytest.raises(errors.AlreadyCompleted) as caught:
        table.complete(keys, s=np.arange(12.0))
    assert (caught.value.position, caught.value.applied) == (3, 2 + 4 + 1)


def raising(error: BaseException) -> None:
    raise error


def test_an_exponent_that_one_shard_refuses_changes_none(make: Make) -> None:
    table = make(2, PLAIN, relive.Index(sampler=relive.Prioritized(0.6)))
    for number in (0, 1):
        table.writer(shard=number).extend(**rows(4))
    table._fleet.shards[1].ask("set_priority_exponent", 0, 0.0).take()
    with pytest.raises(errors.InvalidConfig):
        table.set_priority_exponent(0.5)
    assert table._fleet.calls.of_all("priority_exponent", 0) == [0.6, 0.0]


def test_draws_that_the_window_never_lets_pass_are_refused(make: Make) -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=50.0)
    table = make(2, PLAIN, relive.Index(limiter=limiter), root_age=8)
    mixture = relive.Mixture({"whole": 1.0}, {"whole": table})

    def ahead(count: int) -> None:
        with mixture.batches(count) as batches:
            next(batches)

    for call in (table.sample, table.draw, table.batches, mixture.sample, mixture.draw, ahead):
        with pytest.raises(errors.RequestTooLarge, match=r"tolerance 50: .* root_age 8") as caught:
            call(20)
        assert (caught.value.requested, caught.value.window) == (160.0, 100.0)
    table.writer(shard=0).extend(**rows(60))
    assert table.sample(12).num_items == 12


# ---- waits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ORDERS, ids=repr)
def test_a_draw_of_an_empty_order_waits_for_items(make: Make, sampler: Any) -> None:
    table = make(1, PLAIN, relive.Index(sampler=sampler, max_times_sampled=1))
    with pytest.raises(errors.DeadlineExceeded):
        table.sample(4, timeout_s=0.0)
    late = threading.Thread(target=lambda: table.writer().extend(**rows(8)))
    late.start()
    assert table.sample(4).num_items == 4
    late.join()


def test_the_first_step_under_a_limiter_over_an_empty_order(make: Make) -> None:
    limiter = relive.SamplesPerInsert(4.0, min_size=10)
    table = make(1, PLAIN, relive.Index(sampler=relive.Fifo(), limiter=limiter))
    with table.writer() as writer:
        writer.append(a=1)
    assert len(table) == 1


def test_claims_of_a_shard_without_items_leave_it_in_use(make: Make) -> None:
    table = make(2, PLAIN, relive.Index(sampler=relive.Prioritized(1.0)))
    near, far = (table.writer(shard=number).extend(**rows(5)) for number in (0, 1))
    table.delete(far)
    taken = table.claim(relive.Draw.of(np.concatenate([near, far]), np.full(10, 0.1)))
    assert taken.item_keys.tolist() == near.tolist()
    assert [shard.state for shard in table.stats().shards] == ["live", "live"]
    new = table.writer(shard=1).extend(**rows(3))
    assert table.update_priorities(new, np.ones(3)) == 3 == table.gather(new).present.sum()


@pytest.mark.parametrize("count", [10, 12])
def test_uses_that_lie_unevenly_are_all_handed_out(make: Make, count: int) -> None:
    table = make(2, PLAIN, relive.Index(max_times_sampled=2))
    _, far = (table.writer(shard=number).extend(**rows(4)) for number in (0, 1))
    table.claim(relive.Draw.of(far, np.full(4, 0.1)))
    batch = table.sample(count)
    used = np.bincount(batch.item_keys >> 51, minlength=2)
    assert used[0] <= 8 and used[1] <= 4 and used.sum() == count
    rest = 12 - count
    if rest:
        assert table.sample(rest).num_items == rest
    with pytest.raises(errors.DeadlineExceeded):
        table.sample(1, timeout_s=0.1)
    assert table.stats().indexes["default"].in_flight == 0


def test_a_stopped_process_in_the_lock_of_a_shard_costs_that_shard(make: Make) -> None:
    table = make(2, PLAIN, relive.Index(sampler=relive.Prioritized(1.0)))
    keys = np.concatenate([table.writer(shard=number).extend(**rows(4)) for number in (0, 1)])
    with stopped_holder(NAMES[1]) as holder:
        assert table.update_priorities(keys, np.ones(8)) == 4
        with pytest.raises((errors.DeadlineExceeded, errors.ServiceUnavailable)):
            table.clear()
        assert table.sample(8).num_items == 8 and table.gather(keys).present[:4].all()
        holder.kill()
        while any(shard.state != "live" for shard in table._fleet.shards):
            time.sleep(0.02)
    assert table.update_priorities(keys, np.ones(8)) == 8 == len(table)


def test_stopped_processes_in_the_locks_of_several_shards_cost_one_wait(make: Make) -> None:
    """The locks are waited for at once, as answers are: four cost less than three times one.

    Waits one after another last four times as long each time. A busy machine makes a call longer now and then.
    """
    table = make(5, PLAIN, relive.Index(sampler=relive.Prioritized(1.0), max_times_sampled=2 * TRIES))
    keys = np.concatenate([table.writer(shard=number).extend(**rows(4)) for number in range(5)])
    own = relive.Draw.of(keys, np.full(20, 1 / 20))

    def refused() -> int:
        with pytest.raises((errors.DeadlineExceeded, errors.ServiceUnavailable)):
            table.clear()
        return 0

    calls: list[tuple[Callable[[], int], int]] = [  # and what it counts in each shard whose lock is free
        (lambda: table.update_priorities(keys, np.ones(20)), 4),
        (lambda: table.delete(keys[:0]), 0),
        (lambda: len(table.claim(own, timeout_s=5.0).item_keys), 4),
        (refused, 0),
    ]

    def seconds(number: int, num_free: int) -> float:
        while any(shard.state != "live" for shard in table._fleet.shards):
            time.sleep(0.02)
        call, count = calls[number]
        started = time.monotonic()
        assert call() == count * num_free
        return time.monotonic() - started

    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(stopped_holder(NAMES[0]))]
        alone = [max(seconds(number, 4) for _ in range(2)) for number in range(len(calls))]
        holders += [stack.enter_context(stopped_holder(name)) for name in NAMES[1:4]]
        for number, one_s in enumerate(alone):
            assert any(seconds(number, 1) < 3 * max(one_s, STALL_S) for _ in range(TRIES))
        for holder in holders:
            holder.kill()


TIGHT = relive.SamplesPerInsert(1.0, min_size=40, tolerance=30.0)  # inserts - draws stays within 10 and 70


def test_a_block_and_a_draw_that_do_not_fit_the_window_together_do_not_wait_for_each_other(make: Make) -> None:
    """Both would wait with 40 inserted: the block for 30 at most, the draw for 50 at least. The block goes by parts."""
    table = make(2, PLAIN, relive.Index(limiter=TIGHT))
    blocks = [rows(40), rows(40, truncated=np.arange(40) % 8 == 7)]
    keys: list[Any] = []
    with table.writer(shard=1) as writer:

        def write() -> None:
            keys.extend(writer.extend(**block, timeout_s=60.0) for block in blocks)

        late = threading.Thread(target=write)
        late.start()
        drawn = table.sample(40, timeout_s=60.0)
        late.join()
    assert drawn.num_items == 40 and len(table) == 80
    assert [one.shape for one in keys] == [(40,), (40,)]
    found = table.gather(np.concatenate(keys))
    assert found.present.all() and found["a"].tolist() == [*range(40), *range(40)]
    assert table.gather(keys[1], ["truncated"])["truncated"].tolist() == blocks[1]["truncated"].tolist()


@pytest.mark.parametrize(("num_lanes", "by"), [(None, "extend"), (3, "extend"), (3, "append")])
def test_rows_and_a_draw_of_a_queue_do_not_wait_for_each_other(make: Make, num_lanes: int | None, by: str) -> None:
    """Items wait in the shard, and the queue has room for four. The call gives more than it has room for now, and the
    draw wants more than there are.
    """
    table = make(2, PLAIN, relive.Index(sampler=relive.Fifo(), limiter=relive.Queue(4), max_times_sampled=1))
    with table.writer(num_lanes, shard=0) as writer:
        if num_lanes is None:
            keys = [writer.append(a=0, truncated=True)]
        else:
            keys = [writer.append(a=[lane], lanes=[lane], truncated=True) for lane in (1, 2)]
        drawn: list[Any] = []
        reader = threading.Thread(target=lambda: drawn.append(table.sample(4, timeout_s=60.0)))
        reader.start()
        time.sleep(0.2)
        if num_lanes is None:
            keys.append(writer.extend(a=np.arange(1, 5), truncated=np.ones(4, np.bool_), timeout_s=60.0))
        elif by == "extend":
            keys.append(writer.extend(a=[[3, 4, 5]], truncated=np.ones((1, 3), np.bool_), timeout_s=60.0))
        else:
            keys.append(writer.append(a=[3, 4, 5], truncated=True, timeout_s=60.0))
        reader.join()
    assert np.shape(keys[-1]) == ((4,) if num_lanes is None else (1, 3) if by == "extend" else (3,))
    written = np.concatenate([np.reshape(one, -1) for one in keys])
    assert drawn[0].item_keys.tolist() == written[:4].tolist()
    assert drawn[0]["a"].tolist() == ([0, 1, 2, 3] if num_lanes is None else [1, 2, 3, 4])
    assert table.sample(1).item_keys.tolist() == written[4:].tolist()


def test_a_block_that_goes_by_parts_tells_at_its_deadline_what_is_stored(make: Make) -> None:
    table = make(2, PLAIN, relive.Index(limiter=TIGHT))
    with table.writer(2, shard=0) as writer:
        block = {"a": np.arange(40).reshape(20, 2)}
        writer.extend(**block)
        with pytest.raises(errors.DeadlineExceeded, match="the first 30 of 40 rows are stored") as caught:
            writer.extend(**block, timeout_s=1.5)
        assert caught.value.stored == 30 == len(caught.value.keys)
    raw = table.gather(caught.value.keys, ["a"])
    assert raw["a"].tolist() == list(range(30)) and len(table) == 70


# ---- shards of other hosts -----------------------------------------------------------------------------------------


@pytest.fixture
def linked(shm_name: Any) -> Iterator[Callable[..., Any]]:
    """linked(count, spec): owners of this process, each with a link that can fail, and addresses over the links."""
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    from service.proxy import Proxy

    with contextlib.ExitStack() as stack:

        def make(count: int, spec: Any = PLAIN, index: Any = None) -> tuple[list[Any], list[str]]:
            links, places = [], []
            for number in range(count):
                name = shm_name()
                config = relive.TableConfig(spec, 1000, index, relive.SharedMemory(name), timeout_s=60.0)
                address = stack.enter_context(ShardOwner(number, config)).serve("grpc://127.0.0.1:0")
                links.append(stack.enter_context(Proxy(int(address.rsplit(":", 1)[1].split("/")[0]))))
                places.append(f"{links[-1].address}/{name}")
            return links, places

        yield make


@pytest.mark.parametrize("count", [1, 2])
def test_rows_that_take_longer_than_the_patience_with_silence_arrive(linked: Any, count: int) -> None:
    """256 frames of 16 kB take four seconds; a chunk of an answer alone takes more than half a second."""
    links, places = linked(count, FRAMES)
    with attach(places, path="service", timeout_s=60.0) as table:
        keys = np.concatenate(
            [
                table.writer(shard=number).extend(**rows(256 // count, o=np.ones((256 // count, 64, 64, 4), "u1")))
                for number in range(count)
            ]
        )
        for link in links:
            link.bytes_a_second = 1e6 / count
        assert table.gather(keys).present.all()
        batch = table.sample(64)
        assert (batch["o"] == 1).all() and {shard.state for shard in table.stats().shards} == {"live"}
        with table.batches(64, prefetch=1) as batches:
            assert next(batches).num_items == 64


@pytest.mark.parametrize("count", [1, 3])
def test_a_deadline_while_rows_are_on_their_way_leaves_the_shards_live(
    linked: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draw ends at its deadline, not at one for each shard, and later calls lose nothing."""
    from relive.fleet.remote.streams import Lines

    ask, asked = Lines.ask, list[str]()
    monkeypatch.setattr(
        Lines,
        "ask",
        lambda self, header, *rest, **more: asked.append(header["op"]) or ask(self, header, *rest, **more),
    )
    links, places = linked(count, FRAMES, relive.Index(sampler=relive.Prioritized(1.0)))
    with attach(places, path="service", timeout_s=60.0) as table:
        steps = rows(64, o=np.ones((64, 64, 64, 4), "u1"))
        keys = np.concatenate([table.writer(shard=number).extend(**steps) for number in range(count)])
        assert table.sample(count).num_items == count
        for link in links:
            link.bytes_a_second = 3e5
        asked.clear()
        with pytest.raises(errors.DeadlineExceeded, match="on their way"):
            table.sample(128, timeout_s=1.0)
        assert asked.count("draw") == count
        for link in links:
            link.bytes_a_second = None
        assert [shard.state for shard in table._fleet.shards] == ["live"] * count
        assert table.update_priorities(keys, np.ones(len(keys))) == len(keys)
        assert table.gather(keys).present.all() and table.sample(8).num_items == 8


def test_an_owner_that_works_on_an_answer_is_not_taken_for_silent(linked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that the owner makes for three seconds: the session says meanwhile that it works."""
    from relive.service.server.sessions import CallSession

    _, places = linked(1)
    with attach(places, path="service", timeout_s=60.0) as table:
        keys = table.writer().extend(**rows(4))
        plain = CallSession._CALLS["gather"]

        def slow(session: Any, header: Any, body: Any) -> None:
            time.sleep(3.0)
            plain.answer(session, header, body)

        monkeypatch.setitem(CallSession._CALLS, "gather", plain._replace(answer=slow))
        assert table.gather(keys).present.all()


def test_any_number_of_silent_shards_costs_one_wait(linked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The links of four of five shards stall. Each call asks all four before it gives up on the first of them."""
    from relive.service.client.exchange import Exchange

    expire, ended = Exchange.expire, list[tuple[float, float]]()  # when a silent stream was asked, and when it ended

    def noting(stream: Any, now: float, is_silent: bool = False) -> None:
        expire(stream, now, is_silent)
        if stream.was_silent:
            ended.append((stream._quiet_from, now))

    monkeypatch.setattr(Exchange, "expire", noting)
    links, places = linked(5, PLAIN, relive.Index(sampler=relive.Prioritized(1.0)))
    with attach(places, path="service", timeout_s=60.0) as table:
        keys = np.concatenate([table.writer(shard=number).extend(**rows(4)) for number in range(5)])
        calls = (
            lambda: table.sample(16).num_items == 16,
            lambda: table.gather(keys).present.sum() == 4,
            lambda: table.update_priorities(keys, np.ones(20)) == 4,
            lambda: table.claim(relive.Draw.of(keys, np.full(20, 0.1))).num_items == 4,
            lambda: len(table) == 4,
            lambda: sum(map(len, table.keys())) == 4,
            lambda: [shard.state for shard in table.stats().shards].count("live") == 1,
            lambda: table.set_policy_version(3) is None,
            lambda: table.check() is None,
        )
        for call in calls:
            for link in links[1:]:
                link.stall(True)
            ended.clear()
            assert call()
            while len(ended) < 4:  # the end of a stream wakes its caller before it is noted
                time.sleep(0.01)
            assert max(asked for asked, _ in ended[:4]) < min(at for _, at in ended)
            for link in links[1:]:
                link.stall(False)
            while any(shard.state != "live" for shard in table._fleet.shards):
                time.sleep(0.02)
        assert table.stats().num_steps == 20


def test_silent_shards_are_asked_once_if_the_roots_are_those_of_an_earlier_draw(
    linked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is given back, without a byte from its owner, tells that its shard is silent."""
    from relive.fleet.remote.shard import RemoteShard

    part, asked = RemoteShard.part, list[int]()
    monkeypatch.setattr(RemoteShard, "part", lambda self, whole: asked.append(self.number) or part(self, whole))
    links, places = linked(5)
    with attach(places, path="service", timeout_s=60.0, root_age=4) as table:
        for number in range(5):
            table.writer(shard=number).extend(**rows(4))
        for call in (table.sample, table.draw):
            while table._fleet.agreement._agreed.get(0, (None, 0))[1] != 3:
                table.sample(16)
            for link in links[1:]:
                link.stall(True)
            asked.clear()
            assert (call(16).item_keys >> 51 == 0).all()
            assert sorted(asked) == [0, 0, 1, 2, 3, 4]
            for link in links[1:]:
                link.stall(False)
            while any(shard.state != "live" for shard in table._fleet.shards):
                time.sleep(0.02)
        assert table.stats().indexes["default"].in_flight == 0


def test_a_silent_shard_beside_a_slow_one(linked: Any) -> None:
    """The draw goes on with the slow shard, whose rows of an attempt that failed are not waited for."""
    links, places = linked(2, FRAMES)
    with attach(places, path="service", timeout_s=60.0) as table:
        for number in (0, 1):
            table.writer(shard=number).extend(**rows(64, o=np.ones((64, 64, 64, 4), "u1")))
        assert table.sample(4).num_items == 4
        links[1].bytes_a_second = 1e5
        links[0].stall(True)
        batch = table.sample(32)
        assert (batch.item_keys >> 51 == 1).all() and (batch["o"] == 1).all()
        links[0].stall(False)
        links[1].bytes_a_second = None
        while any(shard.state != "live" for shard in table._fleet.shards):
            time.sleep(0.02)
        assert table.stats().indexes["default"].in_flight == 0


def test_a_change_of_all_shards_is_refused_before_the_first(linked: Any) -> None:
    links, places = linked(3, PLAIN, relive.Index(sampler=relive.Prioritized(1.0)))
    with attach(places, path="service", timeout_s=60.0) as table:
        for number in range(3):
            table.writer(shard=number).extend(**rows(4))
        links[2].stall(True)
        for change in (table.clear, lambda: table.set_priority_exponent(0.5)):
            with pytest.raises(errors.ServiceUnavailable):
                change()
        links[2].stall(False)
        while table._fleet.shards[2].state != "live":
            time.sleep(0.02)
        assert len(table) == 12 and table._fleet.calls.of_all("priority_exponent", 0) == [1.0] * 3
        table.clear()
        assert len(table) == 0


def test_a_stopped_owner_is_left_out(start: Any, shm_name: Any) -> None:
    owners = [start(), start()]
    places = [
        owner.own(number, relive.TableConfig(PLAIN, 1000, None, relive.SharedMemory(shm_name())))
        for number, owner in enumerate(owners)
    ]
    with attach(places, path="service", timeout_s=60.0) as table:
        keys = np.concatenate([table.writer(shard=number).extend(**rows(4)) for number in (0, 1)])
        stop_process(owners[1].process.pid)
        assert table.gather(keys).present.tolist() == [True] * 4 + [False] * 4
        assert table.sample(8).num_items == 8
        os.kill(owners[1].process.pid, signal.SIGCONT)
        while table._fleet.shards[1].state != "live":
            time.sleep(0.02)
        assert table.gather(keys).present.all()


# ---- mutants -------------------------------------------------------------------------------------------------------


def _changes_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_check_unfilled", lambda self, keys: None)


def _positions_of_parts(patch: pytest.MonkeyPatch) -> None:
    _changes_without_a_check(patch)
    patch.setattr(calls, "_placed", lambda error, mine: error)


def _window_of_one_draw(patch: pytest.MonkeyPatch) -> None:
    agreed = Agreement.__init__

    def forgetful(self: Any, shards: Any, exchange: Any, root_age: int) -> None:
        agreed(self, shards, exchange, root_age)
        self.root_age = 1

    patch.setattr(Agreement, "__init__", forgetful)


def _no_search_for_uses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Drawing, "_room_of", lambda self, making, at, most: 0)


def _mass_of_an_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sharing, "of", lambda self, root: root)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Make], None]]] = {
    "late columns of some shards": (_changes_without_a_check, test_a_refused_completion_completes_no_row),
    "positions of a shard's part": (_positions_of_parts, completed_meanwhile),
    "the window of one draw": (_window_of_one_draw, test_draws_that_the_window_never_lets_pass_are_refused),
    "no search for uses": (_no_search_for_uses, lambda make: test_uses_that_lie_unevenly_are_all_handed_out(make, 12)),
    "the mass of an empty order": (
        _mass_of_an_order,
        lambda make: test_a_draw_of_an_empty_order_waits_for_items(make, relive.Fifo()),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_finds_each_rule_that_is_taken_away(make: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, finds = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, errors.ReliveError, pytest.fail.Exception)):
        finds(make)
