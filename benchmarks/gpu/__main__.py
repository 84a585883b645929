"""`python -m benchmarks.gpu [--device cuda|cpu] [--out FOLDER]`: what a card does with a table.

Rows of 64 B to 1 MiB, five ways:
  zero-copy                     the kernels read the table's own registered memory: relive.gpu.DeviceReader.gather
  pinned copy                   one cudaMemcpyAsync of as many bytes, contiguous and pinned: the bus at its best
  gather, then copy             the core gathers into pinned memory on the host, then one copy
  table in device memory        the same kernels over a copy of the table's bytes in device memory
  torch index in device memory  torch.index_select of as many rows of a plain tensor
then transitions, stacks of Atari frames and windows; the draw of 1,000 items and the update of their priorities; and
plain torch for the same work. Bytes are distinct: a frame of two stacks of one item counts once.

Call times are wall time of the Python call until the device is done. Device times are between two CUDA events around
the launches, and contain the time that Python needs to launch. Without a card the kernels run by Triton's interpreter,
at small sizes, only to see that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

NO_GPU = 2  # exit status
RESULTS = Path(__file__).resolve().parents[1] / "results"
HEADINGS = {
    "operation": "operation",
    "row_bytes": "row bytes",
    "num_steps": "leaves",
    "batch": "batch",
    "median_us": "median us",
    "gigabytes_per_s": "GB/s",
    "device_median_us": "device us",
    "device_gigabytes_per_s": "device GB/s",
}


def measure(torch: Any, device_name: str, scale: Any) -> dict[str, Any]:
    """Everything, with the card's name."""
    from benchmarks import machine
    from benchmarks.gpu import draws, reads
    from benchmarks.gpu.device import Device

    device = Device(torch, device_name)
    start = time.monotonic()
    rows: list[dict[str, Any]] = []
    for row_bytes in scale.row_bytes:
        rows.extend(reads.row_reads(device, row_bytes, scale))
    rows.extend(reads.item_reads(device, scale))
    for num_leaves in scale.num_leaves:
        rows.extend(draws.draws(device, num_leaves, scale))
    others, skipped = draws.torchrl_tree(device, scale.num_leaves[-1], scale)
    rows += others
    rows.extend(draws.ring_buffer(device, scale))
    card = torch.cuda.get_device_name() if device.is_cuda else "none: Triton's interpreter on the CPU"
    return {
        "part": "gpu",
        "card": card,
        "machine": machine.describe(),
        "versions": {"torch": torch.__version__, "cuda": str(torch.version.cuda), "triton": _triton_version()},
        "skipped": [skipped] if skipped else [],
        "rows": rows,
        "seconds": round(time.monotonic() - start, 1),
    }


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Headings and rows as texts."""
    return [list(HEADINGS.values()), *([shown(name, row.get(name)) for name in HEADINGS] for row in rows)]


def shown(name: str, value: Any) -> str:
    """A cell of the table."""
    if name == "operation":
        return str(value)
    return f"{value:,}" if value else ""


def launches_of(rows: list[dict[str, Any]]) -> str:
    """The launches of the calls that were looked into, one line each."""
    lines = []
    for row in rows:
        if "launches_us" in row:
            parts = ", ".join(f"{name} {time_us}" for name, time_us in row["launches_us"].items())
            lines.append(f"{row['operation']}, {row['batch']} items: us between events around each launch: {parts}\n")
    return "".join(lines)


def save(values: dict[str, Any], folder: Path) -> None:
    """Writes gpu.json, and gpu.md for readers."""
    from benchmarks.tables import markdown_table

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(values, indent=1) + "\n")
    title = f"# Reading a table on a GPU\n\n{values['card']}; {values['machine']['cpu']}.\n\n"
    (folder / "gpu.md").write_text(title + markdown_table(lines_of(values["rows"]), right_from=1))


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="What a card does with a table.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="where gpu.json and gpu.md go")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import torch

        import relive.gpu  # noqa: F401
    except ModuleNotFoundError as missing:
        print(f"nothing measured: {missing}", file=sys.stderr)
        return NO_GPU
    if options.device == "cuda" and not torch.cuda.is_available():
        print("nothing measured, nothing written: torch sees no CUDA GPU on this machine", file=sys.stderr)
        return NO_GPU
    from benchmarks.gpu.device import SMALL, Scale
    from benchmarks.tables import aligned

    values = measure(torch, options.device, Scale() if options.device == "cuda" else SMALL)
    save(values, options.out)
    print(f"{values['card']}\n\n{aligned(lines_of(values['rows']))}\n{launches_of(values['rows'])}")
    for reason in values["skipped"]:
        print(f"skipped: {reason}")
    print(f"saved in {options.out}/gpu.json, {values['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
