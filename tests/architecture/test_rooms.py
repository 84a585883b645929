"""The core's rooms: includes go down only, and every file lies in a room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "cpp" / "relive"

# From the ground up. A file may include its own room and those before it.
ROOMS = ["words", "index", "pages", "read", "tiers", "table", "save"]
INCLUDE = re.compile(r'^#include "relive/(?:(\w+)/)?(\w+\.hpp)"', re.MULTILINE)


# The table's room, from the ground up. A file may include its own floor and those below.
# - The handle (table) includes none of the code that works with it. Code that reads frames includes none of the tiers.
# - A draw is its call (draw_call), the rows that are missing (missing_rows), its waits, its rounds without the lock and
#   with pages pinned, and the batch (draw_batch).
# - A writer is its columns (writer_columns, start_values), the state of a lane (writer_lane), the steps of a call, and
#   the handle (writer).
TABLE = [
    {"timed_mutex", "uncut_lanes", "kept_file"},
    {"handles", "table", "create", "attach", "probe"},
    {"credits", "waiting"},
    {"claims"},
    {"draw_call", "missing_rows", "by_key", "staged_source"},
    {"draw_waits"},
    {"draw_rounds", "claim_keys"},
    {"draw_pinned"},
    {"draw_batch"},
    {"tiered"},
    {"reading", "changing", "insert", "complete", "settings", "exponent", "inspect", "listing", "hooks"},
    {"step_block", "writer_columns"},
    {"writer_lane"},
    {"start_values", "under_way"},
    {"writer_admission"},
    {"writer_check", "writer_room", "writer_rows"},
    {"writer_commit", "writer_ends", "writer_abandon"},
    {"writer"},
]


def files() -> list[Path]:
    return sorted(path for path in CORE.rglob("*.[ch]pp"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(CORE)))
def test_includes_go_down_only(path: Path) -> None:
    here = path.parent.name
    assert here in ROOMS, f"{path.name} lies in no room"
    for room, name in INCLUDE.findall(path.read_text()):
        assert room in ROOMS, f"{path.name} includes {name}, which lies in no room"
        assert ROOMS.index(room) <= ROOMS.index(here), f"{path.name}: {here} includes {room}/{name}, which is above it"


@pytest.mark.parametrize("path", sorted((CORE / "table").iterdir()), ids=lambda path: path.name)
def test_the_table_room_has_floors(path: Path) -> None:
    floor = {name: height for height, names in enumerate(TABLE) for name in names}
    assert path.stem in floor, f"{path.name} stands on no floor of the table's room"
    for room, name in INCLUDE.findall(path.read_text()):
        below = floor.get(name.removesuffix(".hpp"), -1) if room == "table" else -1
        assert below <= floor[path.stem], f"{path.name} includes {name}, which stands above it"


@pytest.mark.parametrize("path", sorted((CORE / "table").iterdir()), ids=lambda path: path.name)
def test_the_table_room_has_no_friends(path: Path) -> None:
    assert "friend" not in path.read_text()


def test_nobody_but_the_index_room_names_a_tree() -> None:
    """Only the index room knows the meaning of a leaf: trees and leaf states have no other user."""
    named = re.compile(r"\b(Tree::|Tree&|trees_\b|states_\b|set_leaf\b|leaf\(|IndexView\b)")
    allowed = {"tree.hpp", "tree.cpp", "region.hpp", "region.cpp", "layout.cpp", "geometry_check.cpp"}  # where it lies
    allowed |= {"ranks.hpp", "ranks.cpp"}  # what follows from it, beside its inner nodes
    allowed.add("eviction_order.cpp")  # a tree of its own, over pages
    allowed.add("held.hpp")  # the list of changed leaves, which an IndexView alone fills
    users = {
        str(path.relative_to(CORE))
        for path in files()
        if path.parent.name != "index" and path.name not in allowed and named.search(path.read_text())
    }
    assert not users, f"{sorted(users)} name a tree or a leaf's state"


def test_only_the_lock_makes_its_token() -> None:
    """A Held is made where the lock is taken, or where no other process can be, so its users are under the lock."""
    makers = {path.name for path in files() if re.search(r"\bHeld held_?\(|held_\(door", path.read_text())}
    assert makers <= {"lock.hpp", "lock.cpp"}, makers
