"""An error at one step of Python, as a signal's handler raises it there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["Interrupted", "interrupted_at", "prepare_opcodes"]


class Interrupted(Exception):
    """The error that the handler raises."""


def interrupted_at(at: int, work: Callable[[], object], *files: str) -> Interrupted | None:
    """Does the work, and raises Interrupted at one step of the code in these files: at a call, or after one of C.

    Python hears signals at these steps. The error that is returned keeps the frames of the work, as that of a program
    does in its `except` block. None: the work has no such step.
    """
    steps = count()

    def look(frame: Any, event: str, arg: object) -> None:
        if frame.f_code.co_filename in files and event in ("call", "c_return") and next(steps) == at:
            raise Interrupted

    sys.setprofile(look)
    try:
        work()
    except Interrupted as error:
        return error
    finally:
        sys.setprofile(None)
    assert next(steps) <= at, f"the error at step {at} was dropped"
    return None


def prepare_opcodes() -> None:
    """Traces opcodes once. Python 3.12 traces none in the first call that asks for them."""

    def trace(frame: Any, event: str, arg: object) -> Any:
        frame.f_trace_opcodes = True
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    (lambda: None)()
    sys.settrace(before)
