"""A region whose header was damaged, a bit at a time: a call that attaches or lists it raises an error, or succeeds.

tests/cpp/test_damaged_header.cpp opens a region with each bit of its header changed. Here are the calls of a user:

- with two bits of each byte of the first words, and of the words that a table changes while it lives;
- with one bit in 16 bytes of what lies between, which a checksum covers.

`make test-all` changes every bit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes.shm import needs_shared_memory

pytestmark = needs_shared_memory
TESTS = str(Path(__file__).resolve().parents[1])

# A process of its own, for what is tested is that it lives.
PROGRAM = """
import mmap, os, sys
sys.path.insert(0, sys.argv[1])
import relive
from processes.tools import checked_step, checked_table
from relive import _core, errors
name, way, extent, path = sys.argv[2], sys.argv[3], sys.argv[4], "/dev/shm/relive-" + sys.argv[2]
table = checked_table(name, capacity=64, max_lanes=2)
writer = table.writer()
for number in range(20):
    writer.append(**checked_step(number))
with open(path, "rb") as file:
    whole = file.read()  # as a kill would leave it: no reader removes it
writer.close()
header = table.core.geometry["structs"]["header"]
table.close()

first_live = header["policy_version"] - 320  # before the first word that a table changes while it lives
num_bytes = 4096 if way == "writer" else header["num_bytes"]
assert 4096 < first_live < header["num_bytes"]

def is_taken(byte, bit):
    if extent == "all":
        return True
    if byte < 256 or byte >= first_live:
        return (byte + bit) % 4 == 0
    group = byte // 16
    return (byte % 16, bit) == (group % 16, group // 16 % 8)

bits = [(byte, bit) for byte in range(num_bytes) for bit in range(8) if is_taken(byte, bit)]

def lay_out():
    with open(path, "wb") as file:
        file.write(whole)
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)

def attach_reader():
    with relive.attach(name, timeout_s=1.0, read_only=True) as reader:
        reader.stats()

def attach():
    with relive.attach(name, timeout_s=1.0) as last:  # alone: recovers
        last.stats()

call = {"reader": attach_reader, "writer": attach, "listed": lambda: _core.probe(path)}[way]
region, refused = lay_out(), 0
for byte, bit in bits:
    region[byte] ^= 1 << bit
    try:
        call()
    except errors.ReliveError:
        refused += 1
    if os.path.exists(path):
        region[byte] ^= 1 << bit
    else:
        region = lay_out()
os.unlink(path)
print(refused, sum(256 <= byte < first_live for byte, _ in bits))
"""
WAYS = ("reader", "writer", "listed")


@pytest.mark.parametrize(
    ("way", "extent"),
    [*((way, "some") for way in WAYS), *(pytest.param(way, "all", marks=pytest.mark.thorough) for way in WAYS)],
)
def test_every_bit_of_a_header(shm_name: Any, way: str, extent: str) -> None:
    """Nearly every one is of the part that never changes, which has a checksum."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, TESTS, shm_name(), way, extent], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    refused, covered = map(int, done.stdout.split())
    assert refused >= covered >= (8 * 1000 if extent == "all" else 200)
