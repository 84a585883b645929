"""The checksum of saves against a plain one, over every way in which the core divides its bytes."""

from __future__ import annotations

import random

from relive import _core

POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected (RFC 3720, appendix B.4)


def plain(data: bytes, start: int = 0) -> int:
    state = start ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (POLYNOMIAL if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_the_value_of_the_standard() -> None:
    assert _core.crc32c(b"123456789") == 0xE3069283


def test_every_length_near_a_division() -> None:
    data = random.Random(0).randbytes(10_000)
    for middle in (0, 8, 1024, 3072, 6144, 9216):
        for length in range(max(0, middle - 9), middle + 10):
            assert _core.crc32c(data[:length]) == plain(data[:length]), length


def test_parts_at_any_address_continue() -> None:
    rng = random.Random(1)
    data = rng.randbytes(9_000)
    for _ in range(30):
        begin, middle = rng.randrange(20), rng.randrange(20, len(data))
        first = _core.crc32c(memoryview(data)[begin:middle])
        assert _core.crc32c(memoryview(data)[middle:], first) == plain(data[begin:])


def test_a_bit_anywhere_changes_it() -> None:
    rng = random.Random(2)
    data = bytearray(rng.randbytes(8_192))
    right = _core.crc32c(bytes(data))
    for _ in range(200):
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        wrong = _core.crc32c(bytes(data))
        assert wrong != right
        right = wrong
