"""Ranks of a torch.distributed group (gloo, two processes and more of this machine) that draw together."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import prioritized
from processes.shm import needs_shared_memory
from processes.tools import answers, children, stop_process

import relive
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import GroupReader, RankLost, RanksDisagree, ShardOwner, attach

torch = pytest.importorskip("torch", reason="torch is not installed here")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

from torch import distributed  # noqa: E402

from relive.fleet.agreement import Agreement  # noqa: E402
from relive.fleet.holds import FleetSource  # noqa: E402
from relive.fleet.torch import TorchExchange, _Calls  # noqa: E402

pytestmark = [needs_shared_memory, pytest.mark.usefixtures("processes_start_warm")]
Names = list[str]
ROUNDS = 15 if os.environ.get("RELIVE_SOAK") else 1


@pytest.fixture
def shards(shm_name: Any) -> Iterator[Callable[..., Names]]:
    with contextlib.ExitStack() as stack:

        def make(count: int, index: Any = None) -> Names:
            names = [shm_name() for _ in range(count)]
            for number, name in enumerate(names):
                stack.enter_context(ShardOwner(number, config_of(name, index)))
            return names

        yield make


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """ranks(world, work, *arguments): a process a rank, which joins the group and sends what work(...) returns."""
    numbers = itertools.count()
    with children() as start:

        def run(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
            meeting = f"file://{tmp_path}/{work.__name__}-{next(numbers)}"
            return [start("spawn", join, rank, world, meeting, work, *arguments) for rank in range(world)]

        yield run


def join(pipe: Any, rank: int, world: int, meeting: str, work: Callable[..., Any], *arguments: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    pipe.send(work(pipe, *arguments))
    pipe.recv()


def draw_batches(pipe: Any, names: Names) -> Any:
    exchange = TorchExchange()
    with attach(names, stream=exchange.rank, exchange=exchange, root_age=2) as table:
        keys = [table.draw(25).item_keys for _ in range(10)]
        with table.batches(25, prefetch=1) as ahead:
            keys += [next(ahead).item_keys for _ in range(3)]
        return keys, table.agreement_bytes


def test_ranks_draw_slices_of_one_draw(shards: Any, ranks: Any) -> None:
    names = shards(3)
    sizes = [30, 60, 10]
    with attach(names) as table:
        for shard, size in enumerate(sizes):
            fill(table, shard, 100 * shard, size)
    told = answers(ranks(4, draw_batches, names))
    for drawn in zip(*(keys for keys, _ in told), strict=True):
        together = np.bincount(np.concatenate(drawn) >> 51, minlength=3)
        assert abs(together - np.array(sizes)).max() <= 1
    assert all(sent <= 13 * 64 for _, (sent, _) in told)


def outside(pipe: Any) -> Any:
    group = distributed.new_group([0])
    try:
        return TorchExchange(group).world
    except errors.InvalidConfig as error:
        return str(error)


def test_each_hears_all_whatever_the_lengths(ranks: Any) -> None:
    told = answers(ranks(2, gather_pairs))
    expected = [[bytes([rank]) * size for rank in range(2)] for size in (0, 3, 61)]
    expected += [[b"", bytes([1]) * 500]] + [[bytes([rank]) * size for rank in range(2)] for size in (2, 61)]
    assert told == [expected, expected]


def gather_pairs(pipe: Any) -> Any:
    exchange = TorchExchange()
    mine = [bytes([exchange.rank]) * size for size in (0, 3, 61, 500 * exchange.rank, 2, 61)]
    return [exchange.all_gather(one, 60.0) for one in mine]


def test_who_is_not_in_the_group_is_refused(ranks: Any) -> None:
    told = answers(ranks(2, outside))
    assert told[0] == 1 and "group" in told[1]


def test_without_a_group_it_is_refused() -> None:
    with pytest.raises(errors.InvalidConfig, match="init_process_group"):
        TorchExchange()


def come_late(pipe: Any) -> Any:
    exchange = TorchExchange()
    assert exchange.all_gather(b"a", 60.0) == [b"a", b"a", b"a"]
    if exchange.rank == 1:
        pipe.send("waits")
        pipe.recv()
        return [exchange.all_gather(bytes([number]), 60.0) for number in (1, 2)]
    try:
        exchange.all_gather(b"\1", 3.0)
    except errors.DeadlineExceeded as error:
        pipe.send(str(error))
    return [exchange.all_gather(bytes([number]), 60.0) for number in (9, 2)]


def test_a_rank_that_does_not_call_is_named_and_may_come_later(ranks: Any) -> None:
    group = ranks(3, come_late)
    assert group[1].answer() == "waits"
    for rank in (0, 2):
        assert re.search(r"none of rank (\d, )*1\b", group[rank].answer())
    group[1].pipe.send("come")
    told = answers(group)
    assert told == [[[b"\1"] * 3, [b"\2"] * 3]] * 3, "a retry takes up the call, with the bytes of that call"


def wait_for_the_store(pipe: Any) -> Any:
    exchange = TorchExchange()
    assert exchange.all_gather(b"a", 60.0) == [b"a", b"a"]
    pipe.send("in step")
    pipe.recv()
    if exchange.rank == 1:
        for seconds in (0.0, 1.0, 0.3):
            began_s = time.monotonic()
            with pytest.raises(errors.DeadlineExceeded) as caught:
                exchange.all_gather(b"\1", seconds)
            pipe.send((time.monotonic() - began_s - seconds, str(caught.value.has)))
        pipe.recv()
    return exchange.all_gather(b"\1", 60.0)


def test_a_store_in_a_stopped_process_holds_no_rank_up_past_its_deadline() -> None:
    """Without torchrun, rank 0 has the store. While it is stopped, no timeout of torch ends a call of the store."""
    with children() as start, contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        meeting = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        group = [start("spawn", join, rank, 2, meeting, wait_for_the_store) for rank in range(2)]
        assert [one.answer() for one in group] == ["in step"] * 2
        stop_process(group[0].process.pid)
        try:
            group[1].pipe.send("rank 0 is stopped")
            late_s, told = zip(*(group[1].answer() for _ in range(3)), strict=True)
        finally:
            os.kill(group[0].process.pid, signal.SIGCONT)
        assert max(late_s) < 2.0 and all("the process that has it is stopped" in one for one in told)
        for one in group:
            one.pipe.send("it goes on")
        assert answers(group) == [[b"\1"] * 2] * 2


def give_up(exchange: Any, mine: bytes) -> str:
    try:
        exchange.all_gather(mine, 0.3)
    except errors.DeadlineExceeded as error:
        return type(error).__name__
    return "met"


def retry_long_messages(pipe: Any) -> Any:
    """Every call is longer than any before, so that it takes two rounds; both of a process's exchanges take part."""
    exchanges = [TorchExchange(), TorchExchange()]
    told = []
    for number in range(6):
        mine = bytes([exchanges[0].rank]) * (100 + 50 * number)
        late, exchange = number % 2, exchanges[number // 2 % 2]
        if exchange.rank == late:
            assert pipe.recv() == "come"
        else:
            pipe.send(give_up(exchange, mine))
        told.append(exchange.all_gather(mine, 60.0))
    return told


def test_a_late_rank_does_not_end_the_one_that_gave_up(ranks: Any) -> None:
    group = ranks(2, retry_long_messages)
    for number in range(6):
        late = number % 2
        assert group[1 - late].answer() == "DeadlineExceeded"
        group[late].pipe.send("come")
    expected = [[bytes([rank]) * (100 + 50 * number) for rank in range(2)] for number in range(6)]
    assert answers(group) == [expected, expected]


def give_up_and_leave(pipe: Any) -> Any:
    """Rank 1 never makes the second call. It does not end before it is told. The end of a program leaves, too."""
    exchange = TorchExchange()
    exchange.all_gather(b"", 60.0)
    if exchange.rank == 1:
        return "waits"
    told = give_up(exchange, b"x")
    del exchange
    distributed.destroy_process_group()
    return told


def test_a_rank_that_gave_up_ends_although_the_other_one_never_comes(ranks: Any) -> None:
    group = ranks(2, give_up_and_leave)
    assert [one.answer() for one in group] == ["DeadlineExceeded", "waits"]
    group[0].pipe.send(None)
    group[0].process.join(30)
    assert group[0].process.exitcode == 0
    group[1].pipe.send(None)


def give_up_a_broadcast(pipe: Any) -> Any:
    exchange = TorchExchange()
    if exchange.rank == 0:
        pipe.recv()
        return None
    told = []
    for call in (lambda: exchange.broadcast(None, 8, 0, 0.3), lambda: exchange.all_gather(b"", 0.3)):
        try:
            call()
        except (errors.DeadlineExceeded, RankLost) as error:
            told.append(type(error).__name__)
    return told


def test_a_broadcast_that_was_given_up_has_no_retry(ranks: Any) -> None:
    group = ranks(2, give_up_a_broadcast)
    assert group[1].answer() == ["DeadlineExceeded", "RankLost"]
    group[0].pipe.send(None)
    group[1].pipe.send(None)


def draw_when_told(pipe: Any, names: Names) -> Any:
    """Rank 1 opens the table late, and draws late, once. Between two batches the ranks wait for each other."""
    exchange = TorchExchange()

    def until_met(call: Callable[[], Any]) -> Any:
        """The first rank retries, and says so once. The other one begins when it is told to."""
        if exchange.rank == 1:
            pipe.recv()
        tries = 0
        while True:
            try:
                return call()
            except errors.DeadlineExceeded:
                tries += 1
                if tries == 2:
                    pipe.send("waits")

    timeout_s = 0.1 if exchange.rank == 0 else 60.0  # a draw waits for other ranks for a second at least
    with until_met(lambda: attach(names, exchange=exchange, timeout_s=timeout_s)) as table:
        keys = [until_met(lambda: table.draw(4)).item_keys.tolist()]
        for _ in range(2):
            distributed.barrier()  # of the gradients of this batch
            keys.append(table.draw(4, timeout_s=60.0).item_keys.tolist())
        return keys, table.next_draw


def test_ranks_meet_again_after_a_deadline(shards: Any, ranks: Any) -> None:
    names = shards(2)
    with attach(names) as table:
        for shard in (0, 1):
            fill(table, shard, 100 * shard, 100)
    group = ranks(2, draw_when_told, names)
    for _ in range(2):
        assert group[0].answer() == "waits"
        group[1].pipe.send("come")
    (mine, my_number), (theirs, number) = answers(group)
    assert my_number == number == 3
    for one, other in zip(mine, theirs, strict=True):
        assert np.bincount(np.array(one + other) >> 51).tolist() == [4, 4]


def draw_unlike(pipe: Any, names: Names) -> Any:
    exchange = TorchExchange()
    told: list[Any] = []
    with attach(names, exchange=exchange, timeout_s=60.0) as table:
        calls: list[Callable[[], Any]] = [
            lambda: table.sample(8, index="pu"[exchange.rank]),
            lambda: table.sample(8 + exchange.rank, index="p"),
            lambda: table.number_draws(5) if exchange.rank else table.sample(8, index="p"),
        ]
        for call in calls:
            try:
                call()
            except RanksDisagree as error:
                told.append((error.rank, error.expected, error.got))
        return told, table.sample(8, index="p").num_items


def test_ranks_that_make_unlike_calls_draw_nothing(shards: Any, ranks: Any) -> None:
    names = shards(2, {"p": prioritized(), "u": relive.Index()})
    with attach(names) as table:
        for shard in (0, 1):
            fill(table, shard, 100 * shard, 100)
    told = answers(ranks(2, draw_unlike, names))
    for rank, (disagreed, num_items) in enumerate(told):
        order = slice(None, None, 1 - 2 * rank)
        pairs = [("p", "u"), (8, 9), ("a draw", "number_draws()")]
        assert disagreed == [(1 - rank, *pair[order]) for pair in pairs]
        assert num_items == 8, "each rank's slice of the draw that both made"
    with attach(names) as table:
        assert table.stats().indexes["p"].sampled == 16, "the calls that disagreed took nothing"


def break_off(pipe: Any, names: Names) -> Any:
    """The thread of rank 1 is late for the fifth draw, which no batch is handed out of. That of rank 0 begins it."""
    exchange = TorchExchange()
    num_taken, is_fifth, take = itertools.count(), threading.Event(), FleetSource.take

    def take_four(self: FleetSource) -> Any:
        if next(num_taken) >= 4:
            is_fifth.set()
            if exchange.rank == 1:
                raise errors.DeadlineExceeded("close()", "none", 0.0)
        return take(self)

    with attach(names, exchange=exchange, timeout_s=60.0) as table, pytest.MonkeyPatch.context() as patch:
        patch.setattr(FleetSource, "take", take_four)
        with table.batches(8, prefetch=1) as ahead:
            keys = [next(ahead).item_keys for _ in range(4)]
            assert is_fifth.wait(60.0)
        keys.append(table.sample(16).item_keys)
        return keys, table.next_draw


def test_ranks_break_off_their_batches_and_make_another_call(shards: Any, ranks: Any) -> None:
    names = shards(2)
    with attach(names) as table:
        for shard in (0, 1):
            fill(table, shard, 100 * shard, 100)
    (mine, my_number), (theirs, number) = answers(ranks(2, break_off, names))
    assert my_number == number
    for one, other in zip(mine, theirs, strict=True):
        assert np.bincount(np.concatenate([one, other]) >> 51).tolist() == [len(one), len(one)]


def end_early(pipe: Any) -> Any:
    exchange = TorchExchange()
    exchange.all_gather(b"", 60.0)
    if exchange.rank == 1:
        os._exit(1)
    try:
        while True:
            exchange.all_gather(b"", 30.0)
    except RankLost:
        return "lost"


def test_a_rank_that_ended_is_told(ranks: Any) -> None:
    group = ranks(2, end_early)
    assert group[0].answer() == "lost"


def attach_others(pipe: Any, names: list[Names]) -> Any:
    exchange = TorchExchange()
    try:
        attach(names[exchange.rank], exchange=exchange)
    except RanksDisagree as error:
        return error.rank


def test_ranks_with_unlike_shards_are_named(shards: Any, ranks: Any) -> None:
    assert answers(ranks(2, attach_others, [shards(2), shards(2)])) == [1, 0]


def _unlike_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "_gathered", lambda self, head, mine, s: self._exchange.all_gather(head.pack() + mine, s))


def _retries_that_post_again(patch: pytest.MonkeyPatch) -> None:
    gather = _Calls.all_gather

    def post_again(self: Any, mine: bytes, timeout_s: float) -> list[bytes]:
        self._unfinished = None
        return gather(self, mine, min(timeout_s, 5.0))  # the ranks are out of step: no call ends in time

    patch.setattr(_Calls, "all_gather", post_again)


SLOW_RULE = "a retry takes the call that is posted"  # without it a rank says nothing for a minute
RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "unlike calls are refused": _unlike_calls,
    SLOW_RULE: _retries_that_post_again,
}


def walk(pipe: Any, names: Names, plan: list[tuple[str, int]], without: str) -> Any:
    """In each step one rank is late, draws otherwise, or ends. Told: keys of each draw, errors, the draw's number."""
    with pytest.MonkeyPatch.context() as patch:
        RULES.get(without, lambda patch: None)(patch)
        return walked(pipe, names, plan)


def walked(pipe: Any, names: Names, plan: list[tuple[str, int]]) -> Any:
    exchange = TorchExchange()
    told: list[Any] = []
    with attach(names, exchange=exchange, timeout_s=60.0) as table:
        for kind, late in plan:
            mine, timeout_s = exchange.rank == late, 60.0
            if kind == "late" and mine:
                pipe.recv()
            elif kind == "late":
                timeout_s = 0.1  # one second at least
            if kind == "ends" and mine:
                os._exit(0)
            index, num_items = "u" if kind == "index" and mine else "p", 8 + (kind == "size" and mine)
            while True:
                try:
                    told.append(table.draw(num_items, timeout_s=timeout_s, index=index).item_keys.tolist())
                    distributed.barrier()  # of the gradients of this batch
                except errors.DeadlineExceeded:
                    pipe.send("waits")
                    timeout_s = 60.0
                    continue
                except (RanksDisagree, RankLost) as error:
                    told.append(type(error).__name__)
                break
        return told, table.next_draw


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_stay_in_step_whatever_one_of_them_does(shards: Any, ranks: Any, world: int) -> None:
    for _ in range(ROUNDS):
        stay_in_step(shards, ranks, world)


@pytest.mark.parametrize("rule", ["unlike calls are refused", pytest.param(SLOW_RULE, marks=pytest.mark.soak)])
def test_the_walk_of_ranks_finds_each_rule_that_is_taken_away(shards: Any, ranks: Any, rule: str) -> None:
    with pytest.raises(AssertionError):
        stay_in_step(shards, ranks, 2, rule)


def stay_in_step(shards: Any, ranks: Any, world: int, without: str = "") -> None:
    """Plays a random plan, and compares what each rank said with what the plan asks for."""
    names = shards(2, {"p": prioritized(), "u": relive.Index()})
    with attach(names) as table:
        for shard in (0, 1):
            fill(table, shard, 100 * shard, 100)
    seed = int(np.random.default_rng().integers(2**31))
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(["late", "late", "index", "size", "draws", "draws"]).tolist()
    plan = [(kind, int(rng.integers(world))) for kind in [*kinds, "ends", "draws", "draws"]]
    group = ranks(world, walk, names, plan, without)
    for kind, late in plan:
        if kind == "late":
            for rank, child in enumerate(group):
                assert rank == late or child.answer() == "waits", f"seed {seed}"
            group[late].pipe.send("come")
    last = next(late for kind, late in plan if kind == "ends")
    told = [child.answer() for rank, child in enumerate(group) if rank != last]
    assert "waits" not in told, f"seed {seed}: a rank waits that was to draw"
    expected = {"index": "RanksDisagree", "size": "RanksDisagree", "ends": "RankLost"}
    num_drawn = 0
    for step, (kind, _) in enumerate(plan):
        drawn = [steps[step] for steps, _ in told]
        if step >= len(kinds) or kind in expected:
            assert drawn == [expected.get(kind, "RankLost")] * (world - 1), f"seed {seed}, step {step}"
        else:
            num_drawn += 1
            assert all(len(set(keys)) <= 8 == len(keys) for keys in drawn), f"seed {seed}, step {step}"
    assert {number for _, number in told} == {num_drawn}, f"seed {seed}"


# ---- one rank of a group draws for it --------------------------------------------------------------------------------


def read_in_a_mesh(pipe: Any, names: Names, carries: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = TorchExchange(mesh["data"].get_group()), TorchExchange(mesh["tensor"].get_group())
    with contextlib.ExitStack() as stack:
        table = None
        if tensor.rank == 0:  # of the first tensor ranks alone, which draw slices of one draw
            table = stack.enter_context(attach(names, stream=data.rank, exchange=data))
        elif carries == "keys":
            table = stack.enter_context(attach(names, read_only=True))
        reader = GroupReader(table, tensor, carries)
        drawn = [reader.sample(20) for _ in range(5)]
        shown = [(one.item_keys.tolist(), one["observation"].tobytes(), one.weights(0.4).tobytes()) for one in drawn]
        return data.rank, tensor.rank, shown


@pytest.mark.forms(1)
@pytest.mark.parametrize("carries", ["rows", "keys"])
def test_a_mesh_of_data_and_tensor_ranks(shards: Any, ranks: Any, carries: str) -> None:
    names = shards(2)
    with attach(names) as table:
        fill(table, 0, 0, 30)
        fill(table, 1, 30, 10)
        told = {(data, tensor): shown for data, tensor, shown in answers(ranks(4, read_in_a_mesh, names, carries))}
        assert told[0, 0] == told[0, 1] and told[1, 0] == told[1, 1] and told[0, 0] != told[1, 0]
        for one, other in zip(told[0, 0], told[1, 0], strict=True):
            together = np.bincount(np.array(one[0] + other[0]) >> 51, minlength=2)
            assert together.tolist() == [30, 10]
        assert table.stats().indexes["default"].sampled == 5 * 2 * 20


def stop_calling(pipe: Any, names: Names) -> Any:
    exchange = TorchExchange()
    with attach(names) as table:
        reader = GroupReader(table if exchange.rank == 0 else None, exchange)
        reader.sample(4)
        if exchange.rank == 1:
            pipe.send("stops")
            return "stopped"
        told = []
        for _ in range(2):
            try:
                reader.sample(4, timeout_s=2.0)
            except (errors.DeadlineExceeded, RankLost) as error:
                told.append(str(error))
        return told, table.stats().indexes["default"].sampled, table.stats().indexes["default"].in_flight


def test_a_rank_that_stops_calling_is_named_and_nothing_is_counted(shards: Any, ranks: Any) -> None:
    names = shards(1)
    with attach(names) as table:
        fill(table, 0, 0, 10)
    group = ranks(3, stop_calling, names)
    assert group[1].answer() == "stops"
    (late, lost), sampled, in_flight = group[0].answer()
    assert re.search(r"none of rank (\d, )*1\b", late) and "out of step" in lost
    assert (sampled, in_flight) == (4, 0)
    assert re.search(r"none of rank (\d, )*1\b", group[2].answer()[0][0])
    assert group[1].answer() == "stopped"
    for child in group:
        child.pipe.send(None)
