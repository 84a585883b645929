"""A shard whose owner is another process, read by mapping it, and by the service as if it were on another host."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import trajectories

USES_RAY = False
TWO = "two shards by service"
PATHS = {"mapped": "mapped", "service": "by service"}
if importlib.util.find_spec("nixl_cu12") is not None:
    PATHS["nixl"] = "by NIXL"
    os.environ.setdefault("UCX_TLS", "sm,tcp,self")  # there is no network card here


def own(name: str, load: str, number: str) -> None:
    """Owns and serves a full shard until standard input ends."""
    import relive
    from relive.fleet import ShardOwner
    from relive.service import Door

    length, floats, num_steps, _ = trajectories.LOADS[load]
    spec = relive.StepSpec({"values": relive.ArraySpec((floats,), "float32")})
    whole = relive.Episodes(length) if load == "episodes" else relive.Sequences(length, period=length)
    index = relive.Index(relive.Transitions() if length == 1 else whole)
    config = relive.TableConfig(spec, num_steps, index, relive.SharedMemory(name), max_lanes=4)
    with ShardOwner(int(number), config) as owner:
        values = trajectories.steps(load).reshape(-1, trajectories.EPISODE, floats)
        with owner.table.writer() as writer:
            for episode in values:
                writer.extend(values=episode, truncated=True)
        print(owner.serve(f"grpc://{trajectories.OTHER_NODE}:0", door=Door(insecure=True, offers=True)), flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def open_nodes(load: str) -> Iterator[dict[str, tuple[int, Callable[[], Any]]]]:
    """{operation: (batch, call)}."""
    from relive.fleet import attach

    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(_owner(load, number)) for number in (0, 1)]
        calls: dict[str, tuple[int, Callable[[], Any]]] = {}
        for path, told in PATHS.items():
            table = stack.enter_context(attach(addresses[:1], path=path))
            assert table.stats().shards[0].path == path
            for batch in trajectories.LOADS[load].batches:
                calls |= _calls(stack, table, batch, told)
                if path == "mapped":
                    calls |= _split(table, batch)
        both = stack.enter_context(attach(addresses, path="service"))
        for batch in trajectories.LOADS[load].batches:
            calls |= _calls(stack, both, batch, TWO)
        if load == "transitions":
            calls |= stack.enter_context(_exchange())
        yield calls


@contextlib.contextmanager
def _owner(load: str, number: int) -> Iterator[str]:
    """The address of a shard, which a process owns."""
    name = f"benchmark-nodes-{os.getpid()}-{number}"
    command = [sys.executable, "-m", "benchmarks.contestants.nodes_relive", name, load, str(number)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin is not None and owner.stdout is not None
    try:
        yield owner.stdout.readline().strip()
    finally:
        owner.stdin.close()
        owner.wait(30)


def _calls(stack: Any, table: Any, batch: int, told: str) -> dict[str, tuple[int, Callable[[], Any]]]:
    asked = {"columns": ["values"]}
    one = {f"{told}, {batch}": (batch, lambda: table.sample(batch, **asked)["values"])}
    if told == "by NIXL":  # whose batches of many small rows take longer than one that is brought ahead may
        return one
    ahead = stack.enter_context(table.batches(batch, prefetch=trajectories.AHEAD, **asked))
    return one | {f"{told}, ahead, {batch}": (batch, lambda: next(ahead)["values"])}


def _split(table: Any, batch: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    drawn = itertools.cycle([table.draw(batch) for _ in range(32)])  # of one alone the rows would be in the cache
    return {
        f"compute, {batch}": (batch, lambda: table.draw(batch)),
        f"memory, {batch}": (batch, lambda: table.gather(next(drawn), columns=["values"])),
    }


@contextlib.contextmanager
def _exchange() -> Iterator[dict[str, tuple[int, Callable[[], Any]]]]:
    """The call in which two ranks tell each other the root of one shard each."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        command = [sys.executable, "-m", "benchmarks.contestants.nodes_relive", "rank", meeting]
        other = subprocess.Popen(command)
        try:
            exchange = _joined(meeting, 0)
            yield {"exchange of roots, two ranks": (0, lambda: exchange.all_gather(bytes(57), 60.0))}
        finally:
            other.kill()
            other.wait(30)


def _joined(meeting: str, rank: int) -> Any:
    from torch import distributed

    from relive.fleet.torch import TorchExchange

    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    return TorchExchange()


def exchange_on(meeting: str) -> None:
    """The other rank."""
    exchange = _joined(meeting, 1)
    while True:
        exchange.all_gather(bytes(57), 3600.0)


if __name__ == "__main__":
    exchange_on(sys.argv[2]) if sys.argv[1] == "rank" else own(*sys.argv[1:])
