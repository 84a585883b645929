"""Configurations are frozen values that check, print, compare and pickle."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from relive import (
    ArraySpec,
    Fifo,
    Index,
    LocalMemory,
    MinSize,
    Prioritized,
    RankBased,
    SamplesPerInsert,
    SharedMemory,
    StepSpec,
    TopK,
    Transitions,
    Uniform,
)
from relive.checks.values import finite, integer, timeout
from relive.config.capacity import bytes_per_step, steps_in_bytes
from relive.config.index import named_indexes
from relive.errors import InvalidConfig, SpecError, UnknownColumn

SPEC = StepSpec(
    {
        "observation": {"a": ArraySpec((2,), "float32", kind="state"), "b": ArraySpec((), "int8", kind="state")},
        "action": ArraySpec((), "int64"),
        "reward": ArraySpec((), "float32"),
    }
)
VALUES: list[Any] = [
    Transitions(),
    Transitions(n_step=3, gamma=0.99, stack={"observation": 4}, stack_pad="zeros"),
    Uniform(),
    Prioritized(),
    Prioritized(0.5, initial=2.0),
    RankBased(0.5, "given"),
    TopK(100),
    TopK(0.01),
    MinSize(100),
    SamplesPerInsert(8.0, 1000),
    SamplesPerInsert(8, 1000, tolerance=50),
    Fifo(),
    LocalMemory(),
    SharedMemory("pong"),
    Index(),
    Index(Transitions(n_step=2), Prioritized(), SamplesPerInsert(1.0, 10), max_times_sampled=3),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_config_is_a_value(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert eval(repr(value)) == value
    assert dataclasses.replace(value) == value
    hash(value)
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Transitions(n_step=0),
        lambda: Transitions(n_step=1.5),  # type: ignore[arg-type]
        lambda: Transitions(n_step=True),
        lambda: Transitions(gamma=1.01),
        lambda: Transitions(gamma=-0.1),
        lambda: Transitions(gamma=math.nan),
        lambda: Transitions(stack={"observation": 0}),
        lambda: Transitions(stack=4),  # type: ignore[arg-type]
        lambda: Transitions(stack_pad="edge"),  # type: ignore[arg-type]
        lambda: Prioritized(-0.1),
        lambda: Prioritized(math.inf),
        lambda: Prioritized(initial="mean"),  # type: ignore[arg-type]
        lambda: Prioritized(initial=-1.0),
        lambda: Prioritized(initial=math.nan),
        lambda: MinSize(0),
        lambda: SamplesPerInsert(0.0, 10),
        lambda: SamplesPerInsert(1.0, 0),
        lambda: SamplesPerInsert(1.0, 10, tolerance=-1),
        lambda: SharedMemory("a/b"),
        lambda: SharedMemory(""),
        lambda: SharedMemory(7),  # type: ignore[arg-type]
        lambda: SharedMemory("x" * 201),
        lambda: Index(Uniform()),  # type: ignore[arg-type]
        lambda: Index(sampler=MinSize(1)),  # type: ignore[arg-type]
        lambda: Index(limiter=Fifo()),  # type: ignore[arg-type]
        lambda: Index(remover=Uniform()),  # type: ignore[arg-type]
        lambda: Index(max_times_sampled=0),
        lambda: Index(max_times_sampled=70_000),
    ],
)
def test_a_bad_config_is_refused(build: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        build()
    assert caught.value.what and caught.value.expected


def test_limits_under_which_no_side_can_move_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(InvalidConfig, match=r"\(samples_per_insert \+ 1\) / 2 = 4.5"):
        SamplesPerInsert(8.0, 100, tolerance=4.0)
    assert SamplesPerInsert(8.0, 100, tolerance=4.5).window == 9.0


def test_default_tolerance() -> None:
    assert SamplesPerInsert(8.0, 20_000).half_window == 16_000
    assert SamplesPerInsert(1.0, 10).half_window == 1024
    assert "window [144000, 176000]" in SamplesPerInsert(8.0, 20_000).arithmetic()


def test_numpy_numbers_become_plain_ones() -> None:
    transitions = Transitions(np.int64(3), np.float32(0.5), {"observation": np.int8(2)})  # type: ignore[arg-type]
    assert type(transitions.n_step) is int and type(transitions.gamma) is float
    assert type(transitions.stack["observation"]) is int


def test_shared_memory_is_a_file_of_the_machine() -> None:
    assert SharedMemory("pong").path == "/dev/shm/relive-pong"


@pytest.mark.parametrize("index", [value for value in VALUES if isinstance(value, Index)], ids=repr)
def test_index_survives_json(index: Index) -> None:
    assert Index.from_dict(json.loads(json.dumps(index.to_dict()))) == index
    with pytest.raises(InvalidConfig):
        Index.from_dict({**index.to_dict(), "sampler": {"type": "Nobody"}})


def test_index_for_the_core() -> None:
    index = Index(Transitions(3, 0.9, {"observation": 4}), Prioritized(0.7, "given"), SamplesPerInsert(2.0, 100, 300.0))
    assert index.core_config("main", SPEC) == {
        "name": "main",
        "items": "transitions",
        "n_step": 3,
        "gamma": 0.9,
        "stack": {"observation/a": 4, "observation/b": 4},
        "stack_pad": "repeat",
        "sampler": "prioritized",
        "priority_exponent": 0.7,
        "initial": ("given", 0.0),
        "limiter": "samples_per_insert",
        "min_size": 100,
        "samples_per_insert": 2.0,
        "tolerance": 300.0,
        "remover": "fifo",
        "max_times_sampled": 0,
    }
    assert Index(sampler=Prioritized(initial=3)).core_config("main", SPEC)["initial"] == ("number", 3.0)
    assert Index().core_config("main", SPEC)["sampler"] == "uniform"


def test_index_is_checked_against_the_spec() -> None:
    with pytest.raises(UnknownColumn):
        Index(Transitions(stack={"observations": 2})).check_against(SPEC)
    with pytest.raises(SpecError):
        Index(Transitions(stack={"action": 2})).check_against(SPEC)
    whole = StepSpec({"reward": ArraySpec((), "int32")})
    Index().check_against(whole)
    with pytest.raises(SpecError, match="n_step=2"):
        Index(Transitions(n_step=2)).check_against(whole)
    Index(Transitions(n_step=2)).check_against(StepSpec({"blob": ArraySpec((7,), "uint8")}))


def test_named_indexes() -> None:
    assert named_indexes(None, SPEC) == {"default": Index()}
    assert list(named_indexes({"a": Index(), "b": Index(sampler=Prioritized())}, SPEC)) == ["a", "b"]
    for bad in ({}, {"": Index()}, {"a": Uniform()}, {f"i{n}": Index() for n in range(9)}, 3):
        with pytest.raises(InvalidConfig):
            named_indexes(bad, SPEC)  # type: ignore[arg-type]


def test_timeouts() -> None:
    assert timeout(0) == 0.0 and timeout(math.inf) == math.inf and timeout(np.float32(0.5)) == 0.5
    for bad in (-1, math.nan, "1", True, None):
        with pytest.raises(InvalidConfig, match="inf waits"):
            timeout(bad)  # type: ignore[arg-type]


def test_numbers() -> None:
    assert integer("x", np.uint8(7), 1) == 7
    with pytest.raises(InvalidConfig, match="from 1 to 3"):
        integer("x", 4, 1, 3)
    assert finite("x", np.float32(0.5), 0.0) == 0.5
    for bad in (math.inf, math.nan, "1", None, True):
        with pytest.raises(InvalidConfig):
            finite("x", bad, 0.0)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_a_masked_number_is_refused_without_a_warning() -> None:
    for masked in (np.ma.masked, np.ma.array(1.0, mask=True)):
        with pytest.raises(InvalidConfig):
            finite("x", masked, 0.0)
        with pytest.raises(InvalidConfig, match="inf waits"):
            timeout(masked)
    assert timeout(np.ma.array(1.0, mask=False)) == 1.0


def test_capacity_as_memory() -> None:
    frames = StepSpec({"observation": ArraySpec((84, 84), "uint8", kind="state"), "action": ArraySpec((), "int64")})
    assert bytes_per_step(frames) == 32 + 7104 + 14
    assert steps_in_bytes("40GiB", frames) == 40 * 2**30 // 7150
    assert steps_in_bytes("40 GiB", frames, 2) == 40 * 2**30 // 7164
    assert steps_in_bytes("150kb", SPEC) < steps_in_bytes("150KiB", SPEC)
    for bad in ("40", "GiB", "-1GiB", "infGiB", "1XB", ""):
        with pytest.raises(InvalidConfig):
            steps_in_bytes(bad, SPEC)
