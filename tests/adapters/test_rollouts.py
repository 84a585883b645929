"""The store of rollouts: values in blocks, and the ledger of samples, fields and claims. No library is needed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes.shm import needs_shared_memory

from relive.adapters.errors import GoneValues, NotRegistered
from relive.adapters.rollouts.blocks import Blocks, _keys, _places
from relive.adapters.rollouts.entries import Description, describe, entries_of, place_of
from relive.adapters.rollouts.ledger import Ledger
from relive.config.storage import SharedMemory
from relive.errors import DeadlineExceeded, InvalidConfig

pytestmark = needs_shared_memory


@pytest.fixture
def name(shm_name: Callable[[], str]) -> str:
    return shm_name()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(str(tmp_path / "ledger"), make=True)
    made.register("train", 0, ["learn", "judge"], None)
    yield made
    made.close()


def put(ledger: Ledger, *samples: str, field: str = "tokens", **tags: int) -> None:
    groups = [sample.rpartition("_g")[0] for sample in samples]
    ledger.put("train", samples, groups, {field: ["int64 1 8,0,1"] * len(samples)}, [tags] * len(samples))


# ---- values --------------------------------------------------------------------------------------------------------


def test_values_of_any_length_come_back_in_another_handle(name: str) -> None:
    random = np.random.default_rng(0)
    with Blocks.make(name, 4000, block_bytes=64) as store, Blocks.attach(name) as other:
        for _ in range(20):  # over many pages, whose ends cut runs of keys
            values = [
                random.integers(0, 256, size, np.uint8) for size in (0, 1, 63, 64, 65, *random.integers(0, 900, 20))
            ]
            places = store.put(values)
            flat, begins = other.get(places)
            for value, begin in zip(values, begins, strict=True):
                assert (flat[begin : begin + value.size] == value).all()
        assert other.get([])[0].size == 0 and store.put([]) == []
        assert store.put([np.zeros(0, np.uint8)]) == [[0]]
    assert not Path(SharedMemory(name).path).exists()


def test_a_place_lists_each_run_of_keys() -> None:
    keys = np.array([5, 6, 7, 100, 101, 102, 200], np.int64)
    counts = np.array([2, 0, 3, 2], np.int64)
    sizes = np.array([128, 0, 190, 65], np.int64)
    places = _places(keys, sizes, counts, np.cumsum(counts))
    assert places == [[128, 5, 2], [0], [190, 7, 1, 100, 2], [65, 102, 1, 200, 1]]
    back, back_counts = _keys(places)
    assert back.tolist() == keys.tolist() and back_counts.tolist() == counts.tolist()


def test_a_value_that_was_deleted_or_dropped_is_named(name: str) -> None:
    with Blocks.make(name, 640, block_bytes=64, max_processes=2) as store:
        first, second = store.put([np.ones(100, np.uint8), np.ones(100, np.uint8)])
        assert store.delete([second]) == 2 and store.delete([second]) == 0
        with pytest.raises(GoneValues) as raised:
            store.get([first, second])
        assert (raised.value.position, raised.value.key) == (1, second[1])
        for _ in range(40):
            store.put([np.ones(64 * 40, np.uint8)])
        with pytest.raises(GoneValues, match="capacity= sets its size"):
            store.get([first])
        with pytest.raises(InvalidConfig, match="at most 640 blocks of 64 bytes"):
            store.put([np.ones(64 * 641, np.uint8)])


def test_memory_of_deleted_values_is_used_again(name: str) -> None:
    with Blocks.make(name, 4000, block_bytes=64, max_processes=2) as store:
        kept = store.put([np.full(64 * 10, 7, np.uint8)])
        for _ in range(50):
            store.delete(store.put([np.ones(64 * 400, np.uint8)]))
        flat, _ = store.get(kept)
        assert (flat == 7).all()


def test_an_entry_is_one_text() -> None:
    described = [Description("int64", (3, 2)), Description("float32", ()), Description("pickle", ())]
    places = [[48, 5, 1], [4, 6, 1], [0]]
    entries = entries_of(described, places)
    assert entries[0] == "int64 3,2 48,5,1"
    assert [describe(entry) for entry in entries] == described and [place_of(entry) for entry in entries] == places


# ---- the ledger ----------------------------------------------------------------------------------------------------


def test_each_task_claims_a_sample_once_and_waits_for_fields(ledger: Ledger) -> None:
    put(ledger, "a", "b", "c", length=3)
    put(ledger, "b", "c", field="reward")
    claim = ledger.claim("train", "learn", ["tokens", "reward"], 8, 0.0, whole=False)
    assert claim.samples == ["b", "c"] and claim.tags == [{"length": 3}] * 2
    assert ledger.claim("train", "learn", ["tokens", "reward"], 8, 0.0, whole=False).samples == []
    assert ledger.claim("train", "judge", ["tokens"], 2, 1.0).samples == ["a", "b"]
    assert not ledger.consumed("train", ["learn"])
    put(ledger, "a", field="reward")
    assert ledger.claim("train", "learn", ["reward"], 1, 1.0).samples == ["a"]
    assert ledger.consumed("train", ["learn"]) and not ledger.consumed("train", ["learn", "judge"])


def test_a_claim_takes_whole_groups(ledger: Ledger) -> None:
    ledger.register("train", 0, ["learn"], 2)
    put(ledger, "p_g0", "q_g0", "q_g1", "r_g0")
    assert ledger.claim("train", "learn", ["tokens"], 3, 0.0, whole=False).samples == ["q_g0", "q_g1"]
    put(ledger, "r_g1", "p_g1")
    assert ledger.claim("train", "learn", ["tokens"], 4, 1.0).samples == ["p_g0", "p_g1", "r_g0", "r_g1"]
    with pytest.raises(InvalidConfig, match="at least 2, the samples of a group"):
        ledger.claim("train", "learn", ["tokens"], 1, 0.0)


def test_the_last_claim_takes_the_rest_of_the_expected_samples(ledger: Ledger) -> None:
    ledger.register("train", 3, ["learn"], None)
    put(ledger, "a", "b", "c")
    assert ledger.claim("train", "learn", ["tokens"], 2, 1.0).samples == ["a", "b"]
    assert ledger.claim("train", "learn", ["tokens"], 2, 1.0).samples == ["c"]


def test_a_claim_that_waits_is_woken_within_milliseconds(ledger: Ledger) -> None:
    other = Ledger(ledger.path)
    ended: list[tuple[list[str], float]] = []

    def claim() -> None:
        ended.append((other.claim("train", "learn", ["reward"], 1, 10.0).samples, time.monotonic()))

    waits = []
    for number in range(10):
        claimant = threading.Thread(target=claim)
        claimant.start()
        time.sleep(0.02)
        put(ledger, f"s{number}", field="reward")
        began = time.monotonic()
        claimant.join()
        assert ended[-1][0] == [f"s{number}"]
        waits.append(ended[-1][1] - began)
    assert sorted(waits)[5] < 0.02, waits
    other.close()


def test_a_claim_of_too_few_samples_ends_at_its_deadline_and_takes_none(ledger: Ledger) -> None:
    put(ledger, "a")
    with pytest.raises(DeadlineExceeded, match="needs 2 samples with tokens, has 1"):
        ledger.claim("train", "learn", ["tokens"], 2, 0.05)
    assert ledger.claim("train", "learn", ["tokens"], 1, 0.05).samples == ["a"]


def test_samples_of_old_weights_are_left_out(ledger: Ledger) -> None:
    put(ledger, "old", weight_version=1)
    put(ledger, "new", weight_version=3)
    put(ledger, "untold")
    ledger.set_version(4)
    take = ledger.claim("train", "learn", ["tokens"], 8, 0.0, max_staleness=1, whole=False)
    assert take.samples == ["new", "untold"]
    assert ledger.claim("train", "learn", ["tokens"], 8, 0.0, max_staleness=3, whole=False).samples == ["old"]


def test_clear_returns_all_entries_and_frees_the_names(ledger: Ledger) -> None:
    put(ledger, "a", "b")
    put(ledger, "a", field="reward")
    assert len(ledger.clear("train", ["a", "unknown"])) == 2
    assert ledger.entries("train", ["a", "b"], ["tokens"]) == [[None, "int64 1 8,0,1"]]
    assert ledger.claim("train", "learn", ["tokens"], 8, 0.0, whole=False).samples == ["b"]
    put(ledger, "a")
    assert ledger.claim("train", "learn", ["tokens"], 8, 0.0, whole=False).samples == ["a"]
    assert len(ledger.clear("train", None)) == 2 and not ledger.consumed("train", ["learn"])


def test_names_that_were_not_registered_are_refused(ledger: Ledger) -> None:
    with pytest.raises(NotRegistered, match="partition 'val' is not registered: expected one of train"):
        ledger.put("val", ["a"], ["a"], {}, None)
    with pytest.raises(NotRegistered, match="task 'train' is not registered: expected one of judge, learn"):
        ledger.claim("train", "train", ["tokens"], 1, 0.0)


def claim_until_killed(path: str) -> None:
    ledger = Ledger(path)
    while True:
        ledger.claim("train", "learn", ["tokens"], 1, 0.0, whole=False)
        ledger.put("train", ["mine"], ["mine"], {"tokens": ["int64 1 8,0,1"]}, None)


def test_a_killed_process_leaves_a_whole_ledger(ledger: Ledger) -> None:
    process = multiprocessing.get_context("spawn").Process(target=claim_until_killed, args=(ledger.path,), daemon=True)
    process.start()
    while not ledger.entries("train", ["mine"], ["tokens"])[0][0]:
        time.sleep(0.005)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    put(ledger, "a")
    assert len(ledger.clear("train", None)) == 2
    assert ledger._database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
