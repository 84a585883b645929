"""Messages between client and server: a JSON header, then bytes; and errors that keep their class on the way.

    message = length of the header (uint32, little endian) | header, JSON, blanks up to 8 bytes | body

Knows nothing of Arrow. docs/design/service.md lists the headers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.checks.header import field, number, seconds, whole
from relive.errors import BadMessage, ReliveError, from_core

__all__ = [
    "MAX_HEADER_BYTES",
    "NOTHING",
    "VERSION",
    "Bytes",
    "arrays_of",
    "decode",
    "encode",
    "error_from",
    "error_to",
    "field",
    "number",
    "seconds",
    "whole",
]

VERSION = 8  # raised where messages of one version would be misread by another
MAX_HEADER_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)
_OF_ROWS = frozenset(("stored", "num_rows", "num_items", "keys"))
_as_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would build an encoder each time


def encode(header: Mapping[str, Any], *parts: Any) -> bytes:
    """One message; parts are bytes-like, C-contiguous, and follow each other without gaps."""
    text = _as_json(header).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join((len(text).to_bytes(4, "little"), text, *parts))


def decode(message: Any) -> tuple[dict[str, Any], Bytes]:
    """The header and the body (a view) of a message. Raises BadMessage; allocates no more than came."""
    view = memoryview(message)
    if len(view) < 4:
        raise BadMessage("message", "at least 4 bytes", len(view))
    num_bytes = int.from_bytes(view[:4], "little")
    if num_bytes > min(len(view) - 4, MAX_HEADER_BYTES):
        raise BadMessage("length of the header", f"at most {min(len(view) - 4, MAX_HEADER_BYTES)}", num_bytes)
    end = 4 + num_bytes
    try:
        header = json.loads(str(view[4:end], "utf-8"))
    except (ValueError, RecursionError) as problem:
        raise BadMessage("header", "JSON", str(problem)[:100]) from None
    if not isinstance(header, dict):
        raise BadMessage("header", "a JSON object", type(header).__name__)
    return header, np.frombuffer(message, np.uint8, offset=end) if end < len(view) else NOTHING


# ---- errors --------------------------------------------------------------------------------------------------------


def error_to(error: BaseException) -> dict[str, Any]:
    """An error as {'type', 'fields'}; whatever is no error of the library becomes a BadMessage."""
    if not isinstance(error, ReliveError):
        error = BadMessage("request", "one that this version sends", f"{type(error).__name__}: {error}"[:300])
    fields = {name: _plain(value) for name, value in vars(error).items() if name not in _OF_ROWS and name[0] != "_"}
    if isinstance(error, OSError) and error.errno is not None:
        fields["errno"] = error.errno
    return {"type": type(error).__name__, "fields": fields}


def error_from(told: Any, **more: Any) -> ReliveError:
    """The error that error_to wrote, of the same class (a plain ReliveError where this version has no such class).

    more: further fields. What is stored of a block is told by the keys that came with the error, not by the error.
    """
    if not isinstance(told, dict) or not isinstance(told.get("fields"), dict):
        return BadMessage("error", "type and fields", str(told)[:100])
    fields = {str(name): tuple(value) if isinstance(value, list) else value for name, value in told["fields"].items()}
    return from_core(str(told.get("type")), fields | more)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return str(value)


# ---- arrays in a body ----------------------------------------------------------------------------------------------


def arrays_of(body: Bytes, *wanted: tuple[npt.DTypeLike, tuple[int, ...]]) -> list[npt.NDArray[Any]]:
    """Arrays of these dtypes and shapes that fill the body exactly, else BadMessage. Views where the bytes are aligned.

    What is asked for is compared with what came before anything is made, so no count in a header costs memory.
    """
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in wanted]
    if sum(sizes) != len(body):
        raise BadMessage("body", f"{sum(sizes)} bytes"[:60], len(body))
    made, at = [], 0
    for (dtype, shape), size in zip(wanted, sizes, strict=True):
        part = body[at : at + size]
        kind = np.dtype(dtype)
        if size and part.__array_interface__["data"][0] % kind.alignment:
            part = part.copy()
        if kind == np.bool_ and part.size and part.max() > 1:
            raise BadMessage("body", "bools of 0 or 1", int(part.max()))
        made.append(part.view(kind).reshape(shape))
        at += size
    return made
