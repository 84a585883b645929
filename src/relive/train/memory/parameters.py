"""Publishes the learner's parameters to its actors through shared memory; readers never see a half-written version.

Protocol, for one publisher and any number of readers. It has no lock and no waits:

  block   latest (int64), then two slots, each: version (int64), checksum (int64), the parameters (float32)

  P1  publish(n) writes the slot that `latest` does not name: version = 0 (the slot is not valid), the parameters,
      checksum = crc32 of the parameters continued over n, version = n.
  P2  Only then it writes `latest = n`. The slot of version n is n mod 2. Versions start at 1; 0: nothing is published.
  R1  A reader takes n = latest, and from slot n mod 2: version, a copy of the parameters, checksum, version again.
  R2  The copy counts only if both versions are n and the checksum of the *copy* continued over n is the stored one.
      Else the reader starts again at R1: the publisher has written this slot again since.

A publisher that is killed at any instruction was writing the slot that `latest` does not name. The other slot is whole,
and readers go on with it. The checksum makes the check independent of the order in which a processor shows stores to
other cores: a copy that passes is the version that was published. Each side copies about 2 GB/s.
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
        """Returns the layout of these parameters."""
        return cls(tuple((name, tuple(value.shape)) for name, value in parameters.items()))

    @property
    def num_values(self) -> int:
        """Number of float32 values."""
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
        """Returns the parameters as views of values [num_values]."""
        parameters, start = {}, 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            parameters[name] = values[start : start + size].reshape(shape)
            start += size
        return parameters


@final
class _Slots:
    """The words of the block as numpy views."""

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
    """Returns the crc32 of the values, continued over the version."""
    return zlib.crc32(version.to_bytes(8, "little"), zlib.crc32(values.data))


class NewerParameters(Protocol):
    """Gives an actor the parameters that it acts with."""

    @property
    def version(self) -> int:
        """Version of the parameters of the last poll; 0 before the first."""
        ...

    def poll(self) -> dict[str, NDArray[np.float32]] | None:
        """Returns parameters that are newer than those of the last poll; None if there are none. It never waits."""
        ...


class ParameterSource(Protocol):
    """Gives readers of its parameters."""

    def reader(self) -> NewerParameters:
        """Returns a reader that remembers by itself which version it has read."""
        ...


@final
class ParameterBoard:
    """The publisher's side. It can be pickled into a child process, which may call `reader()` alone.

    Attributes:
        version: Version of the last publication.
    """

    def __init__(self, layout: ParameterLayout, *, first_version: int = 0) -> None:
        self._layout = layout
        self._block = SharedBlock(self.num_bytes_of(layout))
        self._slots: _Slots | None = _Slots(self._block, layout.num_values)
        self._staging = np.zeros(layout.num_values, np.float32)
        self.version = first_version

    @staticmethod
    def num_bytes_of(layout: ParameterLayout) -> int:
        """Returns the size of a board."""
        return _SLOT_HEADER_BYTES + 2 * _slot_bytes(layout.num_values)

    @property
    def block(self) -> SharedBlock:
        """The memory of the board, for a reader that this process did not start."""
        return self._block

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._slots = None  # a child reads only

    def publish(self, parameters: Mapping[str, NDArray[np.float32]]) -> int:
        """Publishes the parameters. Returns their version, one more than that of the last publication."""
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
        """Returns a reader of this board."""
        return ParameterReader(self._block, self._layout)

    def close(self) -> None:
        """Ends the use of the board by this process."""
        self._slots = None
        self._block.close()


@final
class ParameterReader:
    """A reader's side: one thread of one process.

    Attributes:
        version: Version of the parameters of the last poll; 0 before the first.
        num_retries: Copies that the publisher overtook.
    """

    def __init__(self, block: SharedBlock, layout: ParameterLayout) -> None:
        self._layout = layout
        self._slots = _Slots(block, layout.num_values)
        self.version = 0
        self.num_retries = 0

    def poll(self) -> dict[str, NDArray[np.float32]] | None:
        """Returns parameters that are newer than those of the last poll, as a copy; None if there are none.

        It never blocks: after 16 copies that the publisher overtook it returns None until the next poll.
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
