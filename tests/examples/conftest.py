"""Examples import their helpers by plain names, as they do when a user runs them."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(FOLDER))
