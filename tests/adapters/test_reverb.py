"""Reverb's names on relive's tables: the cases of conformance in dm-reverb's words, run on the adapter.

conformance/reverb_system.py is a program for dm-reverb. Here `import reverb` gives the adapter. The expected results
are those that dm-reverb gives (`make conformance`). TensorFlow is not needed: it only describes signatures there.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relive.adapters.reverb as reverb
from conformance.cases import by_name, topic_of
from conformance.verdicts import MET, run_case
from relive import errors
from relive.adapters import trees
from relive.adapters.errors import NotOffered

TOPICS = topic_of()
LEFT_OUT = {
    "patterns": "the adapter has no StructuredWriter: relive.PatternWriter makes items by patterns",
    "resetting and saving": "the adapter has no checkpoints: a table's own save() has them",
}
# Cases in which the adapter gives another result than dm-reverb, and why.
DIFFERS = {
    "max heap orders negative priorities, too": "priorities are >= 0",
    "a negative priority of a new item": "a bad priority is refused by the call, and not by the stream behind it",
    "a priority is a double": "priorities are float32",
    "an item of priority zero at exponent 0": "0 ** 0 is 1, so exponent 0 draws all items alike",
    "a negative exponent": "an exponent is >= 0",
    "a slice from the front that takes in the newest step is refused": "slices are Python's",
}
BY_CHANCE = {"an update with one bad priority among good ones": "an update with a bad priority changes nothing"}
NAMES = [name for name in by_name() if TOPICS[name] not in LEFT_OUT]


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    shape: Any
    dtype: Any


@pytest.fixture(scope="module")
def reverb_system() -> Iterator[Any]:
    """The system of dm-reverb's words, on the adapter."""
    tensorflow: Any = types.ModuleType("tensorflow")
    tensorflow.TensorSpec, tensorflow.string = TensorSpec, np.dtype(object)
    tree: Any = types.ModuleType("tree")
    tree.map_structure = trees.mapped
    stand_ins = {"reverb": reverb, "tensorflow": tensorflow, "tree": tree}
    stand_ins["reverb.structured_writer"] = types.ModuleType("reverb.structured_writer")
    before = {name: sys.modules.get(name) for name in stand_ins}
    ours = ("conformance.reverb_system", "conformance.reverb_tables")
    sys.modules.update(stand_ins)
    reverb.structured_writer = stand_ins["reverb.structured_writer"]  # type: ignore[attr-defined]
    try:
        from conformance.reverb_system import ReverbSystem

        yield ReverbSystem
    finally:
        del reverb.structured_writer  # type: ignore[attr-defined]
        for name in ours:
            sys.modules.pop(name, None)
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name)
            else:
                sys.modules[name] = module


@pytest.mark.parametrize("name", NAMES)
def test_a_case_gives_what_dm_reverb_gives(name: str, reverb_system: Any) -> None:
    if name in BY_CHANCE:
        pytest.skip(BY_CHANCE[name])
    outcome = run_case(by_name()[name], "reverb", reverb_system())
    if name in DIFFERS:
        assert outcome.verdict != MET, f"no difference any more: {DIFFERS[name]}"
        pytest.skip(DIFFERS[name])
    assert outcome.verdict == MET, outcome.detail


def table_of(**options: Any) -> reverb.Table:
    given: dict[str, Any] = {"name": "replay", "max_size": 100, "rate_limiter": reverb.rate_limiters.MinSize(1)}
    given.update({"sampler": reverb.selectors.Uniform(), "remover": reverb.selectors.Fifo()} | options)
    return reverb.Table(**given)


def test_a_documented_program_runs() -> None:
    """Overlapping trajectories, priorities, and a dataset of batches."""
    server = reverb.Server([table_of(signature={"a": TensorSpec((3,), np.int64), "o": TensorSpec((3, 2), np.float32)})])
    client = server.localhost_client()
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for step in range(5):
            writer.append({"a": np.int64(step), "o": np.full(2, step, np.float32)})
            if step >= 2:
                history = writer.history
                writer.create_item("replay", 1.5, {"a": history["a"][-3:], "o": history["o"][-3:]})
    assert client.server_info()["replay"].current_size == 3
    drawn = next(client.sample("replay", unpack_as_table_signature=True, emit_timesteps=False))
    np.testing.assert_array_equal(drawn.data["o"][:, 0], drawn.data["a"])
    assert drawn.info.table_size == 3 and drawn.info.priority == 1.5 and drawn.info.times_sampled == 1
    steps = next(client.sample("replay", 1, unpack_as_table_signature=True))
    assert [int(one.data["a"]) for one in steps] == list(range(int(steps[0].data["a"]), int(steps[0].data["a"]) + 3))
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "replay").batch(16)
    batch = next(iter(dataset))
    assert batch.data["o"].shape == (16, 3, 2) and batch.info.key.shape == (16,)
    client.mutate_priorities("replay", updates={drawn.info.key: 3.0}, deletes=[int(batch.info.key[0])])
    assert len(list(client.sample("replay", 5, emit_timesteps=False))) == 5
    server.stop()
    with pytest.raises(NotOffered, match="relive.connect"):
        reverb.Client(client.server_address)


def test_items_of_other_shapes_stay_items() -> None:
    server = reverb.Server([table_of(max_size=4, sampler=reverb.selectors.Fifo(), max_times_sampled=1)])
    client = server.localhost_client()
    for length in (2, 3, 2, 5, 1):
        client.insert(np.arange(length), {"replay": 1.0})
    found = [len(one.data[0]) for one in client.sample("replay", 4, emit_timesteps=False)]
    assert found == [3, 2, 5, 1]
    server.stop()


def test_a_queue_moves_items_between_threads() -> None:
    server = reverb.Server([reverb.Table.queue("queue", 3)])
    client = server.localhost_client()

    def write() -> None:
        for value in range(200):
            client.insert(np.int64(value), {"queue": 1.0})

    thread = threading.Thread(target=write)
    thread.start()
    found = [int(one.data[0]) for one in client.sample("queue", 200, emit_timesteps=False)]
    thread.join()
    assert found == list(range(200))
    with client.trajectory_writer(1) as writer:
        for value in range(5):
            writer.append(np.int64(value))
            writer.create_item("queue", 1.0, writer.history[-1])
        with pytest.raises(reverb.errors.DeadlineExceededError):
            writer.flush(timeout_ms=50)
        assert [int(one.data[0]) for one in client.sample("queue", 5, emit_timesteps=False)] == list(range(5))
    server.stop()


def test_wrong_names_and_data_are_refused() -> None:
    server = reverb.Server([table_of(signature=TensorSpec((), np.int64))])
    client = server.localhost_client()
    with pytest.raises(reverb.errors.TableNotFound, match="'replay'"):
        client.insert(np.int64(1), {"other": 1.0})
    with pytest.raises(reverb.errors.WrongData, match="int64"):
        client.insert(np.float32(1), {"replay": 1.0})
    with pytest.raises(reverb.errors.WrongData, match="one table at least"):
        client.insert(np.int64(1), {})
    with pytest.raises(reverb.errors.WrongData, match="finite"):
        client.insert(np.int64(1), {"replay": float("nan")})
    hides = np.ma.array(np.int64(1), mask=True)
    with pytest.raises(errors.DtypeMismatch, match="hides 1 of 1"):
        client.insert(hides, {"replay": 1.0})
    with client.trajectory_writer(num_keep_alive_refs=1) as writer, pytest.raises(errors.DtypeMismatch):
        writer.append({"a": hides})
    with pytest.raises(errors.DtypeMismatch, match="leaf 0"):
        server.table("replay").insert([hides], 1.0, None)
    assert client.server_info()["replay"].current_size == 0
    with pytest.raises(NotOffered, match="save"):
        client.checkpoint()
    with pytest.raises(reverb.errors.WrongData, match="port"):
        reverb.Server([table_of()], port=server.port)
    server.stop()
