"""Configurations that cannot be: refused where they are made, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, transitions
from relive import errors

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
