"""The binding: types at the border, threads without the interpreter's lock, objects that outlive each other."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from core.tools import NAMES, gather, make_core, make_index, refuse, rows, write_rows
from relive import _core, errors
from relive.core.request import DrawRequest


@pytest.fixture
def table() -> Any:
    core = make_core()
    yield core
    core.close()


def test_arrays_own_their_memory(table: Any) -> None:
    keys = write_rows(table, 0, 100)
    arrays, present = table.gather(table.select(0, NAMES), keys, None)
    copies = [array.copy() for array in arrays]
    table.close()
    gc.collect()
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert array.flags.writeable and array.flags.c_contiguous
    assert present.all()


def test_a_writer_keeps_its_table_alive() -> None:
    core = make_core()
    writer = core.open_writer(1, True, refuse)
    del core
    gc.collect()
    assert len(writer.extend(rows(0, 5), None, None, 1.0)) == 5
    writer.close()


def test_a_writer_outlives_a_closed_table() -> None:
    core = make_core()
    writer = core.open_writer(1, True, refuse)
    core.close()
    with pytest.raises((errors.TableClosed, errors.WriterClosed)):
        writer.extend(rows(0, 5), None, None, 1.0)
    writer.close()


def test_normalise_is_asked_for_whatever_is_not_exact(table: Any) -> None:
    asked = []

    def normalise(name: str, value: object, leading: tuple[int, ...]) -> Any:
        asked.append((name, leading))
        return refuse(name, value, leading)

    writer = table.open_writer(1, True, normalise)
    exact = {name: value[0] for name, value in rows(0, 1).items()}
    writer.append(dict(exact), None, None, 1.0)
    assert not asked, "exact arrays take the fast path"
    writer.append({**exact, "observation": [1.0, 2.0, 3.0], "reward": np.float64(1.0)}, None, None, 1.0)
    assert ("observation", ()) in asked
    writer.close()


def test_errors_of_normalise_come_through(table: Any) -> None:
    def normalise(name: str, value: object, leading: tuple[int, ...]) -> Any:
        raise KeyError(name)

    writer = table.open_writer(1, True, normalise)
    exact = {name: value[0] for name, value in rows(0, 1).items()}
    with pytest.raises(KeyError):
        writer.append({**exact, "observation": "no"}, None, None, 1.0)
    assert table.num_steps() == 0
    writer.close()


def test_the_interpreter_runs_on_while_a_call_waits(table: Any) -> None:
    """A blocked sample holds no lock of the interpreter: this thread writes what it waits for."""
    got: list[Any] = []
    plan = table.select(0, ["action"])
    thread = threading.Thread(target=lambda: got.append(table.draw(DrawRequest(0, 8, plan), 30.0)))
    thread.start()
    time.sleep(0.1)
    start = time.monotonic()
    write_rows(table, 3, 1)
    thread.join(20)
    assert got and got[0][0][0].tolist() == [3] * 8 and time.monotonic() - start < 20


def test_threads_of_one_handle(table: Any) -> None:
    """Writers, samplers, updaters and a closer, all in one process and on one handle."""
    failures: list[BaseException] = []
    stop = threading.Event()
    write_rows(table, 0, 100)

    def guard(work: Any) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    plan = table.select(0, ["action", "observation"])

    def sample() -> None:
        (action, observation), keys, _, _ = table.draw(DrawRequest(0, 64, plan), 10.0)
        assert (observation[:, 0] == action).all()
        table.update_priorities(0, keys, np.random.default_rng().random(64) + 0.1)

    def write() -> None:
        write_rows(table, int(time.monotonic() * 1000) % 100_000, 37)

    threads = [threading.Thread(target=guard, args=(work,)) for work in (sample, sample, write, write)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    table.check()


def test_a_sampler_that_waits_is_told_of_the_close() -> None:
    core = make_core()
    said: list[BaseException] = []

    def wait() -> None:
        try:
            core.draw(DrawRequest(0, 4), 30.0)
        except errors.ReliveError as error:
            said.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    core.close()
    thread.join(10)
    assert not thread.is_alive() and isinstance(said[0], errors.TableClosed)


def test_out_buffers_are_used(table: Any) -> None:
    keys = write_rows(table, 0, 10)
    out = [np.empty(10, np.int64), np.empty((10, 3), np.float32)]
    arrays, _ = table.gather(table.select(0, ["action", "observation"]), keys, out)
    assert arrays[0] is out[0] or np.shares_memory(arrays[0], out[0])
    assert out[0].tolist() == list(range(10))


def test_update_priorities_takes_any_numbers(table: Any) -> None:
    keys = write_rows(table, 0, 10)
    for priorities in (np.ones(10, np.float32), np.ones(10), [1] * 10, np.ones(20)[::2], np.ones(10, np.int32)):
        assert table.update_priorities(0, keys, priorities) == 10
    assert table.update_priorities(0, keys[:0], np.empty(0)) == 0


def test_importance_weights() -> None:
    probabilities = np.array([0.5, 0.25, 0.125])
    raw = (8 * probabilities) ** -0.5
    np.testing.assert_allclose(_core.importance_weights(probabilities, 8, 0.5, False), raw, rtol=1e-6)
    normalized = _core.importance_weights(probabilities, 8, 0.5, True)
    np.testing.assert_allclose(normalized, raw / raw.max(), rtol=1e-6)
    assert normalized.dtype == np.float32
    assert _core.importance_weights(np.empty(0), 8, 0.5, True).shape == (0,)


def test_plans_say_what_comes(table: Any) -> None:
    outputs = table.select(0, ["observation", "next_frame", "discount", "terminated", "num_steps"]).outputs
    assert [(name, np.dtype(dtype), tuple(shape), *rest) for name, dtype, shape, *rest in outputs] == [
        ("observation", np.dtype("f4"), (3,), 0, "item"),
        ("next_frame", np.dtype("u1"), (20, 20), 0, "item"),
        ("discount", np.dtype("f4"), (), 0, "item"),
        ("terminated", np.dtype("?"), (), 0, "item"),
        ("num_steps", np.dtype("i8"), (), 0, "item"),
    ]
    with pytest.raises(errors.ReliveError):
        table.select(0, ["nobody"])
    with pytest.raises(errors.ReliveError):
        table.select(9, ["action"])


def test_metadata_comes_back() -> None:
    core = make_core(metadata=b'{"x": 1}\x00\xff')
    assert core.metadata == b'{"x": 1}\x00\xff'
    core.close()


def test_nothing_leaks_an_array() -> None:
    core = make_core()
    keys = write_rows(core, 0, 50)
    said = gather(core, keys)
    references = [weakref.ref(array) for array in said.values()]
    del said
    gc.collect()
    assert not any(reference() is not None for reference in references)
    core.close()


@pytest.mark.parametrize(
    "change",
    [
        {"capacity": 0},
        {"max_lanes": 0},
        {"max_participants": 0},
        {"shard": 4096},
        {"columns": []},
        {"indexes": []},
        {"indexes": [make_index(n_step=0)]},
        {"indexes": [make_index(n_step=2000)]},
        {"indexes": [make_index(name=str(i)) for i in range(9)]},
        {"columns": [("x", "<f4", (1,) * 9, "step")]},
    ],
)
def test_configurations_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises((errors.ReliveError, ValueError, TypeError)):
        make_core(**change)


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**33,), (2**16, 2**16, 2**16, 2**16), (0,), (-1,), (3, -5)])
def test_a_column_that_would_wrap_round_is_refused_here_too(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        make_core(columns=[("image", "|u1", shape, "step")])
    assert "image" in caught.value.what


def test_rows_and_regions_beyond_all_memory_are_refused() -> None:
    columns = [(f"image{number}", "|u1", (2**32,), "step") for number in range(17)]
    with pytest.raises(errors.InvalidConfig):
        make_core(columns=columns)
    with pytest.raises(errors.InvalidConfig):
        make_core(columns=columns[:1], capacity=2**36, max_lanes=1)


@pytest.mark.parametrize("number", [1e39, -1.0, float("nan"), float("inf")])
def test_an_initial_priority_that_float32_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(errors.InvalidConfig):
        make_core(indexes=[make_index(sampler="prioritized", initial=("number", number))])
