"""Every kind of item that kernels read: each column of each item is the core's, in a table where no two rows agree.

A row differs from its neighbours in every column: state, action, reward, discount, start value, policy version. A
kernel that takes the row, page, leaf or step next to the right one therefore fails the test of every kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relive
from gpu.tools import DEVICE, DeviceReader, all_columns, assert_same, torch
from relive.config.items import ITEMS
from relive.errors import InvalidConfig

PAGE_LEN = 8


@pytest.fixture(autouse=True)
def without_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """No writer changes rows during a call, so kernels read every item at once. The core must not read for them."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("kernels left items to the core")

    monkeypatch.setattr("relive.gpu.gather.ROUNDS", 1)
    monkeypatch.setattr("relive.gpu.gather.DeviceGather._read_by_core", refuse)


LENGTHS = ((19, 2, 12), (9, 17, 6))  # steps of the episodes of each lane
STACK = {"observation": 4, "frame": 3}
WHOLE = {"gamma": 0.97, "bootstrap": 1}
WINDOW = {"burn_in": 3, "bootstrap": 1, "period": 4, "gamma": 0.9}

TRANSITIONS = {
    "one step": relive.Transitions(),
    "n-step": relive.Transitions(n_step=5, gamma=0.97),
    "stack repeat": relive.Transitions(stack=STACK),
    "stack zeros": relive.Transitions(n_step=11, gamma=0.9, stack=STACK, stack_pad="zeros"),
}
SEQUENCES = {
    "length": relive.Sequences(6),
    "burn-in": relive.Sequences(6, burn_in=10, period=3),
    "bootstrap": relive.Sequences(6, bootstrap=2),
    "pad": relive.Sequences(7, **WINDOW),
    "shift": relive.Sequences(7, at_end="shift", **WINDOW),
    "drop": relive.Sequences(7, at_end="drop", **WINDOW),
    "cross": relive.Sequences(7, at_end="cross", **WINDOW),
    "left": relive.Sequences(7, pad="left", **WINDOW),
    "major": relive.Sequences(7, time_major=True, stack=STACK, stack_pad="zeros", **WINDOW),
    "cross left major": relive.Sequences(7, at_end="cross", pad="left", time_major=True, stack=STACK, **WINDOW),
    "sequence stack": relive.Sequences(7, stack=STACK, **WINDOW),
}
EPISODES = {
    "episodes": relive.Episodes(19, **WHOLE),
    "episodes head": relive.Episodes(11, too_long="head", **WHOLE),
    "episodes tail": relive.Episodes(11, too_long="tail", **WHOLE),
    "episodes random": relive.Episodes(11, too_long="random", **WHOLE),
    "episodes left": relive.Episodes(19, pad="left", **WHOLE),
    "episodes major": relive.Episodes(19, time_major=True, stack=STACK, **WHOLE),
    "ragged": relive.Episodes(19, layout="ragged", stack=STACK, **WHOLE),
    "ragged head": relive.Episodes(11, too_long="head", layout="ragged", **WHOLE),
    "ragged tail": relive.Episodes(11, too_long="tail", layout="ragged", **WHOLE),
    "ragged random": relive.Episodes(11, too_long="random", layout="ragged", **WHOLE),
}
KINDS: dict[str, Any] = {**TRANSITIONS, **SEQUENCES, **EPISODES}
STATELESS = ("n-step", "pad", "shift", "cross", "episodes", "ragged")
STATES = {
    "observation": relive.ArraySpec((3,), "float32", kind="state"),
    "frame": relive.ArraySpec((20, 20), "uint8", kind="state"),
}


def spec_of(has_state: bool, late: bool = False) -> relive.StepSpec:
    """Rows of all widths that kernels move at a time, and columns of all kinds."""
    return relive.StepSpec(
        {
            **(STATES if has_state else {}),
            "action": relive.ArraySpec((), "int64"),
            "odd": relive.ArraySpec((5,), "uint8"),
            "logits": relive.ArraySpec((70,), "float32"),
            "reward": relive.ArraySpec((), "float32", late=late),
            "small": relive.ArraySpec((2,), "float32", kind="start"),
            "core": relive.ArraySpec((50,), "float64", kind="start"),
            "task": relive.ArraySpec((), "int64", kind="episode"),
        }
    )


def rows_of(number: int, has_state: bool, late: bool = False) -> dict[str, Any]:
    """Step `number`, which says in each of its cells which step it is."""
    values: dict[str, Any] = {
        "action": number,
        "odd": np.full(5, number % 251, np.uint8),
        "logits": np.full(70, number, np.float32),
        "small": np.full(2, number, np.float32),
        "core": np.full(50, number, np.float64),
        "task": number // 100,
        "discount": 1.0 - number % 97 / 128,
    }
    if not late:
        values["reward"] = number / 8
    return {**values, **(states_of(number) if has_state else {})}


def states_of(number: int, prefix: str = "") -> dict[str, Any]:
    observation = np.array([number, number + 0.25, number + 0.5], np.float32)
    return {f"{prefix}observation": observation, f"{prefix}frame": np.full((20, 20), number % 251, np.uint8)}


def filled(index: Any, has_state: bool = True, late: bool = False) -> tuple[relive.Table, np.ndarray]:
    """Two lanes that write in turn, so that pages of one lane do not lie side by side.

    The last episode of one lane stays open. That of the other is cut off with its lane.
    """
    table = relive.Table(spec_of(has_state, late), 640, index, max_lanes=4, seed=11)
    assert table._core.geometry["page_len"] == PAGE_LEN
    keys: list[int] = []
    writers = [table.writer(), table.writer()]
    steps = [_steps_of(lane, lengths) for lane, lengths in enumerate(LENGTHS)]
    while any(steps):
        for writer, mine in zip(writers, steps, strict=True):
            for number, ends in [mine.pop(0) for _ in range(min(5, len(mine)))]:
                table.set_policy_version(len(keys))
                after = states_of(number + 1, "next_") if has_state and ends else {}
                is_cut = (
                    has_state and "truncated" in ends
                )  # a later call ends the episode: a tail, and no bit in the row
                keys.append(int(writer.append(**rows_of(number, has_state, late), **after, **({} if is_cut else ends))))
                if is_cut:
                    writer.end_episode(**ends)
    writers[1].close()
    return table, np.asarray(keys, np.int64)


def _steps_of(lane: int, lengths: tuple[int, ...]) -> list[tuple[int, dict[str, bool]]]:
    steps: list[tuple[int, dict[str, bool]]] = []
    for number, length in enumerate(lengths):
        first = 1000 * (lane + 1) + 100 * number
        end = {"terminated": True} if number % 2 == 0 else {"truncated": True}
        steps += [(first + step, end if step == length - 1 else {}) for step in range(length)]
    return steps + [(1000 * (lane + 1) + 900 + step, {}) for step in range(4)]


def columns_of(table: relive.Table, items: Any) -> list[str]:
    return [*all_columns(table), *(("mask", "loss_mask") if items.has_time else ())]


CASES = [pytest.param(name, True, id=name, marks=[pytest.mark.thorough] * (at % 2)) for at, name in enumerate(KINDS)]
CASES += [
    pytest.param(name, False, id=f"{name} without states", marks=[pytest.mark.thorough] * (at % 2))
    for at, name in enumerate(STATELESS)
]


@pytest.mark.forms(6)
@pytest.mark.parametrize(("name", "has_state"), CASES)
def test_items_of_each_kind_are_gathered_as_the_core_gathers_them(name: str, has_state: bool) -> None:
    items = KINDS[name] if has_state else replace(KINDS[name], stack={})
    table, keys = filled(relive.Index(items), has_state)
    with table, DeviceReader(table, DEVICE) as reader:
        columns = columns_of(table, items)
        core, device = table.gather(keys, columns), reader.gather(keys, columns)
        assert device.present.cpu().numpy().tolist() == core.present.tolist() and core.present.sum() >= 5
        assert_same(core, device)


# One of each walk, layout and order of axes: the rest of a sample is that of a gather.
SAMPLED = ("one step", "stack zeros", "shift", "cross left major", "episodes tail", "ragged head")


@pytest.mark.forms(3)
@pytest.mark.parametrize("name", SAMPLED)
def test_items_of_each_kind_are_sampled_as_the_core_samples_them(name: str) -> None:
    items = KINDS[name]
    table, _ = filled(relive.Index(items, relive.Prioritized()))
    with table, DeviceReader(table, DEVICE, stream=0) as reader:
        table.update_priorities(
            reader.draw(64, timeout_s=0.0).item_keys.cpu().numpy(), np.linspace(0.1, 3.0, 64, dtype=np.float32)
        )
        columns = columns_of(table, items)
        table.draw(1)  # the call of the draw above
        core, device = table.sample(24, columns), reader.sample(24, columns, timeout_s=0.0)
        np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
        np.testing.assert_array_equal(device.probabilities.cpu().numpy(), core.probabilities)
        assert_same(core, device)


def test_the_kinds_are_those_of_the_page() -> None:
    """A class of items or a choice of an option that is added later must be added here."""
    assert {type(items) for items in KINDS.values()} == set(ITEMS)
    windows, episodes = SEQUENCES.values(), EPISODES.values()
    assert {items.at_end for items in windows} == {"pad", "shift", "drop", "cross"}
    assert {items.pad for items in windows} == {items.pad for items in episodes} == {"right", "left"}
    assert {(items.layout, items.too_long) for items in episodes} == {
        (layout, choice) for layout in ("padded", "ragged") for choice in ("refuse", "head", "tail", "random")
    }
    assert {items.stack_pad for items in KINDS.values() if items.stack} == {"repeat", "zeros"}


@pytest.mark.parametrize(("items", "area"), [(relive.Transitions(), "large"), (relive.Sequences(6), "cell")])
def test_start_values_are_read_from_rows_and_from_cells(items: Any, area: str) -> None:
    """The value of each item is that of the first row of its window, wherever the table keeps it."""
    table, keys = filled(relive.Index(items))
    with table, DeviceReader(table, DEVICE) as reader:
        areas = {column["name"]: column["area"] for column in table._core.layout}
        assert (areas["core"], areas["small"]) == (area, "record")
        batch = reader.gather(keys, ["core", "small"])
        present = batch.present.cpu().numpy()
        action = table.gather(keys, ["action"])["action"][present]
        first = action[:, 0] if items.has_time else action
        assert (batch["core"].cpu().numpy()[present] == first[:, None]).all() and len(first) >= 5
        assert (batch["small"].cpu().numpy()[present] == first[:, None]).all()


@pytest.mark.forms(1)
@pytest.mark.parametrize("items", [relive.Transitions(n_step=2), relive.Sequences(4, at_end="shift")])
def test_items_that_wait_for_a_late_column_are_not_there(items: Any) -> None:
    """An item enters the index when all its steps are complete. Its late values are read like all others."""
    table, keys = filled(relive.Index(items), late=True)
    with table, DeviceReader(table, DEVICE, stream=0) as reader:
        columns = columns_of(table, items)
        assert not reader.gather(keys, columns).present.any()
        done = keys[: len(keys) // 2]
        table.complete(done, reward=np.arange(len(done), dtype=np.float32))
        core, device = table.gather(keys, columns), reader.gather(keys, columns)
        assert device.present.cpu().numpy().tolist() == core.present.tolist()
        assert 5 <= core.present.sum() < len(keys)
        assert_same(core, device)
        core, device = table.sample(16, columns), reader.sample(16, columns, timeout_s=0.0)
        np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
        assert_same(core, device)


@pytest.mark.forms(1)
@pytest.mark.parametrize("burn_in", [0, 5])
def test_windows_that_cross_stop_where_another_lane_begins(burn_in: int) -> None:
    """Short lanes share a page. A window that crosses ends of episodes does not go on into the next lane."""
    items = relive.Sequences(6, burn_in=burn_in, period=1, at_end="cross")
    with relive.Table(spec_of(False), 640, relive.Index(items), max_lanes=4) as table:
        keys: list[int] = []
        for lane in range(9):
            with table.writer() as writer:
                for step in range(lane % 3 + 3):
                    ends = {"terminated": True} if step in (1, lane % 3 + 2) else {}
                    keys.append(int(writer.append(**rows_of(100 * lane + step, False), **ends)))
        slots = np.asarray(keys) & (1 << table._core.geometry["slot_bits"]) - 1
        with DeviceReader(table, DEVICE) as reader:
            columns = columns_of(table, items)
            core, device = table.gather(keys, columns), reader.gather(keys, columns)
            assert core.present.all() and len(np.unique(slots // PAGE_LEN)) < 9, "lanes share pages"
            assert_same(core, device)


def test_lanes_and_steps_are_told_apart_by_name() -> None:
    """The comparisons above need this: no two rows of the table agree in a column that is copied."""
    table, keys = filled(relive.Index())
    with table, DeviceReader(table, DEVICE) as reader:
        batch = reader.gather(keys, ["action", "observation", "lane", "policy_version", "odd"])
        there = batch.present
        assert there.sum() == len(keys) - 2, "the newest step of each lane has no state after it"
        for name in ("action", "observation", "policy_version"):
            assert len(torch.unique(batch[name][there], dim=0)) == len(keys) - 2
        assert len(torch.unique(batch["lane"][there])) == 2
        odd = batch["odd"][there]
        assert (odd[1:] != odd[:-1]).all()


@pytest.mark.parametrize(
    "items",
    [relive.Explicit(2), relive.Episodes(30, group_by="task", group_size=2, max_groups=4)],
    ids=["explicit", "groups"],
)
def test_items_whose_leaves_are_no_steps_are_refused_by_name(items: Any) -> None:
    with relive.Table(spec_of(True), 640, {"others": relive.Index(items)}, max_lanes=4) as table:
        with DeviceReader(table, DEVICE) as reader:
            for call in (reader.draw, reader.sample, lambda count: reader.gather(np.arange(count))):
                with pytest.raises(InvalidConfig, match="'others'") as caught:
                    call(2)
                assert type(items).__name__ in str(caught.value)
