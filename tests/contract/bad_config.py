"""Configurations that cannot be: refused where they are made, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, transitions
from relive import errors

NO_NAMES: list[Any] = ["", "\0", "a\0b", "\ud800", "x" * 5000, b"x", 3, None]
REFUSED = (errors.ReliveError, TypeError, ValueError)


class BadConfigSuite(Suite):
    @pytest.mark.parametrize("capacity", [0, -1, 1.5, "many", "12 parsecs", None, float("nan"), 2**60])
    def test_capacity(self, make_table: MakeTable, capacity: Any) -> None:
        with pytest.raises(REFUSED):
            make_table(plain_spec(), capacity)

    def test_a_window_larger_than_capacity(self, make_table: MakeTable) -> None:
        for index in (transitions(n_step=11), transitions(stack={"observation": 11})):
            with pytest.raises(errors.ReliveError):
                make_table(plain_spec(), 10, index).writer()

    @pytest.mark.parametrize(
        "options",
        [{"max_lanes": 0}, {"max_lanes": -3}, {"timeout_s": -1.0}, {"timeout_s": float("nan")}, {"seed": "x"}],
    )
    def test_options(self, make_table: MakeTable, options: dict[str, Any]) -> None:
        with pytest.raises(REFUSED):
            make_table(plain_spec(), 100, **options)

    @pytest.mark.parametrize(
        "stack",
        [{"nobody": 4}, {"action": 4}, {"observation": 0}, {"observation": -2}, {"observation": 1.5}],
    )
    def test_stacks(self, make_table: MakeTable, stack: dict[str, Any]) -> None:
        with pytest.raises(REFUSED):
            make_table(plain_spec(), 100, transitions(stack=stack))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: relive.Transitions(n_step=0),
            lambda: relive.Transitions(n_step=1.5),
            lambda: relive.Transitions(gamma=-0.1),
            lambda: relive.Transitions(gamma=1.1),
            lambda: relive.Transitions(gamma=float("nan")),
            lambda: relive.Transitions(stack_pad="mirror"),
            lambda: relive.Prioritized(priority_exponent=-1.0),
            lambda: relive.Prioritized(priority_exponent=float("inf")),
            lambda: relive.Prioritized(initial="mean"),
            lambda: relive.Prioritized(initial=-1.0),
            lambda: relive.Prioritized(initial=float("nan")),
            lambda: relive.MinSize(0),
            lambda: relive.MinSize(-1),
            lambda: relive.SamplesPerInsert(0.0, min_size=10),
            lambda: relive.SamplesPerInsert(-1.0, min_size=10),
            lambda: relive.SamplesPerInsert(1.0, min_size=0),
            lambda: relive.SamplesPerInsert(1.0, min_size=10, tolerance=-1.0),
            lambda: relive.Index(max_times_sampled=0),
            lambda: relive.Index(max_times_sampled=-1),
            lambda: relive.Index(sampler="uniform"),
            lambda: relive.Index(relive.Uniform()),
            lambda: relive.SharedMemory(""),
            lambda: relive.SharedMemory("a/b"),
            lambda: relive.SharedMemory("../etc"),
            lambda: relive.ArraySpec((-1,), "float32"),
            lambda: relive.ArraySpec((2.5,), "float32"),
            lambda: relive.ArraySpec((), "float31"),
            lambda: relive.ArraySpec((), "float32", kind="sometimes"),
        ],
    )
    def test_values(self, make: Any) -> None:
        with pytest.raises(REFUSED):
            make()

    @pytest.mark.parametrize("name", ["terminated", "truncated", "discount", "lanes", "priority", "timeout_s"])
    def test_reserved_names(self, name: str) -> None:
        with pytest.raises(errors.SpecError):
            plain_spec(**{name: relive.ArraySpec((), "float32")})

    @pytest.mark.parametrize(
        "name",
        ["episode_step", "first", "lane", "policy_version", "staleness", "num_steps", "next_reward", "a/b", ""],
    )
    def test_derived_and_impossible_names(self, name: str) -> None:
        with pytest.raises(errors.SpecError):
            plain_spec(**{name: relive.ArraySpec((), "float32")})

    @pytest.mark.parametrize("dtype", ["object", "str", "U8", "S8", "M8[s]", "V8"])
    def test_not_here(self, dtype: str) -> None:
        """Blobs of any size are refused."""
        with pytest.raises(REFUSED):
            plain_spec(image=relive.ArraySpec((), dtype))

    def test_a_spec_without_columns(self) -> None:
        with pytest.raises(errors.SpecError):
            relive.StepSpec({})

    def test_no_index(self, make_table: MakeTable) -> None:
        for index in ({}, {"": relive.Index()}, {"a": "b"}, np.zeros(3)):
            with pytest.raises(REFUSED):
                make_table(plain_spec(), 100, index)

    @pytest.mark.parametrize(
        "options",
        [
            {"capacity": 2**36 + 1},
            {"capacity": 2**64},
            {"capacity": 10**5000},
            {"capacity": "1e300GiB"},
            {"capacity": b"12GiB"},
            {"capacity": np.array([100])},
            {"max_lanes": 2**20 + 1},
            {"max_lanes": 2**32},
            {"seed": -1},
            {"seed": 2**64},
            {"timeout_s": -(10**400)},
            {"timeout_s": np.zeros(2)},
            {"timeout_s": b"1"},
            {"storage": "name"},
            {"spec": {"a": relive.ArraySpec((), "float32")}},
        ],
    )
    def test_options_beyond_all_tables(self, make_table: MakeTable, options: dict[str, Any]) -> None:
        given = {"spec": plain_spec(), "capacity": 100, **options}
        with pytest.raises(errors.InvalidConfig):
            make_table(given.pop("spec"), given.pop("capacity"), **given)

    @pytest.mark.parametrize("name", NO_NAMES)
    def test_names_that_no_system_keeps(self, make_table: MakeTable, name: Any) -> None:
        for make in (
            lambda: relive.StepSpec({name: relive.ArraySpec((), "float32")}),
            lambda: plain_spec(group={name: relive.ArraySpec((), "float32")}),
            lambda: relive.SharedMemory(name),
            lambda: relive.Tiered(name, 2**20),
            lambda: relive.attach(name),
            lambda: relive.remove(name),
            lambda: relive.remove(name, force=True),
            lambda: make_table(plain_spec(), 100, {name: relive.Index()}),
        ):
            with pytest.raises(errors.ReliveError) as caught:
                make()
            str(caught.value).encode()  # it can be printed

    @pytest.mark.parametrize(
        "make",
        [
            lambda: relive.Prioritized(initial=1e39),
            lambda: relive.Prioritized(initial=10**400),
            lambda: relive.Prioritized(initial=np.ones(2)),
            lambda: relive.Prioritized(10**400),
            lambda: relive.Prioritized(b"1"),
            lambda: relive.MinSize(2**63),
            lambda: relive.SamplesPerInsert(1.0, 10**400),
            lambda: relive.SamplesPerInsert(10**400, 10),
            lambda: relive.Transitions(stack_pad=np.zeros(2)),
            lambda: relive.Transitions(stack={"observation": 2**32}),
            lambda: relive.Transitions(stack={3: 4}),
            lambda: relive.Tiered(b"/tmp", 2**20),
            lambda: relive.Tiered("/tmp", 2**64),
            lambda: relive.Tiered("/tmp", "1e300GiB"),
            lambda: relive.Index(max_times_sampled=10**5000),
            lambda: relive.Index.from_dict([]),
            lambda: relive.Index.from_dict({"colour": 1}),
            lambda: relive.Index.from_dict({"sampler": {"type": "Uniform", "colour": 1}}),
        ],
    )
    def test_values_beyond_their_range(self, make: Any) -> None:
        with pytest.raises(errors.InvalidConfig):
            make()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: relive.ArraySpec((2**32, 2**32), "uint8"),  # 2**64 bytes wrap round to none
            lambda: relive.ArraySpec((2**33,), "uint8"),
            lambda: relive.ArraySpec((10**400,), "uint8"),
            lambda: relive.ArraySpec(b"ab", "uint8"),
            lambda: relive.ArraySpec("ab", "uint8"),
            lambda: relive.ArraySpec({2: 3}, "uint8"),
            lambda: relive.ArraySpec((), "float\ud800"),
            lambda: relive.ArraySpec((), "i4,i4"),
            lambda: relive.ArraySpec((), "float32", kind=np.zeros(2)),
            lambda: relive.StepSpec({"a": relive.ArraySpec((), "u1", "state")}, unstack=3),
            lambda: relive.StepSpec({"a": relive.ArraySpec((), "u1", "state")}, unstack={"a": 2**40}),
            lambda: relive.StepSpec({"a": relive.ArraySpec((), "u1", "state")}, unstack={3: 2}),
            lambda: relive.StepSpec({"a": holds_itself()}),
            lambda: relive.StepSpec.from_json(b"\xff"),
            lambda: relive.StepSpec.from_json("[" * 100_000),
            lambda: relive.StepSpec.from_json('{"columns": [[3, "u1", [], "step"]], "tuples": [], "unstack": {}}'),
            lambda: relive.StepSpec.from_spaces(3, None),
        ],
    )
    def test_specs_that_cannot_be(self, make: Any) -> None:
        with pytest.raises(errors.SpecError):
            make()

    def test_a_table_beyond_all_memory(self, make_table: MakeTable) -> None:
        """Sizes are refused before they wrap round; what the system refuses is its error with its number."""
        for shape, capacity in (((2**31,), 2**36), ((2**20,), 2**36)):
            with pytest.raises((errors.InvalidConfig, errors.StorageFull, errors.SystemFailure)):
                make_table(relive.StepSpec({"image": relive.ArraySpec(shape, "uint8")}), capacity, max_lanes=1)


def holds_itself() -> dict[str, Any]:
    group: dict[str, Any] = {}
    group["a"] = group
    return group
