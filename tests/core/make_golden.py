"""Writes the golden region file: a small table of format version 14, and what it must say for ever.

usage: python tests/core/make_golden.py        (after a change of the format, with a new format version)
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from core.tools import COLUMNS, NAMES, gather, last_of, make_core, make_index, refuse, rows  # noqa: E402
from relive import _core  # noqa: E402
from relive.core.request import DrawRequest  # noqa: E402

HERE = Path(__file__).resolve().parent
REGION, EXPECTED = HERE / "golden.region.xz", HERE / "golden.npz"
CALLS = (1, 16, 100)
SEQUENCE = {
    "items": "sequences",
    "length": 12,
    "burn_in": 5,
    "bootstrap": 1,
    "period": 8,
    "at_end": "shift",
    "pad": "right",
    "only_ended": False,
    "only_the_last": False,
    "longest": 0,
}
DERIVED = ["terminated", "truncated", "num_steps", "policy_version", "lane"]


def make_region(path: str) -> np.ndarray:
    """Three indexes, two lanes in one page, ends of both sorts, priorities; the second lane is still in mid-episode."""
    stacked = make_index("three", n_step=3, gamma=0.5, stack={"observation": 2, "frame": 3})
    indexes = [make_index("one"), stacked, make_index("windows", gamma=0.5, **SEQUENCE)]
    table = make_core(path, indexes=indexes, capacity=300, max_lanes=2, max_participants=4, seed=77, metadata=b"golden")
    earlier = table.open_writer(1, True, refuse)  # the next one goes on in its page
    keys = [earlier.extend(rows(3000, 11), None, None, 1.0)]
    earlier.close()
    writer = table.open_writer(1, True, refuse)
    discounts = np.linspace(0.0, 1.0, 30, dtype=np.float32)  # of their own, the last one although it terminates
    keys += [writer.extend({**rows(100 * e, 40), "truncated": last_of(40)}, None, None, 1.0) for e in range(4)]
    keys.append(writer.extend({**rows(1000, 30), "terminated": last_of(30), "discount": discounts}, None, None, 1.0))
    writer.set_policy_version(9)
    keys.append(writer.extend(rows(2000, 20), None, None, 1.0))
    everything = np.concatenate(keys)
    table.update_priorities(1, everything, np.linspace(0.5, 4.0, len(everything)))
    Path(path + ".copy").write_bytes(Path(path).read_bytes())
    writer.close()
    table.close()
    return everything


def read_region(path: str, keys: np.ndarray) -> dict[str, np.ndarray]:
    """Everything a read-only handle of stream 0 says."""
    table = _core.attach_table(path, True, 0, 1.0)
    said = {}
    for index in range(3):
        names = [*NAMES, *DERIVED, *(["mask"] if index == 2 else [])]
        for name, values in gather(table, keys, names, index).items():
            said[f"gather{index}/{name}"] = values
        for call, size in enumerate(CALLS):
            _, drawn, probabilities, live = table.draw(DrawRequest(index, size), 1.0)
            said[f"draw{index}/{call}/keys"], said[f"draw{index}/{call}/probabilities"] = drawn, probabilities
            said[f"draw{index}/{call}/live"] = np.asarray(live)
    said["layout"] = np.asarray(str([sorted(column.items()) for column in table.layout]))
    table.close()
    return said


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/relive-golden"
        keys = make_region(path)
        content = Path(path + ".copy").read_bytes()
        said = read_region(path + ".copy", keys)
    REGION.write_bytes(lzma.compress(content, preset=9))
    np.savez_compressed(EXPECTED, keys=keys, **said)
    sys.stdout.write(f"{REGION.name}: {len(content)} bytes, {REGION.stat().st_size} packed; {len(COLUMNS)} columns\n")


if __name__ == "__main__":
    main()
