"""An environment that pads its first stack with zeros is reported where the table would repeat the first value."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import relive

SPEC = relive.StepSpec(
    {"o": relive.ArraySpec((2,), "float32", kind="state"), "a": relive.ArraySpec((), "int64")}, unstack={"o": 3}
)


def stacks(pad: str, lanes: int) -> np.ndarray[Any, Any]:
    made = np.zeros((lanes, 3, 2), np.float32)
    made[:, 2 if pad == "zeros" else slice(None)] = 1.0
    return made


@pytest.mark.parametrize("table_pads", ["repeat", "zeros"])
@pytest.mark.parametrize("env_pads", ["repeat", "zeros"])
@pytest.mark.parametrize("call", ["append", "extend"])
def test_the_first_stack_shows_the_padding(call: str, env_pads: str, table_pads: Any) -> None:
    with relive.Table(SPEC, 100, relive.Index(relive.Transitions(stack={"o": 3}, stack_pad=table_pads))) as table:
        writer, o = table.writer(2), stacks(env_pads, 2)
        more: dict[str, Any] = {"o": o, "a": [0, 0]} if call == "append" else {"o": o[None], "a": [[0, 0]]}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            getattr(writer, call)(**more)
            getattr(writer, call)(**more)
        told = [str(one.message) for one in caught]
        assert len(told) == (env_pads == "zeros" and table_pads == "repeat"), told
        assert all("stack_pad='zeros'" in one for one in told)


def test_an_index_without_stacks_says_nothing() -> None:
    with relive.Table(SPEC, 100) as table, warnings.catch_warnings():
        warnings.simplefilter("error")
        table.writer(2).append(o=stacks("zeros", 2), a=[0, 0])
