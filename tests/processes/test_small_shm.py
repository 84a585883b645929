"""A 64 MB /dev/shm, as containers have it: a clear error that names the way out, never a bus error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes.shm import needs_shared_memory

pytestmark = needs_shared_memory
TESTS = str(Path(__file__).resolve().parents[1])

TOO_LARGE = """
import relive
from contract.tools import plain_spec
spec = plain_spec(frame=relive.ArraySpec((84, 84), "uint8"))
try:
    relive.Table(spec, 100_000, storage=relive.SharedMemory("large"))
except relive.errors.StorageFull as error:
    assert error.needs_bytes > error.has_bytes > 0 and "shm-size" in str(error), error
    print("refused")
import os
assert os.listdir("/dev/shm") == []
"""

FILLED_BY_OTHERS = """
import os
import numpy as np
import relive
from contract.tools import plain_spec
spec = plain_spec(frame=relive.ArraySpec((84, 84), "uint8"))
table = relive.Table(spec, 6000, storage=relive.SharedMemory("grows"), max_lanes=2)
with open("/dev/shm/somebody-else", "wb") as other:
    free = os.statvfs("/dev/shm").f_bavail * 4096
    os.posix_fallocate(other.fileno(), 0, free - 8192)
writer, keys = table.writer(), []
try:
    for t in range(6000):
        columns = {"observation": np.full(2, t), "action": t, "reward": 0.0, "frame": np.full((84, 84), t % 251)}
        keys.append(writer.append(**columns, next_observation=np.full(2, t + 1)))
except relive.errors.StorageFull as error:
    print("refused")
assert len(keys) > 100 and len(table) == len(keys)
table.check()
batch = table.gather(np.array(keys))
assert batch.present.all() and batch["action"].tolist() == list(range(len(keys)))
os.unlink("/dev/shm/somebody-else")
columns = {"observation": np.full(2, len(keys)), "action": 0, "reward": 0.0, "frame": np.zeros((84, 84), np.uint8)}
writer.append(**columns, next_observation=np.zeros(2))
table.check()
writer.close()
table.close()
assert os.listdir("/dev/shm") == []
"""

A_BLOCK_TOO_LARGE = """
import os
import numpy as np
import relive
from contract.tools import plain_spec
spec = plain_spec(frame=relive.ArraySpec((84, 84), "uint8"))
table = relive.Table(spec, 5000, storage=relive.SharedMemory("blocks"), max_lanes=8)
other = open("/dev/shm/somebody-else", "wb")
free = os.statvfs("/dev/shm").f_bavail * 4096
os.posix_fallocate(other.fileno(), 0, free - (2 << 20))
writer = table.writer(7)
T = 700
numbers = np.arange((T + 1) * 7).reshape(T + 1, 7)
rows = {"observation": np.repeat(numbers[..., None], 2, 2).astype("f4"), "action": numbers[:T],
        "reward": np.zeros((T, 7)), "frame": np.zeros((T, 7, 84, 84), np.uint8)}
try:
    writer.extend(**rows)
except relive.errors.StorageFull as error:
    assert error.stored == 0 and error.keys is None, error.stored
    print("refused")
assert len(table) == 0
table.check()
first = {name: array[:128] for name, array in rows.items()} | {"observation": rows["observation"][:129]}
keys = writer.extend(**first)
os.unlink("/dev/shm/somebody-else")
other.close()
rest = {name: array[128:] for name, array in rows.items()}
keys = np.concatenate([keys, writer.extend(**rest)]).ravel()
batch = table.gather(keys, columns=["action", "observation", "next_observation"])
assert len(table) == T * 7 and batch.present.all() and batch["action"].tolist() == list(range(T * 7))
assert (batch["next_observation"][:, 0] == np.arange(7, (T + 1) * 7)).all()
table.check()
writer.close()
table.close()
"""

OLD_ROWS_MAKE_ROOM = """
import os
import numpy as np
import relive
from contract.tools import plain_spec
spec = plain_spec(frame=relive.ArraySpec((84, 84), "uint8"))
table = relive.Table(spec, 3000, storage=relive.SharedMemory("full"), max_lanes=1)
writer = table.writer()
rows = {"observation": np.zeros((500, 2)), "action": np.arange(500), "reward": np.zeros(500),
        "frame": np.zeros((500, 84, 84), np.uint8)}
for _ in range(8):
    writer.extend(**rows)
with open("/dev/shm/somebody-else", "wb") as other:
    free = os.statvfs("/dev/shm").f_bavail * 4096
    os.posix_fallocate(other.fileno(), 0, free)
for _ in range(20):
    writer.extend(**rows)
print("refused" if len(table) == 3000 else len(table))
os.unlink("/dev/shm/somebody-else")
writer.close()
table.close()
"""


def in_small_shm(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program where /dev/shm has 64 MB; skips where this machine does not let one be made."""
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare on this machine: a small /dev/shm cannot be made")
    probe = subprocess.run([*unshare, mount], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"a small /dev/shm cannot be mounted here: {probe.stderr.strip()}")
    paths = os.pathsep.join([TESTS, *sys.path])
    return subprocess.run(
        [*unshare, f'{mount} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


PROGRAMS = {
    "too large": TOO_LARGE,
    "filled by others": FILLED_BY_OTHERS,
    "a block too large": A_BLOCK_TOO_LARGE,
    "old rows make room": OLD_ROWS_MAKE_ROOM,
}


@pytest.mark.forms(2)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_small_shared_memory(program: str) -> None:
    done = in_small_shm(program)
    assert (done.returncode, done.stdout.strip()) == (0, "refused"), done.stderr
