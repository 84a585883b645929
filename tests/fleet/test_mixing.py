"""Batches of several tables as one, beside numpy: every cell where the permutation says, whatever the axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps

import relive
from relive import _core
from relive.core.request import DrawRequest
from relive.fleet.draws.mixing import empty

SIZES = (5, 0, 12, 1)


def parts_of(items: Any, columns: list[str]) -> tuple[Any, list[tuple[Any, Any, Any, float]]]:
    """A selection, and draws of several sizes from one table."""
    table = relive.Table(plain_spec(), 200, relive.Index(items), seed=3)
    with table.writer() as writer:
        write_steps(writer, 0, 90)
    selection = table.core.select(0, columns)
    parts = []
    for number, size in enumerate(SIZES):
        if size:
            arrays, keys, masses, _ = table.core.draw(DrawRequest(0, size, selection), 1.0)
            parts.append((arrays, keys, masses, 0.25 + number))
    return selection, parts


@pytest.mark.parametrize(
    "items",
    [relive.Transitions(), relive.Sequences(4, period=2), relive.Sequences(4, period=2, time_major=True)],
    ids=["rows", "windows", "time-major"],
)
def test_every_cell_goes_where_its_item_goes(items: Any) -> None:
    columns = ["observation", "action", "reward", "lane"]
    selection, parts = parts_of(items, columns)
    arrays, keys, probabilities = _core.mix_batches(selection, parts, 7, 1, 40)
    # Where each item went is told by what is of one item alone.
    plain = _core.mix_batches(None, [([], np.arange(18)[a:b], np.zeros(b - a), 1.0) for a, b in spans()], 7, 1, 40)[1]
    np.testing.assert_array_equal(np.sort(plain), np.arange(18))
    together = np.concatenate([keys for _, keys, _, _ in parts])
    np.testing.assert_array_equal(keys, together[plain])
    masses = np.concatenate([masses * share for _, _, masses, share in parts])
    np.testing.assert_array_equal(probabilities, masses[plain])
    for (name, _, _, axis, _), array, *some in zip(
        selection.outputs, arrays, *(part[0] for part in parts), strict=True
    ):
        np.testing.assert_array_equal(array, np.take(np.concatenate(some, axis), plain, axis), err_msg=name)
    again = _core.mix_batches(selection, parts, 7, 1, 40)
    assert all((one == other).all() for one, other in zip(arrays, again[0], strict=True))
    assert (_core.mix_batches(selection, parts, 7, 1, 41)[1] != keys).any()
    into = [empty(output, 18) for output in selection.outputs]  # as of shards on other hosts, without a selection
    axes = [axis for _, _, _, axis, _ in selection.outputs]
    none, *numbers = _core.mix_batches(None, parts, 7, 1, 40, list(zip(into, axes, strict=True)))
    assert none == [] and all(map(np.array_equal, [*into, *numbers], [*arrays, keys, probabilities]))


def spans() -> list[tuple[int, int]]:
    ends = np.cumsum([size for size in SIZES if size])
    return [(int(end - size), int(end)) for end, size in zip(ends, [size for size in SIZES if size], strict=True)]


def test_places_are_alike() -> None:
    """An item of any part is at any place as often."""
    counts = np.zeros((18, 18))
    parts: list[Any] = [([], np.arange(18)[a:b], np.zeros(b - a), 1.0) for a, b in spans()]
    for call in range(4_000):
        keys = _core.mix_batches(None, parts, 1, 0, call)[1]
        counts[np.arange(18), keys] += 1
    expected = 4_000 / 18
    assert ((counts - expected) ** 2 / expected).sum() < 17**2 + 5 * np.sqrt(2 * 17**2)


def test_what_no_core_gave_is_refused() -> None:
    selection, parts = parts_of(relive.Transitions(), ["observation", "action"])
    arrays, keys, masses, share = parts[0]
    wrong: list[Any] = [
        (arrays[:1], keys, masses, share),
        ([array[:-1] for array in arrays], keys, masses, share),
        ([array[::2] for array in arrays], keys[::2], masses[::2], share),
        (arrays, keys, masses[:-1], share),
        (arrays, list(keys), masses, share),
        (arrays, keys, masses),
    ]
    for part in wrong:
        with pytest.raises(ValueError, match="mix_batches"):
            _core.mix_batches(selection, [part], 0, 0, 0)
    good = [(np.empty_like(array), 0) for array in arrays]
    short, narrow, deep = (good[0][0][:-1], 0), (good[0][0], 1), (good[0][0], 2)
    frozen, strided = (good[0][0].copy(), 0), (np.empty((5, 8), np.float32)[:, ::2], 0)
    frozen[0].flags.writeable = False
    for into in (good[:1], [short, good[1]], [narrow, good[1]], [deep, good[1]], [frozen, good[1]], [strided] * 2):
        with pytest.raises(ValueError, match="mix_batches"):
            _core.mix_batches(None, parts[:1], 0, 0, 0, into)
    table = relive.Table(plain_spec(), 200, relive.Index(relive.Episodes(100, layout="ragged")))
    with pytest.raises(ValueError, match="end to end"):
        _core.mix_batches(table.core.select(0, ["observation", "offsets"]), [], 0, 0, 0)


def test_a_root_says_what_the_statistics_say() -> None:
    table = relive.Table(plain_spec(), 200, relive.Index(sampler=relive.Prioritized(1.0)))
    with table.writer() as writer:
        keys = write_steps(writer, 0, 50)
    table.update_priorities(keys[:10], np.full(10, 3.0))
    table.set_policy_version(4)
    table.sample(7)
    one = table.core.stats()["indexes"][0]
    told = [one[name] for name in ("total_mass", "num_items", "max_priority", "inserted", "sampled", "pending")]
    assert table.core.root(0) == (*told, 4)
    table.close()
    with pytest.raises(relive.errors.TableClosed):
        table.core.root(0)
