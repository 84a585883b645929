"""Processes of training start with torch imported: see tests/warm.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def started_warm(processes_start_warm: None) -> None: ...
