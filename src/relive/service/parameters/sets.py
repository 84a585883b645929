"""Describes how sets of named arrays lie in bytes, and the interface of a store of parameters.

The bytes are the same on both sides: each array lies at a multiple of 64 bytes. A checksum covers all arrays and
continues over the version. This module does not use Arrow. relive/service/parameters/store.py publishes the sets.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from relive.checks.values import integer, is_name
from relive.config.casting import unmasked
from relive.errors import BadMessage, DtypeMismatch, InvalidConfig
from relive.service.wire.framing import Bytes, whole
from relive.service.wire.packing import room_for

__all__ = [
    "MAX_NOTE_BYTES",
    "MAX_VERSION",
    "Layout",
    "ParameterArray",
    "Parameters",
    "Publication",
    "Published",
    "check_size",
    "checked_json",
    "publication_of",
    "read_publication",
    "size_of",
]

MAX_VERSION = 2**62
MAX_ABOUT_BYTES = 1 << 18
MAX_NOTE_BYTES = 1 << 16
MAX_ARRAYS = 4096
_MAX_NAME = 512  # bytes
_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIlLqQefdFD"}


@final
@dataclass(frozen=True)
class Published:
    """One published version of the parameters.

    Attributes:
        version: Number of the version.
        arrays: Read-only arrays by name, in the order in which they were published.
        about: The publisher's description, as JSON keeps it.
    """

    version: int
    arrays: Mapping[str, npt.NDArray[Any]]
    about: Mapping[str, Any]


class Parameters(Protocol):
    """The interface of the parameters beside one table; any number of threads may use it.

    `server.parameters(name)` has this interface for a server in this process. `remote.parameters` has this interface
    for a remote table.
    """

    @property
    def version(self) -> int:
        """The newest version; 0 if no version is published."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the serving process has said that no newer version will come."""
        ...

    def publish(
        self,
        parameters: Mapping[str, npt.ArrayLike],
        version: int,
        about: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Makes a copy of these arrays the newest version, for all readers at once.

        Args:
            parameters: Named arrays of numbers, of any shape. Every version contains all arrays.
            version: Number of the version, above the newest version.
            about: A dict that JSON can represent, at most 256 KiB; None: an empty dict.
            timeout_s: Deadline in seconds; None: the store's default.

        Raises:
            InvalidConfig: An argument is not as described, or the set is too large.
            StaleVersion: The version is not above the newest version.
            DeadlineExceeded: Another publisher was not done by the deadline.
            ServiceUnavailable: The server is closed or not reachable.
        """
        ...

    def pull(self, newer_than: int = 0, timeout_s: float = 0.0) -> Published | None:
        """Returns the newest version if it is above `newer_than`.

        Args:
            newer_than: The highest version that the caller does not need, default 0.
            timeout_s: Seconds to wait for a newer version, default 0.

        Returns:
            The newest version; None if no newer version came by the deadline.

        Raises:
            InvalidConfig: An argument is out of range.
            ServiceUnavailable: The server is closed or not reachable.

        Blocks: until a newer version comes, at most until the deadline.
        """
        ...


# ---- how a set of arrays lies in bytes -----------------------------------------------------------------------------


class ParameterArray(NamedTuple):
    """One array of a set."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the array's values."""
        return self.dtype.itemsize * math.prod(self.shape)


Layout = tuple[ParameterArray, ...]


def size_of(layout: Layout) -> int:
    """Returns the bytes of a block of this layout."""
    return sum(room_for(one.num_bytes) for one in layout)


def _views(layout: Layout, block: Bytes) -> dict[str, npt.NDArray[Any]]:
    arrays, at = {}, 0
    for one in layout:
        arrays[one.name] = block[at : at + one.num_bytes].view(one.dtype).reshape(one.shape)
        at += room_for(one.num_bytes)
    return arrays


def _checksum(block: Bytes, version: int) -> int:
    return zlib.crc32(version.to_bytes(8, "little"), zlib.crc32(block.data))


def _layout_of(parameters: Mapping[str, npt.ArrayLike]) -> tuple[Layout, list[npt.NDArray[Any]]]:
    """Returns the layout of the caller's arrays, and the arrays. Raises InvalidConfig."""
    if not isinstance(parameters, Mapping) or not 0 < len(parameters) <= MAX_ARRAYS:
        got = len(parameters) if isinstance(parameters, Mapping) else parameters
        raise InvalidConfig("parameters", f"a dict of 1 to {MAX_ARRAYS} named arrays", got)
    layout, arrays = [], []
    for name, value in parameters.items():
        if not is_name(name, _MAX_NAME):
            raise InvalidConfig("name of a parameter", f"text of 1 to {_MAX_NAME} bytes", name)
        try:
            array = unmasked(f"parameter {name!r}", value)
        except (ValueError, DtypeMismatch) as problem:
            raise InvalidConfig(f"parameter {name!r}", "an array", str(problem)) from None
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.str not in _DTYPES:
            raise InvalidConfig(f"dtype of parameter {name!r}", "bool, integers, floats or complex", str(array.dtype))
        layout.append(ParameterArray(name, array.dtype, array.shape))
        arrays.append(array)
    return tuple(layout), arrays


def publication_of(
    parameters: Mapping[str, npt.ArrayLike], version: int, about: Mapping[str, Any] | None, max_bytes: int
) -> Publication:
    """Copies these arrays and computes the checksum. Raises InvalidConfig."""
    number, said = integer("version", version, 1, MAX_VERSION), checked_json("about", about, MAX_ABOUT_BYTES)
    layout, arrays = _layout_of(parameters)
    check_size(layout, max_bytes)
    block, at = np.empty(size_of(layout), np.uint8), 0
    for one, array in zip(layout, arrays, strict=True):
        end = at + one.num_bytes
        np.copyto(block[at:end].view(one.dtype).reshape(one.shape), array)
        block[end : at + room_for(one.num_bytes)] = 0
        at += room_for(one.num_bytes)
    return Publication(number, said, layout, _checksum(block, number), block)


def _read_layout(told: Any) -> Layout:
    """Returns the layout that a peer described as [[name, dtype, shape], ...].

    Raises BadMessage; allocates no arrays.
    """
    if not isinstance(told, list) or not 0 < len(told) <= MAX_ARRAYS:
        raise BadMessage("header field 'arrays'", f"1 to {MAX_ARRAYS} arrays", type(told).__name__)
    layout = tuple(_read_array(one) for one in told)
    if len({one.name for one in layout}) != len(layout):
        raise BadMessage("header field 'arrays'", "each name once", "one twice")
    return layout


def _read_array(told: Any) -> ParameterArray:
    if not (isinstance(told, list) and len(told) == 3):
        raise BadMessage("header field 'arrays'", "triples of name, dtype and shape", str(told)[:40])
    name, dtype, shape = told
    if not is_name(name, _MAX_NAME) or not isinstance(dtype, str) or dtype not in _DTYPES:
        raise BadMessage("header field 'arrays'", "a name and a dtype of numbers", str(told[:2])[:40])
    if not isinstance(shape, list) or len(shape) > 32:
        raise BadMessage("header field 'arrays'", "shapes of at most 32 axes", str(shape)[:40])
    if not all(type(length) is int and 0 <= length < 2**40 for length in shape) or math.prod(shape) >= 2**40:
        raise BadMessage("header field 'arrays'", "shapes of fewer than 2**40 values", str(shape)[:40])
    return ParameterArray(name, _DTYPES[dtype], tuple(shape))


def checked_json(what: str, value: Mapping[str, Any] | None, max_bytes: int) -> dict[str, Any]:
    """Returns a copy of a dict as JSON keeps the dict; {} for None. Raises InvalidConfig."""
    if value is None:
        return {}
    expected = f"a dict that JSON can say, of at most {max_bytes} bytes"
    if not isinstance(value, Mapping):
        raise InvalidConfig(what, expected, value)
    try:
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidConfig(what, expected, str(problem)) from None
    if len(text) > max_bytes:
        raise InvalidConfig(what, expected, f"{len(text)} bytes")
    said: dict[str, Any] = json.loads(text)
    return said


@final
class Publication(NamedTuple):
    """One version as bytes. The block no longer changes."""

    version: int
    about: dict[str, Any]
    layout: Layout
    checksum: int
    block: Bytes

    def check(self) -> None:
        """Raises BadMessage if the bytes are not the published bytes."""
        found = _checksum(self.block, self.version)
        if found != self.checksum:
            raise BadMessage(f"checksum of parameters {self.version}", f"{self.checksum:08x}", f"{found:08x}")

    def published(self) -> Published:
        """Returns the arrays as read-only views of the block."""
        block = self.block[:]
        block.flags.writeable = False
        return Published(self.version, _views(self.layout, block), self.about)

    def header(self) -> dict[str, Any]:
        """Returns the fields of a message that announces this version."""
        arrays = [[one.name, one.dtype.str, list(one.shape)] for one in self.layout]
        return {"version": self.version, "about": self.about, "arrays": arrays, "checksum": self.checksum}


def read_publication(header: Mapping[str, Any], max_bytes: int) -> Publication:
    """Returns the version that a header announces, without its block.

    Raises BadMessage, and InvalidConfig if the version is too large.
    """
    about = header.get("about")
    if not isinstance(about, dict):
        raise BadMessage("header field 'about'", "a JSON object", type(about).__name__)
    version, checksum = whole(header, "version", 1, MAX_VERSION), whole(header, "checksum", 0, 2**32 - 1)
    layout = _read_layout(header.get("arrays"))
    check_size(layout, max_bytes)
    return Publication(version, about, layout, checksum, np.empty(0, np.uint8))


def check_size(layout: Layout, max_bytes: int) -> None:
    """Raises InvalidConfig if a set is larger than the server accepts."""
    if size_of(layout) > max_bytes:
        raise InvalidConfig("bytes of parameters", f"at most {max_bytes}, as the server is told", size_of(layout))
