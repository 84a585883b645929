"""Encodes and decodes the messages between client and server, and errors, which keep their class on the way.

A message is a JSON header, then bytes:

    message = length of the header (uint32, little endian) | header, JSON, blanks up to 8 bytes | body

This module does not use Arrow. docs/design/service.md lists the headers.
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
    "PULSE",
    "VERSION",
    "Bytes",
    "arrays_of",
    "decode",
    "encode",
    "error_from",
    "error_to",
    "field",
    "is_pulse",
    "number",
    "seconds",
    "whole",
]

VERSION = 11  # raised by each change after which another version would misread messages
MAX_HEADER_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)
_OF_ROWS = frozenset(("stored", "num_rows", "num_items", "keys"))
_as_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would build an encoder at each call


def encode(header: Mapping[str, Any], *parts: Any) -> bytes:
    """Encodes one message. The parts are bytes-like and C-contiguous, and follow each other without gaps."""
    text = _as_json(header).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join((len(text).to_bytes(4, "little"), text, *parts))


def decode(message: Any) -> tuple[dict[str, Any], Bytes]:
    """Returns the header and the body (a view) of a message.

    Raises BadMessage. Allocates no more bytes than were received.
    """
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


# A server sends this message while it works on an answer, to clients that asked for it in the handshake.
PULSE = encode({"pulse": True})


def is_pulse(message: Any) -> bool:
    """Returns whether a buffer with a message says only that the server works on the answer."""
    return len(message) == len(PULSE) and memoryview(message) == PULSE


# ---- errors --------------------------------------------------------------------------------------------------------


def error_to(error: BaseException) -> dict[str, Any]:
    """Returns an error as {'type', 'fields'}. An error that is not an error of the library becomes a BadMessage."""
    if not isinstance(error, ReliveError):
        error = BadMessage("request", "one that this version sends", f"{type(error).__name__}: {error}"[:300])
    fields = {name: _plain(value) for name, value in vars(error).items() if name not in _OF_ROWS and name[0] != "_"}
    if isinstance(error, OSError) and error.errno is not None:
        fields["errno"] = error.errno
    return {"type": type(error).__name__, "fields": fields}


def error_from(told: Any, **more: Any) -> ReliveError:
    """Makes the error that error_to encoded.

    The error has the same class, or is a plain ReliveError if this version has no such class.

    `more`: further fields. The error does not say which rows of a block are stored; the keys that came with the error
    do.
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
    """Returns arrays of these dtypes and shapes, which fill the body exactly, else raises BadMessage.

    The arrays are views if the bytes are aligned. The requested size is compared with the received size before any
    array is made, so a count in a header cannot cost memory.
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
