"""An error at one step of Python, as a signal's handler raises it there."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

__all__ = ["AtOpcode", "Interrupted", "interrupted_at", "prepare_opcodes"]


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


class AtOpcode:
    """Raises an error at one opcode of the code in some modules, and catches it.

    The opcodes are more than the steps at which Python hears signals. `is_traced` tells the modules by their names.
    `skips_locks` leaves out the lines of `with` and `try`, where Python takes and releases locks, and the opcodes that
    have no line: Python hears no signal there.
    """

    def __init__(
        self,
        number: int,
        is_traced: Callable[[str], bool],
        *,
        error: type[BaseException] = KeyboardInterrupt,
        skips_locks: bool = False,
    ) -> None:
        self._left = number
        self._is_traced = is_traced
        self._error = error
        self._skips_locks = skips_locks
        self.where = ""  # the function and the line at which the error was raised; empty: there is no such opcode

    def _is_step(self, frame: FrameType) -> bool:
        if not self._skips_locks:
            return True
        line: int | None = frame.f_lineno
        return line is not None and not linecache.getline(frame.f_code.co_filename, line).lstrip().startswith(
            ("with ", "try:")
        )

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._is_traced(frame.f_globals.get("__name__", "")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self._is_step(frame):
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                sys.settrace(None)
                raise self._error
        return self._trace

    def __enter__(self) -> AtOpcode:
        prepare_opcodes()
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._before)
        return kind is self._error
