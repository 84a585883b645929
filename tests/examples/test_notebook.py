"""The notebook runs from its first cell to its last, in one process and without a kernel, and learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

for _module in ("torch", "gymnasium", "matplotlib"):
    pytest.importorskip(_module, reason=f"the notebook needs {_module}")

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.thorough
def test_every_cell_runs() -> None:
    import matplotlib

    matplotlib.use("Agg")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            assert not cell["outputs"], "outputs are not kept in the repository"
    assert sum(names["lengths"][-10:]) / 10 > 40.0, "random actions reach 22 steps"
