"""Every sampler: kernels draw the items that the core draws, or refuse the sampler by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from gpu.tools import DEVICE, DeviceReader, all_columns, assert_same, numbered_rows, numbered_spec
from relive.config.samplers import SAMPLERS
from relive.errors import InvalidConfig

NUM_STEPS = 300
DRAWN = {
    "uniform": relive.Index(sampler=relive.Uniform()),
    "prioritized": relive.Index(sampler=relive.Prioritized(priority_exponent=0.7)),
    "given": relive.Index(relive.Transitions(n_step=3), relive.Prioritized(initial="given")),
    "last": relive.Index(sampler=relive.Fresh(last=20)),
    "last sequences": relive.Index(relive.Sequences(4, period=2), relive.Fresh(last=20)),
    "where": relive.Index(sampler=relive.Prioritized(), where="reward > 250 and reward < 290"),
    "most": relive.Index(sampler=relive.Uniform(), max_items=40),
    "stale": relive.Index(sampler=relive.Uniform(), max_staleness=1),
}
GOALS = {
    "goal": relive.ArraySpec((2,), "float32"),
    "achieved": relive.ArraySpec((2,), "float32", kind="state"),
    "task": relive.ArraySpec((), "int64", kind="episode"),
    "reward": relive.ArraySpec((), "float32"),
}
REFUSED: dict[str, tuple[relive.Index, str]] = {
    "fifo": (relive.Index(sampler=relive.Fifo()), "Fifo"),
    "lifo": (relive.Index(sampler=relive.Lifo()), "Lifo"),
    "max priority": (relive.Index(sampler=relive.MaxPriority()), "MaxPriority"),
    "min priority": (relive.Index(sampler=relive.MinPriority()), "MinPriority"),
    "shuffle": (relive.Index(sampler=relive.Shuffle()), "Shuffle"),
    "ranks": (relive.Index(sampler=relive.RankBased()), "RankBased"),
    "best": (relive.Index(sampler=relive.TopK(5)), "TopK"),
    "newest": (relive.Index(sampler=relive.Fresh()), "Fresh"),
    "fading": (relive.Index(sampler=relive.Fresh(decay=0.5)), "Fresh"),
    "distinct": (relive.Index(sampler=relive.Prioritized(), replacement=False), "replacement"),
}
GROUPS = relive.Episodes(8, group_by="task", group_size=2, max_groups=4)
ALWAYS_REFUSED = {
    "hindsight": (relive.Index(sampler=relive.Hindsight("goal", "achieved", max_length=8)), "Hindsight"),
    "prompts": (relive.Index(GROUPS, relive.PromptGroups()), "group_by"),
    "newest prompts": (relive.Index(GROUPS, relive.PromptGroups("recency")), ""),
}


def drawn_table() -> relive.Table:
    """Eight indexes over the same steps, in small pages, some of them reused; every item has a priority of its own."""
    table = relive.Table(numbered_spec(), 256, DRAWN, max_lanes=4, seed=11)
    rng = np.random.default_rng(2)
    with table.writer() as writer:
        for number in range(3):
            table.set_policy_version(number)
            keys = writer.extend(**numbered_rows(100 * number, 100), truncated=True)
            for name in ("prioritized", "given", "where"):
                table.update_priorities(keys, rng.gamma(0.4, size=100).astype(np.float32), index=name)
    return table


@pytest.mark.forms(4)
@pytest.mark.parametrize("name", DRAWN)
def test_each_sampler_draws_what_the_core_draws(name: str) -> None:
    with drawn_table() as table, DeviceReader(table, DEVICE, stream=0) as reader:
        for size in (1, 64):
            core, device = table.draw(size, index=name), reader.draw(size, 0.0, index=name)
            np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
            np.testing.assert_array_equal(device.probabilities.cpu().numpy(), core.probabilities)
            assert device.num_live_items == core.num_live_items
        columns = all_columns(table)
        core, device = table.sample(32, columns, index=name), reader.sample(32, columns, 0.0, index=name)
        np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
        np.testing.assert_array_equal(device.probabilities.cpu().numpy(), core.probabilities)
        assert_same(core, device)


def test_only_items_of_the_index_are_there() -> None:
    """By key: an item that another index has, and that this index dropped or never took, is not present."""
    with drawn_table() as table, DeviceReader(table, DEVICE) as reader:
        keys = np.unique(reader.draw(2000, index="uniform").item_keys.cpu().numpy())
        for name, most in {"where": 39, "most": 40, "stale": 200}.items():
            core, device = table.gather(keys, index=name), reader.gather(keys, index=name)
            assert device.present.cpu().numpy().tolist() == core.present.tolist()
            assert 0 < core.present.sum() <= most < len(keys)
            assert_same(core, device)


@pytest.mark.forms(4)
@pytest.mark.parametrize("name", REFUSED)
def test_a_sampler_that_does_not_draw_by_mass_is_refused_by_name(name: str) -> None:
    """The way out that the sentence names works: the core draws, kernels gather."""
    index, named = REFUSED[name]
    with relive.Table(numbered_spec(), 512, {"others": index}, max_lanes=4) as table, table.writer() as writer:
        writer.extend(**numbered_rows(0, 40), truncated=True)
        with DeviceReader(table, DEVICE) as reader:
            for call in (reader.draw, reader.sample):
                with pytest.raises(InvalidConfig, match="index 'others'") as caught:
                    call(4)
                assert named in str(caught.value) and "Table.draw" in str(caught.value)
            keys = table.draw(4).item_keys
            core, device = table.gather(keys), reader.gather(keys)
            assert device.present.all()
            assert_same(core, device)


@pytest.mark.parametrize("name", ALWAYS_REFUSED)
def test_items_that_change_or_are_groups_are_refused_by_name(name: str) -> None:
    index, named = ALWAYS_REFUSED[name]
    with relive.Table(relive.StepSpec(GOALS), 512, {"others": index}, max_lanes=4) as table:
        with DeviceReader(table, DEVICE) as reader:
            calls: tuple[Any, ...] = (reader.draw, reader.sample, lambda count: reader.gather(np.arange(count)))
            for call in calls:
                with pytest.raises(InvalidConfig, match="index 'others'") as caught:
                    call(4)
                assert named in str(caught.value)


def test_no_sampler_is_left_out() -> None:
    indexes = [*DRAWN.values(), *(index for index, _ in (*REFUSED.values(), *ALWAYS_REFUSED.values()))]
    assert {type(index.sampler) for index in indexes} == {*SAMPLERS, relive.Hindsight, relive.PromptGroups}
