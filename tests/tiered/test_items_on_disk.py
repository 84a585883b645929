"""Explicit items and groups of a table whose large columns lie mostly on the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

import relive
from relive import errors
from tiered.tools import needs_tiers, pattern

pytestmark = needs_tiers

ROW_BYTES, NOTE_BYTES = 20_000, 400
PAGE_BYTES = 20_480
ITEMS = relive.Explicit(
    {"near": relive.Window(4), "far": relive.Window(3, columns=("number", "blob"), stride=5)},
    {"score": relive.ArraySpec((), "float32")},
    max_items=60,
)


def make_table(directory: Path, index: Any, capacity: int = 240, pages: int = 40) -> relive.Table:
    spec = relive.StepSpec(
        {
            "number": relive.ArraySpec((), "int64"),
            "blob": relive.ArraySpec((ROW_BYTES,), "uint8"),
            "prompt": relive.ArraySpec((), "int64", kind="episode"),
            "note": relive.ArraySpec((NOTE_BYTES,), "uint8", kind="episode"),
        }
    )
    storage = relive.Tiered(directory, pages * (PAGE_BYTES + 512))
    return relive.Table(spec, capacity, index, storage=storage, max_lanes=4)


def block(first: int, count: int, prompt: int = 0, **ends: Any) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    note = np.repeat(pattern([prompt], NOTE_BYTES), count, axis=0)
    return {
        "number": numbers,
        "blob": pattern(numbers, ROW_BYTES),
        "prompt": np.full(count, prompt),
        "note": note,
    } | ends


def check_items(batch: Any) -> None:
    """Every byte of every window, zeros behind its rows."""
    for window, stride in (("near", 1), ("far", 5)):
        numbers, mask = np.asarray(batch[f"{window}/number"]), np.asarray(batch[f"{window}/mask"])
        first = numbers[:, :1]
        expected = np.where(mask, first + stride * np.arange(numbers.shape[1]), 0)
        np.testing.assert_array_equal(numbers, expected)
        blobs = pattern(numbers.ravel(), ROW_BYTES).reshape(*numbers.shape, ROW_BYTES) * mask[..., None]
        np.testing.assert_array_equal(batch[f"{window}/blob"], blobs)
    np.testing.assert_array_equal(batch["score"], batch["near/number"][:, 0] / 2)


COLUMNS = [f"{window}/{name}" for window in ("near", "far") for name in ("number", "blob", "mask")] + ["score"]


def create(writer: Any, keys: list[int], first: int) -> None:
    windows = {"near": (keys[first], 4 - first % 3), "far": (keys[first], 1 + first % 3)}
    writer.create_item(windows, score=first / 2, index="items")


def test_explicit_items(tmp_path: Path) -> None:
    """By key, drawn, ahead of need; while their rows go and others come; each at most twice."""
    indexes = {"steps": relive.Index(), "items": relive.Index(ITEMS, max_times_sampled=2)}
    with make_table(tmp_path, indexes) as table, table.writer() as writer:
        keys: list[int] = []
        for first in range(0, 600, 30):
            keys.extend(writer.extend(**block(first, 30)).tolist())
            for at in range(first, first + 15, 3):
                create(writer, keys, at)
            check_items(table.sample(4, COLUMNS, index="items"))
        found = table.stats().tiers
        assert found is not None and found.pages_on_disk > 10 and found.units_read > 20
        with table.batches(5, columns=COLUMNS, index="items", prefetch=3) as batches:
            for _, batch in zip(range(4), batches, strict=False):
                check_items(batch)
        left = table.num_items("items")
        assert left > 10
        for _ in range(2 * left):
            try:
                check_items(table.sample(3, COLUMNS, index="items", timeout_s=0.0))
            except (errors.DeadlineExceeded, errors.WaitsForItself):
                break
        assert table.num_items("items") <= 2
        table.check()


def test_items_that_end_while_they_are_read(tmp_path: Path) -> None:
    """Writers push rows and items out beside samplers that wait for the disk: whole, or another one."""
    indexes = {"steps": relive.Index(), "items": relive.Index(ITEMS, relive.Prioritized(1.0))}
    wrong: list[BaseException] = []
    is_over = threading.Event()
    with make_table(tmp_path, indexes) as table:

        def draw(ahead: bool) -> None:
            try:
                if ahead:
                    with table.batches(4, columns=COLUMNS, index="items", prefetch=4, timeout_s=20.0) as batches:
                        for batch in batches:
                            check_items(batch)
                            if is_over.is_set():
                                break
                while not is_over.is_set():
                    check_items(table.sample(4, COLUMNS, index="items", timeout_s=20.0))
            except BaseException as error:
                wrong.append(error)

        with table.writer() as writer:
            keys = writer.extend(**block(0, 60)).tolist()
            for at in range(0, 40, 2):
                create(writer, keys, at)
            threads = [threading.Thread(target=draw, args=(ahead,)) for ahead in (False, True)]
            for thread in threads:
                thread.start()
            for first in range(60, 1_500, 20):
                keys.extend(writer.extend(**block(first, 20)).tolist())
                for at in range(first, first + 8, 2):
                    create(writer, keys, at)
            is_over.set()
            for thread in threads:
                thread.join()
        assert not wrong
        table.check()


def test_groups(tmp_path: Path) -> None:
    """Members of other lengths, on other pages; a value of the episode that is large, too."""
    groups = relive.Episodes(6, group_by="prompt", group_size=3, max_groups=40, too_long="tail")
    with make_table(tmp_path, relive.Index(groups)) as table:
        rng = np.random.default_rng(2)
        writers = [table.writer(), table.writer()]
        for number in range(150):
            count = int(rng.integers(1, 9))
            writers[number % 2].extend(**block(100 * number, count, prompt=int(rng.integers(0, 4)), truncated=True))
        found = table.stats().tiers
        assert found is not None and found.pages_on_disk > 10
        batch = table.sample(30)
        numbers, mask = batch["number"], batch.mask
        blobs = pattern(numbers.ravel(), ROW_BYTES).reshape(*numbers.shape, ROW_BYTES) * mask[..., None]
        np.testing.assert_array_equal(batch["blob"], blobs)
        notes = pattern(batch["prompt"].ravel(), NOTE_BYTES).reshape(*batch["prompt"].shape, NOTE_BYTES)
        np.testing.assert_array_equal(batch["note"], notes)
        assert (np.diff(numbers, axis=2)[mask[..., 1:]] == 1).all()
        again = table.gather(batch.item_keys)
        assert again.present.all() and np.array_equal(again["blob"], batch["blob"])
        table.check()
