"""Chooses Triton's interpreter before any kernel is imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
