"""The core's rooms: includes go down only, and every file lies in a room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "cpp" / "relive"

# From the ground up. A file may include its own room and those before it.
ROOMS = ["words", "index", "pages", "read", "tiers", "table"]
# The tier still asks the table for its lock and its hooks.
STILL_ABOVE = {("tiers/tier.cpp", "table/table.hpp"), ("tiers/staging_deliver.cpp", "table/table.hpp")}
INCLUDE = re.compile(r'^#include "relive/(?:(\w+)/)?(\w+\.hpp)"', re.MULTILINE)


def files() -> list[Path]:
    return sorted(path for path in CORE.rglob("*.[ch]pp"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(CORE)))
def test_includes_go_down_only(path: Path) -> None:
    here = path.parent.name
    assert here in ROOMS, f"{path.name} lies in no room"
    for room, name in INCLUDE.findall(path.read_text()):
        if (f"{here}/{path.name}", f"{room}/{name}") in STILL_ABOVE:
            continue
        assert room in ROOMS, f"{path.name} includes {name}, which lies in no room"
        assert ROOMS.index(room) <= ROOMS.index(here), f"{path.name}: {here} includes {room}/{name}, which is above it"
