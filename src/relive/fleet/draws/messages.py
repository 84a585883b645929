"""The messages of the ranks of a GroupReader, and batches and keys as bytes. No exchange, and no table."""

from __future__ import annotations

import math
import pickle
import struct
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.errors import DeadlineExceeded

__all__ = [
    "FAILED",
    "GOOD",
    "LATE",
    "Keys",
    "Message",
    "packed",
    "packed_keys",
    "tell_left",
    "unpacked",
    "unpacked_keys",
]

Bytes = npt.NDArray[np.uint8]

GOOD, LATE, FAILED = 0, 1, 2  # the state of the call on a rank
# Kind of the message, step of the call; digests of the arguments and of the table's regions; state, number, leader,
# whether keys travel.
_HEAD = struct.Struct("<4sI8s8sBqH?")
_KIND = b"rlGR"  # other messages over the same group, such as those of draws, begin with other bytes
_MAX_REASON = 500  # bytes of an error's text
_ALIGNED = 64


class Message(NamedTuple):
    """The bytes that a rank sends in one all_gather of a call.

    `number` and `body` belong to the step. `body` is the text of the error if the call failed on the rank.
    """

    step: int
    asked: bytes  # digest of the arguments
    regions: bytes  # digest of the regions that the rank reads; zeros if it reads none, or does not know them
    leader: int
    by_keys: bool
    status: int = GOOD
    number: int = 0
    body: bytes = b""

    def of(self, error: BaseException) -> Message:
        """The same message of a rank on which the call failed."""
        status = LATE if isinstance(error, DeadlineExceeded) else FAILED
        return self._replace(status=status, body=f"{type(error).__name__}: {error}".encode()[:_MAX_REASON])

    @property
    def reason(self) -> str:
        """The text of the error."""
        return self.body.decode(errors="replace")

    def pack(self) -> bytes:
        """The message as bytes."""
        fields = self.step, self.asked, self.regions, self.status, self.number, self.leader, self.by_keys
        return _HEAD.pack(_KIND, *fields) + self.body

    @classmethod
    def unpack(cls, told: bytes) -> Message | None:
        """The message in these bytes. None: the bytes belong to another kind of call."""
        if len(told) < _HEAD.size or not told.startswith(_KIND):
            return None
        _, step, asked, regions, status, number, leader, by_keys = _HEAD.unpack_from(told)
        return cls(step, asked, regions, leader, by_keys, status, number, told[_HEAD.size :])


class Keys(NamedTuple):
    """The keys and probabilities from which a rank gathers a batch, and the seconds that the leader had left."""

    item_keys: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    num_live_items: int
    left_s: float = math.inf


def packed_keys(keys: Keys) -> Bytes:
    """The keys as bytes: 16 an item, and 16."""
    heads = np.array([keys.num_live_items], np.int64), np.array([keys.left_s]).view(np.int64)
    return np.concatenate([*heads, keys.item_keys, keys.probabilities.view(np.int64)]).view(np.uint8)


def tell_left(packed: Bytes, left_s: float) -> None:
    """Writes the seconds that the leader has left into the bytes of keys."""
    packed.view(np.float64)[1] = left_s


def unpacked_keys(told: Bytes) -> Keys:
    """The keys in these bytes."""
    numbers = told.view(np.int64)
    count = len(numbers) // 2 - 1
    item_keys, probabilities = numbers[2 : count + 2], numbers[count + 2 :].view(np.float64)
    return Keys(item_keys, probabilities, int(numbers[0]), float(numbers.view(np.float64)[1]))


def packed(batch: Any) -> Bytes:
    """The batch as bytes: the sizes of all parts, the pickle, then the arrays, each at a multiple of 64 bytes."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    parts = [np.frombuffer(head, np.uint8), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
    sizes = np.array([len(parts), *map(len, parts)], np.int64)
    ends = _ends(sizes)
    whole = np.empty(ends[-1], np.uint8)
    whole[: sizes.nbytes] = sizes.view(np.uint8)
    for part, end in zip(parts, ends[1:], strict=True):
        whole[end - _padded(len(part)) : end][: len(part)] = part
    return whole


def unpacked(told: Bytes) -> Any:
    """The batch in these bytes."""
    sizes = told[:8].view(np.int64)
    sizes = told[: 8 * (int(sizes[0]) + 1)].view(np.int64)
    parts = [
        told[end - _padded(int(size)) : end][: int(size)] for size, end in zip(sizes[1:], _ends(sizes)[1:], strict=True)
    ]
    return pickle.loads(parts[0].tobytes(), buffers=parts[1:])


def _ends(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Where the sizes and each part after the sizes end, in bytes."""
    return list(accumulate(_padded(int(size)) for size in (sizes.nbytes, *sizes[1:])))


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
