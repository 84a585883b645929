"""Ctrl-C at each moment of a call at which Python runs handlers of signals."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection
from typing import Any

__all__ = ["interrupted"]

_RUNS_HANDLERS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "SEND", "GEN_START")  # after these steps


def interrupted(call: Callable[[], Any], moment: int, modules: Collection[str]) -> BaseException | None:
    """Makes a call, and raises KeyboardInterrupt at this moment of it.

    Args:
        call: the call.
        moment: number of the moment, over the code of these modules, from 0 on.
        modules: names of modules.

    Returns:
        The exception, with its frames, as a notebook keeps it. None if the call was over before.
    """
    left, last = moment, ""

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left, last
        if frame.f_globals.get("__name__") not in modules:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= last.startswith(_RUNS_HANDLERS)
            last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(before)
    return None
