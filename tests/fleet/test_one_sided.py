"""Rows read from a peer's memory without asking it: what a table gives, never a torn one. A mutant for each rule."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from fleet.peer_memory import LocalPeer, gathered, reader_of
from relive import errors
from relive._core import RegionHold
from relive.fleet import one_sided
from relive.fleet.one_sided import OneSidedReader
from relive.fleet.peer_layout import PeerLayout
from relive.service.shard_session import layout_of

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

pytestmark = needs_shared_memory

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((20, 20), "uint8", kind="state"),
        "place": relive.ArraySpec((5,), "float32", kind="state"),
        "large": relive.ArraySpec((300,), "float32"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)
STATELESS = relive.StepSpec({"large": relive.ArraySpec((70,), "int64"), "action": relive.ArraySpec((), "int64")})
STACKS = {"observation": 4, "place": 2}
INDEXES = {
    "one": relive.Index(relive.Transitions()),
    "three": relive.Index(
        relive.Transitions(n_step=3, gamma=0.9, stack=STACKS), relive.Prioritized(priority_exponent=0.6)
    ),
    "zeros": relive.Index(relive.Transitions(n_step=2, stack={"observation": 3}, stack_pad="zeros")),
    "sequences": relive.Index(relive.Sequences(6, burn_in=2, period=2, at_end="shift")),
    "crossing": relive.Index(relive.Sequences(5, burn_in=3, period=3, at_end="cross")),
    "time first": relive.Index(relive.Sequences(6, time_major=True)),
    "episodes": relive.Index(relive.Episodes(30, too_long="tail")),
}


def fill(table: relive.Table, num_steps: int, seed: int = 0) -> None:
    """Three lanes, episodes that end in every way, some steps with a discount of their own."""
    rng = np.random.default_rng(seed)
    has_state = bool(table.spec.state_columns)

    def values(lanes: int, prefix: str = "") -> dict[str, Any]:
        if not has_state:
            return {}
        return {
            f"{prefix}observation": rng.integers(0, 256, (lanes, 20, 20)),
            f"{prefix}place": rng.random((lanes, 5)),
        }

    with table.writer(num_lanes=3) as writer:
        for step in range(num_steps):
            writer.set_policy_version(step // 10)
            more: dict[str, Any] = {"discount": rng.random(3)} if step % 7 == 0 else {}
            if has_state:
                more |= values(3) | {"large": rng.random((3, 300)), "reward": rng.random(3)}
            else:
                more |= {"large": rng.integers(0, 1 << 40, (3, 70)), "truncated": rng.random(3) < 0.05}
            writer.append(action=np.full(3, step), **more)
            if has_state and step % 9 == 5:
                lane = int(rng.integers(0, 3))
                writer.end_episode(
                    lanes=[lane], terminated=bool(step % 2), truncated=not step % 2, **values(1, "next_")
                )
    table.set_policy_version(num_steps)


@pytest.fixture
def table(shm_name: Any) -> Iterator[relive.Table]:
    with relive.Table(SPEC, 400, INDEXES, max_lanes=4, storage=relive.SharedMemory(shm_name())) as one:
        fill(one, 300)
        yield one


@pytest.mark.parametrize("index", INDEXES)
def test_every_kind_of_item_is_what_the_table_gives(table: relive.Table, index: str) -> None:
    reader, peer = reader_of(table)
    keys = np.concatenate(list(table.keys(index=index)))
    is_step = isinstance(INDEXES[index].items, relive.Transitions)
    more = ["policy_version", "staleness", "lane", "num_steps", "observation", *(["episode_step"] if is_step else [])]
    for columns in (None, more, ["large"], ["observation", *(["next_observation"] if is_step else [])]):
        for some in (keys, keys[::-7], keys[:1]):
            names, mine, (arrays, present) = gathered(reader, table, some, columns, index)
            assert present.all() and mine.present.all() and not len(mine.unsettled)
            for name, own, expected in zip(names, mine.arrays, arrays, strict=True):
                assert own.dtype == expected.dtype and np.array_equal(own, expected), name
    assert reader.num_torn == 0
    assert peer.bytes < 40 * len(keys) * 20_000, "it reads what a window may need, not the region"
    reader.close()


def test_columns_without_states_and_longer_pages(shm_name: Any) -> None:
    indexes = {"one": relive.Index(relive.Transitions()), "windows": relive.Index(relive.Sequences(9))}
    with relive.Table(STATELESS, 4000, indexes, max_lanes=4, storage=relive.SharedMemory(shm_name())) as table:
        assert table.core.geometry["page_len"] == 64
        fill(table, 1500)
        reader, _ = reader_of(table)
        for index in indexes:
            keys = np.concatenate(list(table.keys(index=index)))
            names, mine, (arrays, present) = gathered(reader, table, keys, None, index)
            assert present.all() and mine.present.all()
            for name, own, expected in zip(names, mine.arrays, arrays, strict=True):
                assert np.array_equal(own, expected), name
        reader.close()


def test_items_that_are_gone_read_as_zero(table: relive.Table) -> None:
    reader, _ = reader_of(table)
    keys = np.concatenate(list(table.keys(index="one")))
    table.delete(keys[::2])
    _, mine, (arrays, present) = gathered(reader, table, keys, None, "one")
    assert mine.present.tolist() == present.tolist() and not mine.present[::2].any()
    assert all(np.array_equal(own, expected) for own, expected in zip(mine.arrays, arrays, strict=True))
    fill(table, 300, seed=1)  # all of them go, pages and all
    _, mine, _ = gathered(reader, table, keys, None, "one")
    assert not mine.present.any() and not any(array.any() for array in mine.arrays)
    reader.close()


def test_arrays_stay_what_they_were(table: relive.Table) -> None:
    """A batch is its holder's as long as it is held; memory that comes back is used again."""
    reader, _ = reader_of(table)
    keys = np.concatenate(list(table.keys(index="one")))
    batches = [gathered(reader, table, keys[first : first + 32], ["observation"], "one") for first in range(0, 320, 32)]
    for _, mine, (arrays, _) in batches:
        assert np.array_equal(mine.arrays[0], arrays[0])
    addresses = set()
    for _ in range(20):
        _, mine, _ = gathered(reader, table, keys[:32], ["observation"], "one")
        addresses.add(mine.arrays[0].__array_interface__["data"][0])
        del mine
    assert len(addresses) <= 3
    reader.close()


# ---- tears ---------------------------------------------------------------------------------------------------------


class Torn:
    """One lane of steps that say who they are, and changes of the table at a chosen moment of a read."""

    def __init__(self, name: str) -> None:
        index = relive.Index(relive.Transitions())
        self.table = relive.Table(SPEC, 64, index, max_lanes=2, storage=relive.SharedMemory(name))
        assert self.table.core.geometry["page_len"] == 8
        self._writer = self.table.writer()
        self._next = 0
        self.reader, self.peer = reader_of(self.table)
        self.tore = 0

    def write(self, count: int) -> np.ndarray:
        steps = np.arange(self._next, self._next + count)
        self._next += count
        return np.asarray(self._writer.extend(**self.values(np.append(steps, self._next), steps)))

    @staticmethod
    def values(states: np.ndarray, steps: np.ndarray) -> dict[str, Any]:
        return {
            "observation": np.broadcast_to((states % 251)[:, None, None], (len(states), 20, 20)),
            "place": np.broadcast_to(states[:, None], (len(states), 5)),
            "large": np.broadcast_to(steps[:, None], (len(steps), 300)),
            "action": steps,
            "reward": steps % 7,
        }

    def tears_before(self, area: str, change: Callable[[], Any], occurrence: int = 0) -> None:
        """The change happens once, before the read of an area begins (the occurrence-th of them)."""
        seen = -1

        def before(names: list[str]) -> None:
            nonlocal seen
            if area in names and not self.tore:
                seen += 1
                if seen == occurrence:
                    self.tore += 1
                    change()

        self.peer.before = before

    def reuse(self) -> None:
        """All rows that there were go, and their pages and frames hold others."""
        self.write(64)
        self.write(64)

    def move(self) -> None:
        """Rows move to other frames, and theirs hold others."""
        self.table.core.move_all_pages()
        self.table.core.move_all_pages()
        geometry = self.table.core.geometry
        used = self.words(np.uint32, geometry["frames_offset"], geometry["num_pages"])
        for frame in set(range(geometry["num_frames"])) - set(used.tolist()):  # what a frame's next page would write
            assert geometry["frames_per_slab"] > frame
            first = geometry["slabs_offset"] + frame * geometry["frame_bytes"]
            self.words(np.uint8, first, geometry["frame_bytes"])[:] = 0xEE

    def take_next_page(self, keys: np.ndarray) -> None:
        """Page 1 goes early, with the item before it that needs it, and is another lane's; page 0 stays."""
        self.table.delete(keys[7:16])
        geometry = self.table.core.geometry
        before = self.words(np.uint64, geometry["words_offset"], 2).copy()
        with self.table.writer() as other:
            for first in range(1000, 1320, 8):
                steps = np.arange(first, first + 8)
                more = np.asarray(other.extend(**self.values(np.append(steps, first + 8), steps)))
                now = self.words(np.uint64, geometry["words_offset"], 2)
                if now[1] >> np.uint64(18) != before[1] >> np.uint64(18) and now[1] & np.uint64(3):
                    break
                self.table.delete(more)
            else:
                raise AssertionError("page 1 never came again")
            assert now[0] == before[0]

    def words(self, dtype: Any, offset: int, count: int) -> np.ndarray:
        """Words of the region, to be changed."""
        with RegionHold(self.table.core) as hold:
            memory: Any = (ctypes.c_ubyte * (count * np.dtype(dtype).itemsize)).from_address(hold.address + offset)
        return np.frombuffer(memory, dtype)

    columns: list[str] | None = None  # that are read; None: all

    def read(self, keys: np.ndarray, steps: np.ndarray) -> bool:
        """Whether all that was handed out of these keys is what was written under them."""
        names, mine, _ = gathered(self.reader, self.table, keys, self.columns)
        batch = dict(zip(names, mine.arrays, strict=True))
        at = mine.present
        expected = self.values(steps[at], steps[at]) | {
            f"next_{name}": value
            for name, value in self.values(steps[at] + 1, steps[at]).items()
            if name in ("observation", "place")
        }
        return all(np.array_equal(batch[name][at], expected[name]) for name in names if name in expected)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()
        self.table.close()


@pytest.fixture
def torn(shm_name: Any) -> Iterator[Torn]:
    one = Torn(shm_name())
    yield one
    one.close()


# What happens when, and how often the words must tell of it.
TEARS: dict[str, Callable[[Torn], None]] = {
    "pages are reused between their words and the rest": lambda torn: torn.tears_before("frames", torn.reuse),
    "pages are reused before their rows are read": lambda torn: torn.tears_before("records", torn.reuse),
    "pages are reused before large rows are read": lambda torn: torn.tears_before("observation", torn.reuse),
    "rows move between words and frames": lambda torn: torn.tears_before("frames", torn.move),
    "rows move before they are read": lambda torn: torn.tears_before("records", torn.move),
    "rows move before large ones are read": lambda torn: torn.tears_before("observation", torn.move),
    "rows move before the words are read again": lambda torn: torn.tears_before("words", torn.move, 1),
}


LARGE = ["observation", "next_observation", "large"]  # nothing of them is asked of the mirror


@pytest.mark.parametrize("columns", [None, LARGE], ids=["all columns", "large ones"])
@pytest.mark.parametrize("tear", TEARS)
def test_what_was_torn_is_told_and_read_anew(torn: Torn, tear: str, columns: list[str] | None) -> None:
    if columns and "before they are read" in tear or "before their rows" in tear:
        pytest.skip("large rows alone are read without their records")
    torn.columns = columns
    keys, steps = torn.write(60), np.arange(60)
    chosen = np.arange(3, 50, 3)
    TEARS[tear](torn)
    assert torn.read(keys[chosen], steps[chosen])
    assert torn.tore == 1 and torn.reader.num_torn > 0
    assert torn.read(keys[chosen], steps[chosen])
    if "move" in tear:
        assert torn.reader.num_read == 2 * len(chosen)


def test_a_row_that_is_torn_within_a_read(torn: Torn) -> None:
    keys, steps = torn.write(60), np.arange(60)
    torn.peer.middle = lambda names: torn.move() if "records" in names or "observation" in names else None
    assert torn.read(keys, steps)  # as often as it is read: what never holds still is not handed out
    _, mine, _ = gathered(torn.reader, torn.table, keys, None)
    assert not mine.present[:56].any() and len(mine.unsettled) == 56  # the open page does not move


@pytest.mark.parametrize("columns", [None, LARGE], ids=["all columns", "large ones"])
def test_a_next_page_that_is_another_lanes_now(torn: Torn, columns: list[str] | None) -> None:
    """Between the links and the word that they lead to: nothing but the link's generation tells."""
    torn.columns = columns
    assert scenario_link(torn) and torn.tore == 1
    assert torn.reader.num_read == 0


def test_words_come_first_and_last(torn: Torn) -> None:
    """The order is the protocol: a word, then what lies under it, then its rows, then the word."""
    keys = torn.write(60)
    order: list[list[str]] = []
    torn.peer.before = lambda names: order.append(sorted(set(names)))
    gathered(torn.reader, torn.table, keys[[1, 10]], ["observation", "action", "lane"])
    rows = [at for at, names in enumerate(order) if "records" in names or "observation" in names]
    assert order[0] == ["words"] == order[-1]
    assert order[1] == ["frames", "pages", "states", "tails"] and min(rows) > 1
    assert all("words" not in names for names in order[1:-1] if len(names) > 1)


# ---- mutants: the same tears, a rule taken away --------------------------------------------------------------------


def no_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OneSidedReader, "_changed", lambda self, pages, ends: np.zeros(len(pages.ids), np.bool_))


def own_page_only(patch: pytest.MonkeyPatch) -> None:
    whole = OneSidedReader._changed

    def changed(self: Any, pages: Any, ends: float) -> Any:
        told = whole(self, pages, ends)
        told[1:] = False
        return told

    patch.setattr(OneSidedReader, "_changed", changed)


def word_last(patch: pytest.MonkeyPatch) -> None:
    """The words that the second look is compared with are read when frames are here."""
    real = OneSidedReader._read_directory

    def directory(self: Any, plan: Any, pages: Any, items: Any, ends: float) -> Any:
        told = real(self, plan, pages, items, ends)
        self._read([self._words.move(pages.ids)], ends)
        pages.words[:] = self._words.values[pages.ids]
        return told

    patch.setattr(OneSidedReader, "_read_directory", directory)


def any_link(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OneSidedReader, "_is_it", staticmethod(lambda same_page, is_used, same_generation: same_page))


def any_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(one_sided, "_PUBLISHED", 1 << 16)


def any_generation(patch: pytest.MonkeyPatch) -> None:
    """A key's generation is not compared with its page's."""
    patch.setattr(OneSidedReader, "_is_alive", staticmethod(lambda is_used, found, wanted: is_used))


def scenario_moved(torn: Torn, area: str = "records", occurrence: int = 0) -> bool:
    keys, steps = torn.write(60), np.arange(60)
    torn.tears_before(area, torn.move, occurrence)
    return torn.read(keys[3:50:3], steps[3:50:3])


def scenario_next_page(torn: Torn) -> bool:
    """Only the second page of a window goes under the reader, and its frame is another's."""
    keys = torn.write(24)
    torn.tears_before("observation", lambda: torn.take_next_page(keys))
    return torn.read(keys[7:8], np.array([7]))


def scenario_link(torn: Torn) -> bool:
    keys = torn.write(24)
    torn.tears_before("words", lambda: torn.take_next_page(keys), 1)
    return torn.read(keys[7:8], np.array([7]))


def scenario_deleted(torn: Torn) -> bool:
    keys = torn.write(60)
    torn.table.delete(keys[10:20])
    _, mine, (_, present) = gathered(torn.reader, torn.table, keys, None)
    return mine.present.tolist() == present.tolist()


def scenario_reused(torn: Torn) -> bool:
    keys, steps = torn.write(60), np.arange(60)
    torn.reuse()
    return torn.read(keys, steps)


def of_large_rows(scenario: Callable[[Torn], bool]) -> Callable[[Torn], bool]:
    """The same, of a batch of large columns alone."""

    def changed(torn: Torn) -> bool:
        torn.columns = LARGE
        return scenario(torn)

    return changed


MUTANTS: dict[str, tuple[Callable[[Any], None], Callable[[Torn], bool]]] = {
    "R1: the word is read when the frames are here": (word_last, lambda torn: scenario_moved(torn, "words", 1)),
    "R1: any generation is the key's": (any_generation, scenario_reused),
    "R2: a leaf state that is no item's": (any_state, scenario_deleted),
    "R3: a link to a page that is another's now": (any_link, scenario_link),
    "R3: such a link, large rows": (any_link, of_large_rows(scenario_link)),
    "R5: no second look, large rows": (no_second_look, of_large_rows(lambda torn: scenario_moved(torn, "observation"))),
    "R5: no second look at the words": (no_second_look, scenario_moved),
    "R5: no second look at large rows": (no_second_look, lambda torn: scenario_moved(torn, "observation")),
    "R5: a look at the item's own page alone": (own_page_only, scenario_next_page),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_taken_away_shows(name: str, shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant, scenario = MUTANTS[name]
    sound = Torn(shm_name())
    try:
        assert scenario(sound)
    finally:
        sound.close()
    mutant(monkeypatch)
    broken = Torn(shm_name())
    try:
        assert not scenario(broken), "the rule was taken away and nobody saw it"
    finally:
        broken.close()


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_regions_that_are_not_read(table: relive.Table, shm_name: Any) -> None:
    told = layout_of(table.core)
    other = told | {"geometry": told["geometry"] | {"format_version": 9}}
    with pytest.raises(errors.FormatMismatch, match="format version is 9"):
        PeerLayout.from_told(other)
    for name, value in (("num_pages", 1 << 40), ("words_offset", -8), ("page_len", 7), ("frame_bytes", 1 << 50)):
        with pytest.raises(errors.BadMessage):
            PeerLayout.from_told(told | {"geometry": told["geometry"] | {name: value}})
    for nonsense in ({}, {"geometry": {"format_version": 10}}, {"geometry": None}, told | {"columns": [{}]}):
        with pytest.raises(errors.BadMessage):
            PeerLayout.from_told(nonsense)
    spec = relive.StepSpec(
        {"core": relive.ArraySpec((100,), "float32", kind="start"), "action": relive.ArraySpec((), "int64")}
    )
    with (
        relive.Table(spec, 400, relive.Index(relive.Sequences(4)), storage=relive.SharedMemory(shm_name())) as starts,
        pytest.raises(errors.InvalidConfig, match="kind start"),
    ):
        reader_of(starts)


def test_a_frame_that_cannot_be_is_not_read(torn: Torn) -> None:
    """Torn directories lead nowhere outside of the region."""
    keys, steps = torn.write(60), np.arange(60)
    frames = torn.words(np.uint32, torn.table.core.geometry["frames_offset"], 8)
    whole = frames.copy()

    def tear(names: list[str]) -> None:
        frames[:] = 2**31 if "frames" in names and not torn.tore else whole
        torn.tore += "frames" in names

    torn.peer.before = tear
    gathered(torn.reader, torn.table, keys, None)
    frames[:] = whole
    torn.peer.before = lambda names: None
    assert torn.read(keys, steps)


def test_a_reader_whose_bytes_do_not_come_is_spoiled(torn: Torn) -> None:
    keys = torn.write(20)

    def late(names: list[str]) -> None:
        if "records" in names:
            raise errors.DeadlineExceeded("bytes of a peer", "none", 1.0)

    torn.peer.before = late
    with pytest.raises(errors.DeadlineExceeded):
        gathered(torn.reader, torn.table, keys, None)
    assert torn.reader.is_spoiled


def test_the_peer_is_this_format() -> None:
    with relive.Table(STATELESS, 400) as table:
        assert layout_of(table.core)["geometry"]["format_version"] == 10
        assert isinstance(LocalPeer(table).progress, str)
