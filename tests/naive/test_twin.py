"""The twin itself, against transitions worked out by hand."""

from __future__ import annotations

import numpy as np

from naive.twin import NaiveItems, NaiveReplay


def make_twin() -> NaiveReplay:
    return NaiveReplay({"o": ((1,), "float32")})


def put(
    twin: NaiveReplay,
    lane: int,
    key: int,
    *,
    next_value: int | None = None,
    terminated=False,
    truncated=False,
    discount=None,
):
    state = {"o": np.float32([key])}
    following = None if next_value is None else {"o": np.float32([next_value])}
    twin.append(lane, key, state, {"reward": np.float32(key)}, following, terminated, truncated, discount)


def test_an_item_waits_for_its_bootstrap_state():
    twin = make_twin()
    lane = twin.open_lane()
    items = NaiveItems(n_step=2, gamma=0.5)
    put(twin, lane, 1)
    put(twin, lane, 2)
    assert twin.item(1, items) is None
    put(twin, lane, 3)
    item = twin.item(1, items)
    assert (item["reward"], item["discount"], item["next_o"], item["num_steps"]) == (1 + 0.5 * 2, 0.25, [3], 2)
    assert twin.live_keys(items) == {1}
    put(twin, lane, 4, next_value=9)
    assert twin.live_keys(items) == {1, 2, 3}


def test_windows_get_shorter_at_an_end_and_never_cross_it():
    twin = make_twin()
    lane = twin.open_lane()
    items = NaiveItems(n_step=3, gamma=1.0)
    put(twin, lane, 1)
    put(twin, lane, 2, terminated=True)
    put(twin, lane, 3, next_value=7, truncated=True)
    first, second, third = (twin.item(key, items) for key in (1, 2, 3))
    assert (first["reward"], first["discount"], first["num_steps"]) == (3, 0, 2) and first["next_o"] == [0]
    assert (second["reward"], second["terminated"], second["episode_step"]) == (2, True, 1)
    assert (third["discount"], third["truncated"], third["first"]) == (1, True, True) and third["next_o"] == [7]


def test_a_cut_lane_gives_its_last_row_as_bootstrap_state():
    twin = make_twin()
    lane = twin.open_lane()
    items = NaiveItems(n_step=3)
    for key in (1, 2, 3):
        put(twin, lane, key)
    assert twin.live_keys(items) == set()
    twin.close_lane(lane)
    assert twin.live_keys(items) == {1, 2} and twin.num_steps() == 2
    assert twin.item(2, items)["truncated"] and twin.item(2, items)["next_o"] == [3]


def test_a_cut_after_a_given_next_loses_nothing():
    twin = make_twin()
    lane = twin.open_lane()
    for key in (1, 2):
        put(twin, lane, key, next_value=key + 1)
    twin.close_lane(lane)
    assert twin.live_keys(NaiveItems(n_step=5)) == {1, 2}


def test_stacks_pad_at_the_first_frame():
    twin = make_twin()
    lane = twin.open_lane()
    put(twin, lane, 5, next_value=6)
    repeat = twin.item(5, NaiveItems(stack=(("o", 3),)))
    zeros = twin.item(5, NaiveItems(stack=(("o", 3),), stack_pad="zeros"))
    assert repeat["o"].ravel().tolist() == [5, 5, 5] and repeat["next_o"].ravel().tolist() == [5, 5, 6]
    assert zeros["o"].ravel().tolist() == [0, 0, 5] and zeros["next_o"].ravel().tolist() == [0, 5, 6]
