"""Publication of the learner's parameters to its actors, through shared memory and never half-written.

The protocol. One publisher, any number of readers, no lock, nobody waits for anybody:

  block   latest (int64), then two slots, each: version (int64), checksum (int64), the parameters (float32)

  P1  publish(n) writes the slot that `latest` does not name: version = 0 (the slot is not valid), the parameters,
      checksum = crc32 of the parameters continued over n, version = n.
  P2  only then `latest = n`. Slot of version n: n mod 2. Versions start at 1; 0 means nothing was published.
  R1  a reader takes n = latest, and from slot n mod 2: version, a copy of the parameters, checksum, version again.
  R2  the copy counts only if both versions are n and the checksum of the *copy* continued over n is the stored one.
      Else the reader starts again at R1: the publisher went round twice meanwhile.

A publisher killed at any instruction leaves the slot that `latest` names whole (it was writing the other one), so
readers go on with the last complete version. The checksum makes the answer independent of the order in which a
processor lets stores be seen: a copy that passes is the one that was published. 2 GB/s or so for each side.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from relive.errors import InvalidConfig
from relive.train.memory.shared_block import SharedBlock

_SLOT_HEADER_BYTES = 64
_MAX_ROUNDS = 16


@final
@dataclass(frozen=True)
class ParameterLayout:
    """Names and shapes of float32 parameters, in the order in which they lie one after another."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, parameters: Mapping[str, NDArray[np.float32]]) -> ParameterLayout:
        """The layout of these parameters."""
        return cls(tuple((name, tuple(value.shape)) for name, value in parameters.items()))

    @property
    def num_values(self) -> int:
        """float32 values in all."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def flatten(self, parameters: Mapping[str, NDArray[np.float32]], out: NDArray[np.float32]) -> None:
        """Writes the parameters into out [num_values]."""
        start = 0
        for name, shape in self.shapes:
            value = parameters[name]
            if tuple(value.shape) != shape:
                raise InvalidConfig(what=f"parameter {name!r}", expected=f"shape {shape}", got=tuple(value.shape))
            out[start : start + value.size] = value.ravel()
            start += value.size

    def split(self, values: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The parameters as views of values [num_values]."""
        parameters, start = {}, 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            parameters[name] = values[start : start + size].reshape(shape)
            start += size
        return parameters


@final
class _Slots:
    """The block's words as numpy views."""

    def __init__(self, block: SharedBlock, num_values: int) -> None:
        self.latest = block.array(np.int64, (1,))
        self.headers: list[NDArray[np.int64]] = []
        self.values: list[NDArray[np.float32]] = []
        for slot in range(2):
            offset = _SLOT_HEADER_BYTES + slot * _slot_bytes(num_values)
            self.headers.append(block.array(np.int64, (2,), offset))
            self.values.append(block.array(np.float32, (num_values,), offset + _SLOT_HEADER_BYTES))


def _slot_bytes(num_values: int) -> int:
    return _SLOT_HEADER_BYTES + -(-num_values * 4 // 64) * 64


def checksum(values: NDArray[np.float32], version: int) -> int:
    """crc32 of the values continued over the version."""
    return zlib.crc32(version.to_bytes(8, "little"), zlib.crc32(values.data))


class NewerParameters(Protocol):
    """Where an actor finds what to act with."""

    @property
    def version(self) -> int:
        """Of the parameters that the last poll gave; 0 before."""
        ...

    def poll(self) -> dict[str, NDArray[np.float32]] | None:
        """Parameters newer than those of the last poll, None where there are none; never waits."""
        ...


class ParameterSource(Protocol):
    """What hands them out."""

    def reader(self) -> NewerParameters:
        """A reader with a memory of its own."""
        ...


@final
class ParameterBoard:
    """The publisher's side; pickles into a child process, where `reader()` is its use."""

    def __init__(self, layout: ParameterLayout, *, first_version: int = 0) -> None:
        self._layout = layout
        self._block = SharedBlock(_SLOT_HEADER_BYTES + 2 * _slot_bytes(layout.num_values))
        self._slots: _Slots | None = _Slots(self._block, layout.num_values)
        self._staging = np.zeros(layout.num_values, np.float32)
        self.version = first_version

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._slots = None  # a child reads only

    def publish(self, parameters: Mapping[str, NDArray[np.float32]]) -> int:
        """Publishes the parameters and returns their version, one more than the last."""
        slots = self._slots
        if slots is None:
            raise InvalidConfig(
                what="ParameterBoard", expected="an open one, in the process that made it", got="closed"
            )
        self._layout.flatten(parameters, self._staging)
        version = self.version + 1
        header, values = slots.headers[version % 2], slots.values[version % 2]
        header[0] = 0
        values[...] = self._staging
        header[1] = checksum(self._staging, version)
        header[0] = version
        slots.latest[0] = version
        self.version = version
        return version

    def reader(self) -> ParameterReader:
        """A reader of this board, with a memory of its own."""
        return ParameterReader(self._block, self._layout)

    def close(self) -> None:
        """Ends this process's use of the board."""
        self._slots = None
        self._block.close()


@final
class ParameterReader:
    """A reader's side: one thread of one process."""

    def __init__(self, block: SharedBlock, layout: ParameterLayout) -> None:
        self._layout = layout
        self._slots = _Slots(block, layout.num_values)
        self.version = 0
        self.num_retries = 0

    def poll(self) -> dict[str, NDArray[np.float32]] | None:
        """Parameters newer than those of the last poll, of the caller's own; None where there are none.

        Never blocks: after 16 copies that the publisher overtook it gives up until the next poll.
        """
        slots = self._slots
        for _ in range(_MAX_ROUNDS):
            version = int(slots.latest[0])
            if version == self.version or version == 0:
                return None
            header = slots.headers[version % 2]
            before = int(header[0])
            copy = slots.values[version % 2].copy()
            stored, after = int(header[1]), int(header[0])
            if before == version == after and checksum(copy, version) == stored:
                self.version = version
                return self._layout.split(copy)
            self.num_retries += 1
        return None
