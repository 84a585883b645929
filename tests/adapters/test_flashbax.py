"""Buffers by Flashbax's names: alone, with numpy or jax, and compared with the library's own on the same steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import relive.adapters.flashbax as fbx
from relive import errors
from relive.adapters.errors import NotOffered, ReplacedState
from relive.adapters.flashbax import arrays

jax: Any = arrays.jax
ARRAY = np.ndarray if jax is None else jax.Array


class Step(NamedTuple):
    """One step of an environment."""

    obs: Any
    extra: Any


def steps(first: int, number: int, rows: int = 1) -> Step:
    """Steps [rows, number] that tell their row and their time."""
    times = np.broadcast_to(np.arange(first, first + number), (rows, number))
    lanes = np.broadcast_to(np.arange(rows)[:, None], (rows, number))
    return Step(
        np.stack([lanes, times], axis=-1).astype(np.float32),
        {"done": times % 7 == 6, "time": times.astype(np.int32)},
    )


def one() -> Step:
    return mapped(lambda part: part[0, 0], steps(0, 1))


def mapped(function: Any, step: Any) -> Step:
    return Step(function(step.obs), {name: function(part) for name, part in step.extra.items()})


def on(library: Any, step: Step) -> Step:
    """The step as arrays that a library takes."""
    return step if library is fbx else mapped(jax.numpy.asarray, step)


@pytest.fixture
def flashbax() -> Any:
    return pytest.importorskip("flashbax", reason="flashbax is not installed here: make test-adapters")


def compiled(library: Any, buffer: Any) -> Any:
    """The buffer; the library's with compiled functions, which are a hundred times as fast."""
    if library is fbx:
        return buffer
    return buffer.replace(add=jax.jit(buffer.add), sample=jax.jit(buffer.sample))


def key(seed: int) -> Any:
    return None if jax is None else jax.random.PRNGKey(seed)


def times(sample: Any) -> np.ndarray:
    return np.asarray(sample.experience.extra["time"])


# ---- alone ---------------------------------------------------------------------------------------------------------


def test_windows_of_rows_are_steps_that_follow_each_other() -> None:
    buffer = fbx.make_trajectory_buffer(3, 32, 5, 1, 5, max_length_time_axis=20)
    state = buffer.init(one())
    assert not buffer.can_sample(state)
    for number in range(12):
        state = buffer.add(state, steps(4 * number, 4, rows=3))
        assert bool(buffer.can_sample(state)) == (number > 0)
        assert int(state.current_index) == 4 * (number + 1) % 20 and bool(state.is_full) == (number >= 4)
    sample = buffer.sample(state, key(0))
    obs = np.asarray(sample.experience.obs)
    assert obs.shape == (32, 5, 2) and (np.diff(obs[..., 1], axis=1) == 1).all()
    assert (obs[:, :, 0] == obs[:, :1, 0]).all() and set(obs[:, 0, 0]) == {0, 1, 2}
    np.testing.assert_array_equal(np.asarray(sample.experience.extra["done"]), obs[..., 1] % 7 == 6)
    drawn = set(np.concatenate([times(buffer.sample(state, key(0)))[:, 0] for _ in range(40)]).tolist())
    assert drawn == set(range(28, 44)) and len(state.table) == 60


def test_samples_are_arrays_of_the_framework() -> None:
    buffer = fbx.make_prioritised_flat_buffer(100, 2, 8)
    state = buffer.init(one())
    for number in range(20):
        state = buffer.add(state, mapped(lambda part: part[0, 0], steps(number, 1)))
    sample = buffer.sample(state, key(0))
    first, second = sample.experience.first, sample.experience.second
    assert isinstance(first, Step) and isinstance(first.obs, ARRAY) and isinstance(sample.indices, ARRAY)
    for part, dtype in ((first.obs, np.float32), (first.extra["done"], np.bool_), (second.extra["time"], np.int32)):
        assert part.dtype == dtype
    np.testing.assert_array_equal(np.asarray(first.extra["time"]) + 1, np.asarray(second.extra["time"]))
    assert sample.indices.dtype == np.int32 and sample.probabilities.dtype == np.float32
    if jax is not None:
        doubled = jax.jit(lambda one: jax.tree_util.tree_map(lambda part: part * 2, one))(sample)
        np.testing.assert_array_equal(doubled.experience.first.obs, 2 * first.obs)


@pytest.mark.parametrize("has_batches", [False, True])
@pytest.mark.parametrize("has_sequences", [False, True])
def test_items_have_nothing_to_do_with_each_other(has_batches: bool, has_sequences: bool) -> None:
    buffer = fbx.make_item_buffer(10, 3, 6, add_sequences=has_sequences, add_batches=has_batches)
    state, at = buffer.init(one()), 0
    for _ in range(9):
        count = (2 if has_batches else 1) * (3 if has_sequences else 1)
        batch = mapped(lambda part: part[0], steps(at, count))
        if has_batches and has_sequences:
            batch = mapped(lambda part: part.reshape(2, 3, *part.shape[1:]), batch)
        elif not has_batches and not has_sequences:
            batch = mapped(lambda part: part[0], batch)
        state = buffer.add(state, batch)
        at += count
        assert bool(buffer.can_sample(state)) == (at >= 3)
    drawn = np.concatenate([times(buffer.sample(state, key(0))) for _ in range(40)])
    assert drawn.shape == (240,) and set(drawn.tolist()) == set(range(max(0, at - 10), at))


def test_priorities_choose_and_belong_to_places() -> None:
    buffer = fbx.make_prioritised_trajectory_buffer(2, 64, 3, 3, 3, max_length_time_axis=31, priority_exponent=1.0)
    assert buffer.plan.most == 30
    state = buffer.init(one())
    for number in range(9):
        state = buffer.add(state, steps(5 * number, 5, rows=2))
    sample = buffer.sample(state, key(0))
    indices = np.asarray(sample.indices)
    obs = np.asarray(sample.experience.obs)
    np.testing.assert_array_equal(indices, obs[:, 0, 0] * 10 + obs[:, 0, 1] % 30 // 3)
    everything = np.arange(20)
    state = buffer.set_priorities(state, everything, np.zeros(20))
    state = buffer.set_priorities(state, np.array([4, 4, 17]), np.array([9.0, 1.0, 3.0]))
    drawn = buffer.sample(state, key(0))
    counts = np.bincount(np.asarray(drawn.indices), minlength=20)
    assert set(np.flatnonzero(counts)) == {4, 17}
    np.testing.assert_allclose(np.asarray(drawn.probabilities), np.where(np.asarray(drawn.indices) == 4, 0.25, 0.75))


def test_the_newest_state_is_the_one_to_use() -> None:
    buffer = fbx.make_prioritised_flat_buffer(100, 2, 4, add_sequences=True, add_batch_size=2)
    first = buffer.init(one())
    second = buffer.add(first, steps(0, 5, rows=2))
    with pytest.raises(ReplacedState, match="state = buffer.add"):
        buffer.sample(first, key(0))
    third = buffer.set_priorities(second, np.array([0]), np.array([2.0]))
    with pytest.raises(ReplacedState):
        buffer.add(second, steps(5, 5, rows=2))
    buffer.sample(third, key(0))
    other = fbx.make_flat_buffer(100, 2, 4)
    with pytest.raises(errors.InvalidConfig, match="another buffer"):
        other.sample(third, key(0))
    with pytest.raises(errors.InvalidConfig, match="init or add"):
        other.sample(None, key(0))


def test_bad_input_is_refused() -> None:
    buffer = fbx.make_trajectory_buffer(2, 4, 3, 1, 3, max_size=21)
    assert buffer.plan.most == 10
    state = buffer.init(one())
    with pytest.raises(errors.DeadlineExceeded):
        buffer.sample(state, key(0))
    with pytest.raises(errors.ShapeMismatch, match="at most 10 steps"):
        buffer.add(state, steps(0, 11, rows=2))
    with pytest.raises(errors.ShapeMismatch, match="2 rows"):
        buffer.add(state, steps(0, 4, rows=3))
    with pytest.raises(errors.ShapeMismatch):
        buffer.add(state, one())
    with pytest.raises(errors.DtypeMismatch, match=r"time of the batch"):
        wrong = steps(0, 4, rows=2)
        buffer.add(state, wrong._replace(extra={**wrong.extra, "time": wrong.obs[..., 0]}))
    with pytest.raises(errors.InvalidConfig, match=r"done"):
        buffer.add(state, {"obs": np.zeros((2, 4))})
    with pytest.raises(errors.DtypeMismatch, match="hides 1 of 16"):
        some = steps(0, 4, rows=2)
        buffer.add(state, some._replace(obs=np.ma.array(some.obs, mask=np.arange(16).reshape(2, 4, 2) == 3)))
    with pytest.raises(errors.InvalidConfig, match="at least one array"):
        buffer.init({})
    with pytest.raises(NotOffered, match="compiled"):
        buffer.replace(add=None)
    assert len(state.table) == 0
    for made, match in (
        (lambda: fbx.make_item_buffer(3, 4, 1), "min_length"),
        (lambda: fbx.make_item_buffer(3, 1, 4), "sample_batch_size"),
        (lambda: fbx.make_flat_buffer(3, 1, 1, add_batch_size=2), "max_length"),
        (lambda: fbx.make_trajectory_buffer(1, 1, 5, 1, 5, max_length_time_axis=4), "most steps of a row"),
        (lambda: fbx.make_trajectory_buffer(1, 1, 5, 1, 5), "one of the two"),
        (lambda: fbx.make_trajectory_buffer(1, 1, 5, 0, 5, max_size=9), "period"),
        (lambda: fbx.make_prioritised_flat_buffer(9, 1, 1, priority_exponent=2.0), "priority_exponent"),
    ):
        with pytest.raises(errors.InvalidConfig, match=match):
            made()
    with pytest.raises(errors.UnknownArgument, match="batch_size"):
        fbx.make_flat_buffer(9, 1, batch_size=1)  # type: ignore[call-arg]


def test_indices_and_priorities_are_checked() -> None:
    buffer = fbx.make_prioritised_item_buffer(10, 1, 4, add_batches=True)
    state = buffer.add(buffer.init(one()), mapped(lambda part: part[0], steps(0, 5)))
    for indices, priorities, error in (
        ([0, 1], [1.0], errors.ShapeMismatch),
        ([10], [1.0], errors.InvalidConfig),
        ([-1], [1.0], errors.InvalidConfig),
        ([0.5], [1.0], errors.DtypeMismatch),
        ([0], [-1.0], errors.InvalidPriority),
        ([0, 1], np.ma.array([1.0, 9.0], mask=[0, 1]), errors.DtypeMismatch),
        (np.ma.array([0, 1], mask=[0, 1]), [1.0, 9.0], errors.DtypeMismatch),
    ):
        with pytest.raises(error):
            buffer.set_priorities(state, np.asanyarray(indices), np.asanyarray(priorities))
    state = buffer.set_priorities(state, np.array([9]), np.array([1.0]))  # a place without a step: nothing happens
    assert times(buffer.sample(state, key(0))).max() < 5


def test_calls_that_jax_traces_are_refused() -> None:
    if jax is None:
        pytest.skip("jax is not installed here: make test-adapters")
    buffer = fbx.make_trajectory_buffer(1, 4, 2, 1, 2, max_size=20)
    state = buffer.add(buffer.init(one()), steps(0, 5))
    with pytest.raises(NotOffered, match=r"add\(\) inside jit"):
        jax.jit(lambda batch: buffer.add(state, batch).current_index)(on(None, steps(0, 2)))
    with pytest.raises(NotOffered, match=r"sample\(\) inside jit"):
        jax.jit(lambda key: buffer.sample(state, key).experience)(key(0))
    with pytest.raises(TypeError):
        jax.jit(buffer.can_sample)(state)


# ---- compared with the library -------------------------------------------------------------------------------------

SHAPES = [
    # rows, steps of a window, period, most steps of a row, steps of an add
    (1, 1, 1, 10, 3),
    (3, 4, 1, 17, 5),
    (2, 5, 5, 20, 4),
    (2, 3, 2, 12, 12),
    (2, 6, 3, 30, 1),
    (2, 2, 5, 25, 7),
]


def fill(library: Any, buffer: Any, number: int, rows: int, length: int) -> Any:
    state = buffer.init(on(library, one()))
    for turn in range(number):
        state = buffer.add(state, on(library, steps(turn * length, length, rows)))
    return state


@pytest.mark.parametrize("number", [2, 9, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_items_that_can_be_drawn_are_the_library_s(flashbax: Any, shape: Any, number: int) -> None:
    rows, window, period, most, length = shape
    found = []
    for library in (flashbax, fbx):
        made = library.make_prioritised_trajectory_buffer(
            rows, 64, window, period, window, max_length_time_axis=most, priority_exponent=1.0
        )
        buffer = compiled(library, made)
        state = fill(library, buffer, number, rows, length)
        items: dict[int, Any] = {}
        can = bool(buffer.can_sample(state))
        for seed in range(30 if can else 0):
            sample = buffer.sample(state, key(seed))
            obs = np.asarray(sample.experience.obs)
            for index, values in zip(np.asarray(sample.indices).tolist(), obs.tolist(), strict=True):
                assert items.setdefault(index, values) == values
        found.append((can, int(state.current_index), bool(state.is_full), items))
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [2, 9, 40])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_uniform_windows_are_the_library_s(flashbax: Any, number: int) -> None:
    for rows, window, period, most, length in [*SHAPES[:2], SHAPES[3]]:
        found = []
        for library in (flashbax, fbx):
            made = library.make_trajectory_buffer(rows, 64, window, period, window, max_length_time_axis=most)
            buffer = compiled(library, made)
            state = fill(library, buffer, number, rows, length)
            if not buffer.can_sample(state):
                continue
            drawn = [np.asarray(buffer.sample(state, key(seed)).experience.obs) for seed in range(30)]
            found.append({part.tobytes() for sample in drawn for part in sample})
        assert len(found) in (0, 2) and found[:1] == found[1:]


@pytest.mark.parametrize("kind", ["flat", "item"])
@pytest.mark.parametrize("has_sequences", [False, True])
@pytest.mark.parametrize("has_batches", [False, True])
def test_samples_have_the_library_s_form(flashbax: Any, kind: str, has_sequences: bool, has_batches: bool) -> None:
    found = []
    for library in (flashbax, fbx):
        more = {"add_batch_size": 2 if has_batches else None} if kind == "flat" else {"add_batches": has_batches}
        make = library.make_prioritised_flat_buffer if kind == "flat" else library.make_prioritised_item_buffer
        buffer = compiled(library, make(12, 4, 3, add_sequences=has_sequences, **more))
        state = buffer.init(on(library, one()))
        for turn in range(8):
            batch = steps(2 * turn, 2, rows=2)
            if not has_sequences:
                batch = mapped(lambda part: part[:, 0], batch)
            if not has_batches:
                batch = mapped(lambda part: part[0], batch)
            state = buffer.add(state, on(library, batch))
        sample = buffer.sample(state, key(0))
        leaves, form = jax.tree_util.tree_flatten(tuple(sample.experience) if kind == "flat" else sample.experience)
        drawn = set()
        for seed in range(60):
            leaf = jax.tree_util.tree_leaves(buffer.sample(state, key(seed)).experience)[0]
            drawn |= {part.tobytes() for part in np.asarray(leaf)}
        shapes = [(leaf.shape, leaf.dtype, isinstance(leaf, jax.Array)) for leaf in leaves]
        further = [(part.shape, part.dtype) for part in (sample.indices, sample.probabilities)]
        found.append((shapes, form, further, drawn, bool(buffer.can_sample(state))))
    assert found[0] == found[1]


def test_probabilities_are_the_library_s(flashbax: Any) -> None:
    rng = np.random.default_rng(0)
    priorities = rng.uniform(0.0, 30.0, 16).astype(np.float32)
    priorities[5] = 32.0  # the mass 8: version 0.1.3 rounds the mass of new items down to an integer
    found = []
    for library in (flashbax, fbx):
        made = library.make_prioritised_trajectory_buffer(
            2, 128, 2, 2, 2, max_length_time_axis=16, priority_exponent=0.6
        )
        buffer = compiled(library, made)
        state = fill(library, buffer, 4, 2, 4)
        state = buffer.set_priorities(state, np.arange(16), priorities)
        state = buffer.add(state, on(library, steps(16, 2, rows=2)))  # new items: the highest priority so far
        drawn: dict[int, float] = {}
        counts = np.zeros(16)
        for seed in range(60):
            sample = buffer.sample(state, key(seed))
            drawn.update(
                zip(np.asarray(sample.indices).tolist(), np.asarray(sample.probabilities).tolist(), strict=True)
            )
            counts += np.bincount(np.asarray(sample.indices), minlength=16)
        found.append((drawn, counts / counts.sum()))
    assert found[0][0].keys() == found[1][0].keys()
    for index, probability in found[0][0].items():
        assert found[1][0][index] == pytest.approx(probability, rel=1e-4)
        assert found[1][1][index] == pytest.approx(probability, abs=0.012)
