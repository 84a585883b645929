"""Rows read from a peer's memory without asking it: what a table gives, never a torn one. A mutant for each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from fleet.peer_memory import LocalPeer, gathered, reader_of
from fleet.torn import SPEC, Torn
from relive import errors
from relive.fleet.onesided import peer_pages
from relive.fleet.onesided.peer_layout import PeerLayout
from relive.fleet.onesided.peer_pages import PeerPages
from relive.fleet.onesided.rows import OneSidedReader
from relive.service.server.shard_session import layout_of

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

pytestmark = needs_shared_memory

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


# ---- pages that are recalled ---------------------------------------------------------------------------------------


def recalling(torn: Torn) -> tuple[np.ndarray, np.ndarray]:
    """Keys and steps of a lane whose pages, but the last one's, were read before."""
    torn.columns = LARGE
    keys, steps = torn.write(60), np.arange(60)
    assert torn.read(keys[3:50:3], steps[3:50:3]) and torn.reader.num_read == 16
    return keys, steps


def reads_of(torn: Torn) -> list[list[str]]:
    order: list[list[str]] = []
    torn.peer.before = lambda names: order.append(sorted(set(names)))
    return order


def test_large_rows_of_pages_that_are_recalled_cost_a_read_or_two_less(torn: Torn) -> None:
    keys, steps = recalling(torn)
    order = reads_of(torn)
    own = [key for key in range(3, 50, 3) if key % 8 < 7]
    assert torn.read(keys[own], steps[own])
    assert order == [["states"], ["large", "observation"], ["words"]]
    order.clear()
    names = [output[0] for output in torn.table.select(None, LARGE).core.outputs]
    drawn = torn.reader.gather(0, names, keys[own], 30.0, are_published=True)
    assert drawn.present.all() and (drawn.arrays[names.index("large")][:, 0] == steps[own]).all()
    assert order == [["large", "observation", "states"], ["words"]], "their leaves were published: in any order"
    order.clear()
    assert torn.read(keys[[5, 7]], steps[[5, 7]])
    assert len(order) == 6, "the next state of step 7 lies in a page that only links lead to"
    order.clear()
    torn.columns = ["observation", "large"]
    assert torn.read(keys[[5, 7]], steps[[5, 7]]) and len(order) == 3
    order.clear()
    torn.columns = None
    assert torn.read(keys[own], steps[own]) and order[0] == ["words"], "who needs more of a page asks for all of it"


def test_pages_that_nobody_looked_at_for_a_second_are_not_recalled(torn: Torn) -> None:
    keys, steps = recalling(torn)
    order = reads_of(torn)

    def pass_time(share: float) -> None:
        torn.reader._pages._looked_s -= share * peer_pages.RECALLED_S
        torn.reader._pages._looked_round_s -= share * peer_pages.RECALLED_S

    pass_time(1.0)
    assert torn.read(keys[[5, 9]], steps[[5, 9]]) and len(order) == 4
    pass_time(0.9)
    assert torn.read(keys[[5, 9]], steps[[5, 9]]) and len(order) == 7
    pass_time(0.9)
    assert torn.read(keys[[20]], steps[[20]]) and len(order) == 10, "the words of all pages came with those of the last"


def test_no_keys_at_all(torn: Torn) -> None:
    keys, steps = recalling(torn)
    assert torn.read(keys[:0], steps[:0]) and not torn.reader.is_spoiled


def test_items_that_went_are_gone_of_recalled_pages_too(torn: Torn) -> None:
    keys, _ = recalling(torn)
    torn.table.delete(keys[10:14])
    order = reads_of(torn)
    _, mine, (_, present) = gathered(torn.reader, torn.table, keys[[9, 10, 13, 14]], LARGE)
    assert mine.present.tolist() == present.tolist() == [True, False, False, True] and len(order) == 3
    assert not mine.arrays[0][1:3].any()


def scenario_recalled_unpublished(torn: Torn) -> bool:
    """A key that is known before it is an item's, which it becomes between two bytes; its rows had other tenants."""
    torn.columns = LARGE
    for _ in range(3):
        torn.write(60)
    torn.reader.close()
    torn.reader, torn.peer = reader_of(torn.table)
    first = torn._next
    states = np.arange(first, first + 3)
    with torn.table.writer() as writer:
        key = np.asarray([writer.append(**{name: value[0] for name, value in torn.values(states, states).items()})])
        for number in (1, 2):  # its page is looked at, by way of the item before
            last = writer.append(**{name: value[number] for name, value in torn.values(states, states).items()})
        assert torn.read(key, np.array([first])) and torn.reader.num_read == 1
        late = np.asarray([last])
        assert int(late[0]) % 8 < 7
        torn.peer.backwards = True
        step = {name: value[0] for name, value in torn.values(states + 3, states + 3).items()}
        torn.peer.middle = lambda names: torn.tore or (writer.append(**step), setattr(torn, "tore", 1))
        return torn.read(late, np.array([first + 2]))


def scenario_recalled_moved(torn: Torn) -> bool:
    keys, steps = recalling(torn)
    own = [key for key in range(3, 50, 3) if key % 8 < 7]
    torn.tears_before("observation", torn.move)
    return torn.read(keys[own], steps[own]) and torn.tore == 1


def scenario_recalled_moved_since(torn: Torn) -> bool:
    """Between two batches, and a third one looked at other pages meanwhile."""
    keys, steps = recalling(torn)
    torn.move()
    good = torn.read(keys[[1]], steps[[1]])
    return good and torn.read(keys[[9, 20, 41]], steps[[9, 20, 41]])


def scenario_recalled_reused(torn: Torn) -> bool:
    """Old keys, of pages whose words are recalled as those of new ones."""
    keys, steps = recalling(torn)
    torn.reuse()
    torn.write(60)
    first, new = torn._next, np.asarray(torn.write(60))
    at = [1, 20, 41]
    pages, rows = (part.tolist() for part in torn.reader._layout.parts_of(new)[:2])
    again = [number for number in range(50) if pages[number] in (0, 2, 5) and rows[number] < 7]
    assert {pages[number] for number in again} == {0, 2, 5}, "the pages of the old keys"
    assert torn.read(new[again], np.arange(first, first + 60)[again])
    return torn.read(keys[at], steps[at])


@pytest.mark.parametrize(
    "scenario",
    [
        scenario_recalled_moved,
        scenario_recalled_moved_since,
        scenario_recalled_reused,
        scenario_recalled_unpublished,
    ],
)
def test_what_is_recalled_and_not_so_any_more_is_read_anew(torn: Torn, scenario: Callable[[Torn], bool]) -> None:
    assert scenario(torn)


# ---- mutants: the same tears, a rule taken away --------------------------------------------------------------------


def no_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PeerPages, "changed", lambda self, pages, ends, are_recalled=False: np.zeros(len(pages.ids), np.bool_)
    )


def states_with_rows(patch: pytest.MonkeyPatch) -> None:
    """As though every key were a draw's."""
    real = OneSidedReader._attempt_recalled
    patch.setattr(OneSidedReader, "_attempt_recalled", lambda self, *arguments: real(self, *arguments[:-1], True))


def all_stay_known(patch: pytest.MonkeyPatch) -> None:
    """What the second look tells of a recalled page is forgotten at once."""
    patch.setattr(PeerPages, "_look", lambda self, cells, time_s: self._looked_s.__setitem__(cells, np.inf))
    deaf_second_look(patch)


def deaf_second_look(patch: pytest.MonkeyPatch) -> None:
    """It looks, recalls, and says that all is well."""
    whole = PeerPages.changed
    patch.setattr(PeerPages, "changed", lambda self, *given, **how: whole(self, *given, **how) & False)


def own_page_only(patch: pytest.MonkeyPatch) -> None:
    whole = PeerPages.changed

    def changed(self: Any, pages: Any, ends: float, are_recalled: bool = False) -> Any:
        told = whole(self, pages, ends, are_recalled)
        told[1:] = False
        return told

    patch.setattr(PeerPages, "changed", changed)


def word_last(patch: pytest.MonkeyPatch) -> None:
    """The words that the second look is compared with are read when frames are here."""
    real = PeerPages.read_directory

    def directory(self: Any, plan: Any, pages: Any, items: Any, ends: float) -> Any:
        told = real(self, plan, pages, items, ends)
        self._read([self._words.move(pages.ids)], ends)
        pages.words[:] = self._words.values[pages.ids]
        return told

    patch.setattr(PeerPages, "read_directory", directory)


def any_link(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeerPages, "_is_it", staticmethod(lambda same_page, is_used, same_generation: same_page))


def any_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peer_pages, "PUBLISHED", 1 << 16)


def any_generation(patch: pytest.MonkeyPatch) -> None:
    """A key's generation is not compared with its page's."""
    patch.setattr(PeerPages, "is_alive", staticmethod(lambda is_used, found, wanted: is_used))


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
    "R1: any generation is a recalled page's": (any_generation, scenario_recalled_reused),
    "R2: leaf states of recalled pages come with the rows": (states_with_rows, scenario_recalled_unpublished),
    "R5: no second look at recalled pages": (deaf_second_look, scenario_recalled_moved),
    "R5: no second look at pages that moved since": (all_stay_known, scenario_recalled_moved_since),
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
    wrong = {"num_pages": 1 << 40, "words_offset": -8, "page_len": 7, "frame_bytes": 1 << 50, "frames_per_slab": 0}
    for name, value in wrong.items():
        with pytest.raises(errors.BadMessage):
            PeerLayout.from_told(told | {"geometry": told["geometry"] | {name: value}})
    for nonsense in ({}, {"geometry": {"format_version": 14}}, {"geometry": None}, told | {"columns": [{}]}):
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
        assert layout_of(table.core)["geometry"]["format_version"] == 14
        assert isinstance(LocalPeer(table).progress, str)
