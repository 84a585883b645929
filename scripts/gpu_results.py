"""Keeps the results of a run on a card: benchmarks/results/gpu.json and gpu.md.

usage: python scripts/gpu_results.py runs/gpu        the folder of `make gpu`, or the one that run.sh has filled

The folder has summary.json, gpu.json, soak.json and training.json. A part that did not pass, or a run without a card,
is refused: nothing is written. Exit status 1 then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
PARTS = {"tests": None, "soak": "soak.json", "bench": "gpu.json", "train": "training.json"}
MACHINE = ("card", "capability", "driver", "cuda", "torch", "triton", "numpy", "python", "cores")


def kept(folder: Path) -> dict[str, Any]:
    """The measurements of a folder, with the machine and the other parts. Raises ValueError for a run to refuse."""
    summary = json.loads((folder / "summary.json").read_text())
    machine = {name: summary["machine"].get(name) for name in MACHINE}
    if summary["device"] != "cuda" or not machine["card"]:
        raise ValueError("no card was used")
    bad = [name for name in PARTS if summary["parts"].get(name, {}).get("result") not in ("passed", "passed before")]
    if bad:
        raise ValueError(f"not passed: {', '.join(bad)}")
    values = json.loads((folder / "gpu.json").read_text())
    values["seconds_of_parts"] = {name: round(summary["parts"][name]["seconds"]) for name in PARTS}
    values["tests"] = summary["parts"]["tests"]["last_line"]
    values["device"] = machine
    values["soak"] = json.loads((folder / "soak.json").read_text())
    values["training"] = json.loads((folder / "training.json").read_text())["rows"]
    return values


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 1
    folder = Path(sys.argv[1])
    try:
        values = kept(folder)
    except (OSError, KeyError, ValueError) as error:
        print(f"{folder}: {error}; nothing was written", file=sys.stderr)
        return 1
    (RESULTS / "gpu.json").write_text(json.dumps(values, indent=1) + "\n")
    (RESULTS / "gpu.md").write_text((folder / "gpu.md").read_text())
    print(f"{values['device']['card']}: {RESULTS / 'gpu.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
