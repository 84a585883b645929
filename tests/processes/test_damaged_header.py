"""A region whose header was damaged, bit by bit: whoever attaches or lists it gets an error, or all is well."""

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
name, way, path = sys.argv[2], sys.argv[3], "/dev/shm/relive-" + sys.argv[2]
table = checked_table(name, capacity=64, max_lanes=2)
writer = table.writer()
for number in range(20):
    writer.append(**checked_step(number))
with open(path, "rb") as file:
    whole = file.read()  # as a kill would leave it: no reader removes it
writer.close()
num_bytes = max(4096, table.core.geometry["structs"]["header"]["num_bytes"])
table.close()

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
for byte in range(num_bytes if way != "writer" else 4096):
    for bit in range(8):
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
print(refused)
"""


@pytest.mark.parametrize("way", ["reader", "writer", "listed"])
def test_every_bit_of_a_header(shm_name: Any, way: str) -> None:
    """Nearly every one is of the part that never changes, which has a checksum."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, TESTS, shm_name(), way], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert int(done.stdout) > 8 * 1000
