"""TableConfig: what a table is built from, and what the core refuses of it."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from core.tools import make_config, make_core, make_index
from processes.shm import needs_shared_memory

import relive
from relive import errors

SPEC = relive.StepSpec(
    {
        "observation": {"camera": relive.ArraySpec((4, 4), "uint8", kind="state"), "dtype": relive.ArraySpec(3, ">f8")},
        "pair": (relive.ArraySpec((), "bool"), {"deep": relive.ArraySpec(2, "complex64", kind="start")}),
        "reward": relive.ArraySpec((), "float32"),
    },
    unstack={"observation/camera": 4},
)
INDEXES = {
    "z": relive.Index(
        relive.Transitions(3, 0.99, {"observation/camera": 4}, "zeros"),
        relive.Prioritized(0.7, initial=2.5),
        relive.SamplesPerInsert(8.0, 100, tolerance=900.5),
        max_times_sampled=9,
    ),
    "a": relive.Index(sampler=relive.Prioritized(initial="given")),
}
CONFIGS = [
    relive.TableConfig(SPEC, 1000),
    relive.TableConfig(SPEC, "1MiB", INDEXES["z"], relive.LocalMemory(), timeout_s=math.inf, seed=2**64 - 1),
    relive.TableConfig(SPEC, 500, INDEXES, relive.SharedMemory("pong"), max_lanes=3, timeout_s=0.1),
    relive.TableConfig(SPEC, 500, INDEXES, relive.Tiered("/nowhere", "2GiB", staging_fraction=0.25)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_it_is_a_value(config: relive.TableConfig) -> None:
    printed = eval(repr(config), {**vars(relive), "inf": math.inf})
    for copy in (pickle.loads(pickle.dumps(config)), dataclasses.replace(config), printed):
        assert copy == config and hash(copy) == hash(config) and repr(copy) == repr(config)
    assert [config == other for other in CONFIGS].count(True) == 1
    for field in dataclasses.fields(config):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field.name, None)
    with pytest.raises(TypeError):
        config.index["more"] = relive.Index()  # type: ignore[index]
    assert dataclasses.replace(config, seed=12) != config


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_it_goes_to_json_and_back_exactly(config: relive.TableConfig) -> None:
    parts = config.to_dict()
    text = json.dumps(parts, allow_nan=False)
    again = relive.TableConfig.from_dict(json.loads(text))
    assert again == config and again.to_dict() == parts and list(again.index) == list(config.index)


def test_the_order_of_indexes_counts() -> None:
    turned = dict(reversed(INDEXES.items()))
    assert relive.TableConfig(SPEC, 500, INDEXES) != relive.TableConfig(SPEC, 500, turned)


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"version": 1}, errors.FormatMismatch, "version"),
        ({"version": None}, errors.FormatMismatch, "version"),
        ({"capacitee": 1}, errors.InvalidConfig, "capacity"),
        ({"storage": {"type": "Disk"}}, errors.InvalidConfig, "LocalMemory or SharedMemory or Tiered"),
        ({"storage": {"type": "SharedMemory"}}, errors.InvalidConfig, "name"),
        ({"storage": {"type": "SharedMemory", "name": "x", "pinned": 1}}, errors.InvalidConfig, "pinned"),
        ({"index": {"a": {"sampler": {"type": "Unifrom"}}}}, errors.InvalidConfig, "Uniform or Prioritized"),
        ({"index": {"a": {"sampler": {"type": "MinSize"}}}}, errors.InvalidConfig, "Uniform or Prioritized"),
        ({"index": {"a": {"samplers": {}}}}, errors.InvalidConfig, "sampler"),
        ({"index": {"a": {"items": {"type": "Transitions", "n_steps": 3}}}}, errors.InvalidConfig, "n_steps"),
        ({"index": {"a": 3}}, errors.InvalidConfig, "3"),
        ({"index": 3}, errors.InvalidConfig, "3"),
        ({"spec": {"columns": {"a": {"dtype": "f4", "shap": []}}}}, errors.SpecError, "shap"),
        ({"spec": {"columns": {"a": 3}}}, errors.SpecError, "'a'"),
        ({"spec": {"column": {}}}, errors.SpecError, "columns"),
        ({"capacity": 0}, errors.InvalidConfig, "capacity"),
        ({"max_lanes": 0}, errors.InvalidConfig, "max_lanes"),
        ({"seed": 2**64}, errors.InvalidConfig, "seed"),
        ({"timeout_s": -1.0}, errors.InvalidConfig, "timeout_s"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        relive.TableConfig.from_dict({**CONFIGS[0].to_dict(), **change})
    assert says in str(caught.value)


def test_a_min_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(errors.CapacityTooSmall):
        relive.TableConfig(SPEC, 10, relive.Index(limiter=relive.MinSize(11)))


def test_a_table_says_what_it_was_made_from() -> None:
    config = dataclasses.replace(CONFIGS[1], timeout_s=3.0)
    with relive.Table.from_config(config) as table:
        assert table.config == config and table.capacity == config.capacity and table.timeout_s == 3.0
        assert table.indexes == dict(config.index) and table.spec == SPEC
        with relive.Table(SPEC, "1MiB", INDEXES["z"], timeout_s=3.0, seed=2**64 - 1) as same:
            assert same.config == config
    with pytest.raises(errors.InvalidConfig):
        relive.Table.from_config(SPEC)  # type: ignore[arg-type]


@needs_shared_memory
def test_an_attached_handle_says_what_the_table_was_made_from(shm_name: Any) -> None:
    config = relive.TableConfig(SPEC, 500, INDEXES, relive.SharedMemory(shm_name()), max_lanes=3, timeout_s=math.inf)
    with relive.Table.from_config(config) as table, pickle.loads(pickle.dumps(table)) as other:
        assert other.config == table.config == config
        with relive.attach(config.storage.name, timeout_s=1.0) as third:  # type: ignore[union-attr]
            assert third.config == config and third.timeout_s == 1.0


# ---- what the core knows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index, says",
    [
        ({"sampler": "nobody"}, "'uniform' or 'prioritized'"),
        ({"limiter": "bucket"}, "'min_size' or 'samples_per_insert'"),
        ({"items": "hindsight"}, "'transitions' or 'sequences'"),
        ({"items": "sequences"}, "length"),
        ({"remover": "oldest"}, "'fifo'"),
        ({"stack_pad": "edge"}, "'repeat' or 'zeros'"),
        ({"initial": ("mean", 0.0)}, "'max' or 'given' or 'number'"),
        ({"stack": {"nobody": 2}}, "nobody"),
        ({"max_staleness": 3}, "max_times_sampled"),
        ({"n_step": "three"}, "n_step"),
        ({"n_step": -1}, "n_step"),
    ],
    ids=str,
)
def test_the_core_refuses_of_an_index_what_it_does_not_know(index: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        make_core(indexes=[make_index("main", **index)])
    assert says in str(caught.value) and "main" in caught.value.what


@pytest.mark.parametrize(
    "change, says",
    [
        ({"columns": [("x", "<f4", (), "epoch")]}, "'step' or 'state' or 'start'"),
        ({"columns": [("x", "<f4", ())]}, "(name, dtype, shape, kind)"),
        ({"columns": 3}, "columns"),
        ({"indexes": [3]}, "a dict"),
        ({"max_lane": 3}, "max_lanes"),
        ({"capacity": -1}, "capacity"),
        ({"tier": {"directory": "/tmp", "ram": 3}}, "ram_bytes"),
    ],
    ids=str,
)
def test_the_core_refuses_of_a_table_what_it_does_not_know(change: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        make_core(**change)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", sorted(make_config()))
def test_the_core_asks_for_what_it_needs(name: str, tmp_path: Path) -> None:
    from relive import _core

    parts = make_config()
    del parts[name]
    with pytest.raises(errors.InvalidConfig, match=name):
        _core.create_table(parts, None)
