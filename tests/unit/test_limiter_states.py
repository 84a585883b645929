"""The counts of each limiter for an item in each of its states (docs/design/protocol-items.md, section 0)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import CapacityTooSmall, DeadlineExceeded, InvalidConfig, RequestTooLarge

TOKEN = {"token": relive.ArraySpec((), "int64")}
GROUPS = relive.Episodes(4, group_by="prompt", group_size=2, max_groups=64)
PROMPT = {
    **TOKEN,
    "prompt": relive.ArraySpec((), "int64", kind="episode"),
    "reward": relive.ArraySpec((), "float32"),
}


def table_of(index: relive.Index, spec: dict[str, Any] = TOKEN, capacity: int = 1000, **more: Any) -> relive.Table:
    return relive.Table(relive.StepSpec(spec), capacity, index, timeout_s=0, max_lanes=32, **more)


def passes(writer: Any, **row: Any) -> bool:
    try:
        writer.append(**row)
    except DeadlineExceeded:
        return False
    return True


def index_of(limiter: relive.Limiter, items: Any = None, sampler: Any = None, **more: Any) -> relive.Index:
    more = {"max_times_sampled": 1, **more}
    return relive.Index(items or relive.Transitions(), sampler or relive.Uniform(), limiter, **more)


BOTH = [relive.Queue(4), relive.StalenessBudget(0.0, 4)]


@pytest.mark.parametrize("limiter", BOTH, ids=str)
@pytest.mark.parametrize(
    "items",
    [relive.Episodes(10), relive.Sequences(2), relive.Sequences(2, period=4), relive.Episodes(10, too_long="tail")],
)
def test_items_under_way_count_from_their_first_step(limiter: relive.Limiter, items: Any) -> None:
    table = table_of(index_of(limiter, items))
    writers = [table.writer() for _ in range(6)]
    assert [passes(writer, token=0) for writer in writers] == [True] * 4 + [False] * 2
    assert passes(writers[0], token=1, terminated=True)  # it asks for nothing more
    assert not passes(writers[0], token=2)
    writers[1].abandon()
    assert passes(writers[4], token=0) and not passes(writers[5], token=0)
    writers[2].close()  # what an end cuts short may be an item all the same
    assert passes(writers[5], token=0) == (table.num_items() == 1)
    assert table.check() is None


@pytest.mark.parametrize("limiter", BOTH, ids=str)
def test_a_writer_does_not_wait_for_its_own_items(limiter: relive.Limiter) -> None:
    table = table_of(index_of(limiter, relive.Episodes(10)))
    writer = table.writer(4)
    writer.append(token=[0] * 4)
    ends = np.array([True, False, False, False])
    writer.append(token=[1] * 4, terminated=ends)
    writer.append(token=[2] * 4, terminated=ends)  # its other lanes could not go on while it waited
    assert table.num_items() == 2
    with pytest.raises(RequestTooLarge):
        table_of(index_of(limiter, relive.Episodes(10))).writer(5).append(token=[0] * 5)


@pytest.mark.parametrize("limiter", [relive.Queue(2), relive.StalenessBudget(0.0, 2)], ids=str)
def test_lanes_that_are_written_one_by_one_do_not_wait_for_each_other(limiter: relive.Limiter) -> None:
    table = table_of(index_of(limiter, relive.Episodes(9)))
    writer = table.writer(3)
    for step in range(2):
        for lane in range(3):
            writer.append(token=[step], lanes=[lane], terminated=step == 1 and lane < 2)
    assert table.num_items() == 2
    assert not passes(writer, token=[2], lanes=[0])


@pytest.mark.core_alone
@pytest.mark.parametrize("draws", [1, 2, 3, 4])
@pytest.mark.parametrize("limiter", [relive.Queue(4), relive.Queue(6), relive.StalenessBudget(0.0, 4)], ids=str)
def test_vectorised_writers_and_a_learner_go_on(limiter: relive.Limiter, draws: int) -> None:
    """A refused call stops all lanes of its writer: their open episodes do not stop another writer, too."""
    if isinstance(limiter, relive.StalenessBudget) and 4 % draws:
        pytest.skip("draws that leave a rest of each version's budget")
    chance = np.random.default_rng(draws)
    table = table_of(index_of(limiter, relive.Episodes(6)))
    writers, left = [table.writer(4) for _ in range(3)], chance.integers(1, 7, (3, 4))
    todo = [list(range(4)) for _ in writers]  # lanes that have not got their row of the present step
    drawn = 0
    for _ in range(400):
        went = False
        for writer, lanes, steps in zip(writers, todo, left, strict=True):
            num_stored = rows_stored(writer, lanes, steps[lanes] == 1)
            for lane in lanes[:num_stored]:
                steps[lane] = steps[lane] - 1 or chance.integers(1, 7)
            lanes[:] = lanes[num_stored:] or range(4)
            went |= num_stored > 0
        try:
            table.sample(draws)
            drawn, went = drawn + draws, True
            table.set_policy_version(drawn // 4)
        except DeadlineExceeded:
            pass
        assert went, table.stats().indexes["default"]
    assert table.check() is None


def rows_stored(writer: Any, lanes: list[int], ends: Any) -> int:
    """One row for each of these lanes. A call that is stopped has stored the first ones."""
    try:
        writer.append(token=[0] * len(lanes), lanes=lanes, terminated=ends)
    except DeadlineExceeded as error:
        return error.stored or 0
    return len(lanes)


def test_a_block_of_members_goes_in_parts() -> None:
    """Its own open groups need its first rows before there is room for its last ones."""
    table = table_of(index_of(relive.Queue(2), GROUPS), PROMPT)
    writer = table.writer(2)
    writer.append(token=[0, 0], prompt=[1, 2], reward=[0.0, 0.0])
    ends = np.array([[1, 1], [0, 1], [0, 0]], bool)
    rows = {"token": np.zeros((3, 2), int), "prompt": [[1, 2], [1, 2], [1, 3]], "reward": np.zeros((3, 2))}
    writer.extend(**rows, terminated=ends)
    assert table.num_items() == 1 and table.sample(1).num_items == 1


def test_a_shifted_window_counts_until_the_row_that_decides_it() -> None:
    for limiter in (relive.Queue(1), relive.StalenessBudget(0.0, 1)):
        table = table_of(index_of(limiter, relive.Sequences(4, period=6, at_end="shift")))
        writers = [table.writer() for _ in range(4)]
        for writer in writers:
            for step in range(5):
                passes(writer, token=step)
        assert table.num_items() == 1


@pytest.mark.parametrize("limiter", BOTH, ids=str)
def test_a_group_counts_once(limiter: relive.Limiter) -> None:
    table = table_of(index_of(limiter, GROUPS), PROMPT)
    writers = [table.writer() for _ in range(10)]
    first = [passes(writer, token=0, prompt=number // 2, reward=1.0) for number, writer in enumerate(writers)]
    assert first == [True] * 8 + [False] * 2
    for number in range(8):
        assert passes(writers[number], token=1, prompt=number // 2, reward=1.0, terminated=True)
    assert table.num_items() == 4 and not passes(writers[0], token=0, prompt=9, reward=0.0)
    table.sample(4)
    table.set_policy_version(1)
    assert passes(writers[0], token=0, prompt=9, reward=0.0, terminated=True)
    assert passes(writers[1], token=0, prompt=9, reward=0.0) and table.check() is None


def test_a_group_whose_members_are_not_under_way_does_not_count() -> None:
    """Its members may never come."""
    table = table_of(index_of(relive.Queue(2), GROUPS), PROMPT)
    with table.writer() as writer:
        for prompt in range(20):
            writer.append(token=0, prompt=prompt, reward=0.0, terminated=True)


@pytest.mark.parametrize("limiter", [*BOTH, relive.SamplesPerInsert(1.0, 1, 4.0)], ids=str)
def test_items_without_mass_make_room(limiter: relive.Limiter) -> None:
    table = table_of(index_of(limiter, sampler=relive.Prioritized(1.0)))
    writer = table.writer()
    keys = [int(writer.append(token=t)) for t in range(4)]
    filled = passes(writer, token=4)
    while filled and passes(writer, token=4):
        pass
    room = table.num_items()
    table.update_priorities(keys[:3], [0.0] * 3)
    for _ in range(3):
        assert passes(writer, token=5)
    assert not passes(writer, token=5) and table.num_items() == room + 3
    table.update_priorities(keys[:3], [1.0] * 3)
    assert not passes(writer, token=6) and table.check() is None
    table.update_priorities(keys[:3], [0.0] * 3)
    table.delete(keys[:3])  # gone without a mass: their room is not given twice
    assert not passes(writer, token=7) and table.check() is None


def test_a_claim_of_an_item_without_mass_counts() -> None:
    table = table_of(index_of(relive.Queue(4), sampler=relive.Prioritized(1.0), max_times_sampled=2))
    keys = table.writer().extend(token=np.arange(4))
    table.update_priorities(keys[:2], [0.0, 0.0])
    for _ in range(2):
        table.claim(relive.Draw.of(keys[:3], [0.5, 0.5, 0.5]))
        assert table.check() is None
    assert table.num_items() == 1


def test_only_the_last_of_fresh_take_room() -> None:
    table = table_of(index_of(relive.Queue(4), sampler=relive.Fresh(last=2)))
    writer = table.writer()
    for t in range(20):
        assert passes(writer, token=t)
    assert table.check() is None and sorted(table.sample(2)["token"].tolist()) == [18, 19]


def test_an_exponent_of_0_gives_every_item_a_mass() -> None:
    table = table_of(index_of(relive.Queue(4), sampler=relive.Prioritized(1.0)))
    writer = table.writer()
    keys = writer.extend(token=np.arange(4))
    table.update_priorities(keys, np.zeros(4))
    writer.extend(token=np.arange(4))
    table.set_priority_exponent(0.0)
    assert table.check() is None and not passes(writer, token=9)
    assert table.sample(4).num_items == 4


def test_what_went_unused_is_no_insert() -> None:
    """Items that left without a draw would make writers wait, and no draw could make up for them."""
    table = table_of(index_of(relive.SamplesPerInsert(1.0, 2, 8.0)))
    writer = table.writer()
    for _ in range(50):
        table.delete(writer.extend(token=np.arange(4)))
    writer.extend(token=np.arange(6))
    assert table.sample(4).num_items == 4 and table.check() is None


def test_a_draw_that_lacks_items_lets_a_writer_in() -> None:
    """Items that left after one of their three uses hold the balance above the corridor; too few uses are left."""
    table = table_of(index_of(relive.SamplesPerInsert(2.0, 1, 8.0), max_times_sampled=3))
    writer = table.writer()
    for _ in range(12):
        writer.append(token=0)
        keys = next(table.keys())
        table.claim(relive.Draw.of(keys, np.full(len(keys), 0.5)))
        table.delete(keys)
    assert passes(writer, token=1)  # the first fill
    for uses in (3, 6):
        if uses < 4:
            assert not passes(writer, token=2)
            with pytest.raises(DeadlineExceeded, match="unused"):
                table.sample(4)
            assert passes(writer, token=2)
        else:
            assert table.sample(4).num_items == 4
    assert table.check() is None


def test_a_budget_counts_from_the_version_of_an_empty_table() -> None:
    table = table_of(index_of(relive.StalenessBudget(1.0, 4)))
    table.set_policy_version(1000)
    writer = table.writer()
    assert [passes(writer, token=t) for t in range(10)] == [True] * 8 + [False] * 2
    table.sample(4)
    table.set_policy_version(1001)
    assert [passes(writer, token=t) for t in range(6)] == [True] * 4 + [False] * 2
    table.set_policy_version(3)  # set back: nothing is lost, and nothing is won
    assert not passes(writer, token=0)
    table.sample(4)
    table.set_policy_version(4)
    assert [passes(writer, token=t) for t in range(6)] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("items", [GROUPS, relive.Transitions()])
def test_a_budget_above_what_the_index_keeps_is_refused(items: Any) -> None:
    more = {} if items is GROUPS else {"max_items": 64}
    index_of(relive.StalenessBudget(1.0, 32), items, **more)
    with pytest.raises(InvalidConfig, match="items_per_version"):
        index_of(relive.StalenessBudget(1.0, 33), items, **more)
    table = table_of(index_of(relive.StalenessBudget(1.0, 32), items, **more), PROMPT)
    with pytest.raises(InvalidConfig):
        table.set_limiter(relive.StalenessBudget(1.0, 33))


def test_hindsight_keeps_the_steps_of_an_open_episode_back() -> None:
    place = relive.ArraySpec((1,), "float32", kind="state")
    spec = relive.StepSpec({"goal": place, "at": place})
    sampler = relive.Hindsight("goal", "at", max_length=50)
    relive.Table(spec, 100, relive.Index(sampler=sampler, limiter=relive.MinSize(51))).close()
    with pytest.raises(CapacityTooSmall):
        relive.Table(spec, 100, relive.Index(sampler=sampler, limiter=relive.MinSize(52)))


@pytest.mark.parametrize(
    "index",
    [
        relive.Index(sampler=relive.Hindsight("goal", "at", max_length=50), remover=relive.Reservoir(), max_items=100),
        relive.Index(sampler=relive.Hindsight("goal", "at", max_length=50), remover=relive.Uniform(), max_items=100),
        relive.Index(relive.Episodes(50), remover=relive.Lifo(), max_items=20),
        relive.Index(relive.Episodes(50), remover=relive.Uniform(), max_items=20),
        relive.Index(relive.Sequences(10, period=10), remover=relive.Lifo(), max_items=50),
        relive.Index(relive.Sequences(10, burn_in=5, period=10), remover=relive.Uniform(), max_items=50),
        relive.Index(relive.Sequences(4, period=40), remover=relive.Reservoir(), max_items=50),
        relive.Index(remover=relive.Lifo(), max_items=60, where="episode_step == 0"),
        relive.Index(
            sampler=relive.Hindsight("goal", "at", max_length=50),
            remover=relive.Uniform(),
            max_items=60,
            where="episode_step == 20",
        ),
    ],
)
def test_steps_to_hold_is_enough_for_what_items_reach(index: relive.Index) -> None:
    place = relive.ArraySpec((1,), "float32", kind="state")
    spec = relive.StepSpec({"goal": place, "at": place, **TOKEN})
    table = relive.Table(spec, index.steps_to_hold, index, max_lanes=2)
    with table.writer() as writer:
        for _ in range(120):
            writer.extend(goal=np.zeros((51, 1)), at=np.zeros((51, 1)), token=np.zeros(50, int), truncated=True)
    told = table.stats().indexes["default"]
    assert (told.num_items, told.crowded_out) == (index.max_items, 0)


@pytest.mark.parametrize("weight", ["variance", "mean"])
def test_flat_groups_differ_by_more_than_rounding(weight: Any) -> None:
    """0.1 + 0.2 and 0.3 are one reward. A group of them is flat, whatever the sums of floats say."""
    spec = {**PROMPT, "reward": relive.ArraySpec((), "float64")}
    sampler = relive.PromptGroups(weight, priority_exponent=0.0)
    table = table_of(relive.Index(GROUPS, sampler, max_times_sampled=1), spec)
    with table.writer() as writer:
        for rewards in ([0.1, 0.2], [0.3, 0.0]):
            writer.extend(token=[0, 0], prompt=[1, 1], reward=rewards, terminated=[False, True])
    assert table.stats().indexes["default"].total_mass == (1.0 if weight == "mean" else 0.0)


@pytest.mark.core_alone
@pytest.mark.parametrize("ratio", [1.3, 1.4, 0.1, 0.7, 2.2, 3.0, 5 / 3, 1e-3])
@pytest.mark.parametrize("min_size", [1, 4, 7])
def test_the_narrowest_corridor_never_stops_both_sides(ratio: float, min_size: int) -> None:
    """(1.3 + 1) / 2 has no exact number, and the bounds of the corridor are rounded."""
    limiter = relive.SamplesPerInsert(ratio, min_size, tolerance=(ratio + 1.0) / 2.0)
    with table_of(relive.Index(limiter=limiter), capacity=10_000) as table, table.writer() as writer:
        for _ in range(800):
            could_write = passes(writer, token=0)
            try:
                table.draw(1)
            except DeadlineExceeded:
                assert could_write or passes(writer, token=0)
        stats = table.stats().indexes["default"]
        assert abs(stats.sampled - ratio * stats.inserted) <= ratio * min_size + 2.0 * (ratio + 1.0)


@pytest.mark.parametrize("are_groups", [False, True])
@pytest.mark.parametrize("limiter", [relive.Queue(2), relive.StalenessBudget(1.0, 1)])
@pytest.mark.parametrize("num_before", [3, 30])
def test_an_episode_that_can_be_no_item_takes_no_room(limiter: Any, are_groups: bool, num_before: int) -> None:
    """clear() took its first steps. It goes on, and ends as no item."""
    grouped: dict[str, Any] = {"group_by": "prompt", "group_size": 1, "max_groups": 50} if are_groups else {}
    index = relive.Index(relive.Episodes(60, **grouped), limiter=limiter, max_times_sampled=1)
    with table_of(index, PROMPT) as table, table.writer() as cleared, table.writer() as other:
        for _ in range(num_before):
            cleared.append(token=0, prompt=0, reward=0)
        table.clear()
        cleared.append(token=0, prompt=0, reward=0)
        for prompt in (1, 2):
            other.append(token=0, prompt=prompt, reward=0)
            other.append(token=0, prompt=prompt, reward=0, truncated=True)
        assert not passes(other, token=0, prompt=3, reward=0)
        cleared.append(token=0, prompt=0, reward=0, truncated=True)
        assert table.num_items() == 2
        assert not passes(cleared, token=0, prompt=0, reward=0), "the next one would be an item"
        table.sample(2)
        table.set_policy_version(2)
        assert passes(cleared, token=0, prompt=0, reward=0)
        table.check()
