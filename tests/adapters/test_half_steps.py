"""A limiter, or Ctrl-C, lets in the first lanes of a step and not the others: no lane stores its step twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the recorder wraps Gymnasium environments")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from processes.shm import needs_shared_memory  # noqa: E402

import relive  # noqa: E402
from adapters.worlds import Diary, World, make_table, stored  # noqa: E402
from relive import errors  # noqa: E402
from relive.adapters.gymnasium import record  # noqa: E402
from relive.fleet import ShardOwner, attach, writing  # noqa: E402
from relive.fleet.draws.pace import Wait  # noqa: E402

NUM_ENVS = 3
SPEC = relive.StepSpec.from_spaces(World().observation_space, World.action_space)


def worlds(num_envs: int = NUM_ENVS) -> SyncVectorEnv:
    makers = [lambda number=number: World(number) for number in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


class HalfWriter:
    """A writer whose chosen calls of append store the first lanes only, and raise the error that was chosen."""

    def __init__(self, writer: Any, breaks: dict[int, tuple[int, BaseException]]) -> None:
        self._writer, self._breaks, self._calls = writer, breaks, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def append(self, *, lanes: Any = None, **columns: Any) -> Any:
        self._calls += 1
        if self._calls not in self._breaks:
            return self._writer.append(lanes=lanes, **columns)
        num_stored, error = self._breaks[self._calls]
        ids = np.arange(self._writer.num_lanes) if lanes is None else np.asarray(lanes)
        timeout_s = columns.pop("timeout_s", None)
        some = {name: np.asarray(values)[:num_stored] for name, values in columns.items()}
        keys = self._writer.append(lanes=ids[:num_stored], timeout_s=timeout_s, **some)
        error.keys, error.stored = keys, num_stored  # type: ignore[attr-defined]
        raise error


class HalfTable:
    """A table whose writers are HalfWriters."""

    def __init__(self, table: relive.Table, breaks: dict[int, tuple[int, BaseException]]) -> None:
        self._table, self._breaks = table, breaks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def writer(self, num_lanes: int | None = None) -> HalfWriter:
        return HalfWriter(self._table.writer(num_lanes), self._breaks)


def note(diary: Diary, before: Any, result: Any) -> None:
    _, reward, terminated, truncated, _ = result
    for env in range(len(before)):
        episode, ends = int(before[env][1]), (bool(terminated[env]), bool(truncated[env]))
        diary.note(env, episode, 1, float(reward[env]), *ends)


@pytest.mark.parametrize("items_per_version", [1, 2, 4])
def test_a_budget_lets_in_some_environments_of_a_step(items_per_version: int) -> None:
    budget = relive.StalenessBudget(2, items_per_version)
    index = relive.Index(relive.Transitions(gamma=0.5), relive.Uniform(), budget, max_times_sampled=1)
    diary, halves, version = Diary(), 0, 0
    with relive.Table(SPEC, 1000, index, max_lanes=4) as table:
        envs = record(worlds(), table, timeout_s=0.0)
        before, _ = envs.reset(seed=0)
        for _ in range(15):
            result = None
            try:
                result = envs.step(np.ones(NUM_ENVS, int))
            except errors.DeadlineExceeded as error:
                halves += error.stored > 0
            while result is None:
                version += 1
                table.set_policy_version(version)
                try:
                    result = envs.finish_step(0.0)
                except errors.DeadlineExceeded as error:
                    halves += error.stored > 0
            note(diary, before, result)
            before = result[0]
        assert halves > 2
        table.set_limiter(relive.MinSize(1))
        assert table.num_items() == len(diary.transitions())
        batch = table.sample(table.num_items(), columns=["observation", "next_observation", "reward"])
        rows = zip(*(batch[name].tolist() for name in ("observation", "next_observation", "reward")), strict=True)
        found = sorted((*map(int, here), int(there[2]), reward) for here, there, reward in rows)
        assert found == sorted((env, k, t, after, reward) for env, k, t, _, reward, _, after, *_ in diary.transitions())
        envs.close()


@pytest.mark.parametrize("num_stored", [1, 2, 3])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, errors.DeadlineExceeded])
def test_a_write_that_stopped_goes_on_with_the_other_environments(kind: Any, num_stored: int) -> None:
    diary = Diary()
    with make_table(World().observation_space) as table:
        envs = record(worlds(), HalfTable(table, {2: (num_stored, kind())}))
        before, _ = envs.reset(seed=0)
        for call in range(1, 6):
            if call == 2:
                with pytest.raises(kind):
                    envs.step(np.ones(NUM_ENVS, int))
                result = envs.finish_step()
            else:
                result = envs.step(np.ones(NUM_ENVS, int))
            note(diary, before, result)
            before = result[0]
        envs.close()
        found = {row[:7] for row in stored(table)}  # with the last steps, which close() ends
        assert {row[:7] for row in diary.transitions()} <= found and len(found) == len(table) == 5 * NUM_ENVS
        assert all(after == t + 1 for _, _, t, *_, after in found)


def test_a_refused_step_names_the_environments_that_did_not_store_it() -> None:
    full = errors.StorageFull("/tmp/x", 2, 1)
    with make_table(World().observation_space) as table:
        envs = record(worlds(), HalfTable(table, {2: (1, full)}))
        envs.reset(seed=0)
        envs.step(np.ones(NUM_ENVS, int))
        with pytest.raises(errors.StorageFull) as caught:
            envs.step(np.ones(NUM_ENVS, int))
        assert caught.value.lanes_not_stored == (2,), "the step of environment 0 ends its episode: it comes next"
        envs.finish_step()
        envs.close()
        steps = {(row[0], row[2]) for row in stored(table) if row[2] != row[6]}
        assert {(0, 1), (1, 1)} <= steps and (2, 1) not in steps
        table.check()


@needs_shared_memory
@pytest.mark.parametrize("path", ["mapped", "service"])
def test_ctrl_c_in_the_wait_for_room_over_all_shards_stores_no_lane_twice(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    """The totals let in two of three environments that go on in the third step. Ctrl-C comes while the others wait."""
    if path == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name, diary = shm_name(), Diary()
    index = relive.Index(relive.Transitions(gamma=0.5), limiter=relive.SamplesPerInsert(1.0, 1, 5.0))
    with ShardOwner(0, relive.TableConfig(SPEC, 1000, index, relive.SharedMemory(name), max_lanes=8)) as owner:
        place = owner.serve("grpc://127.0.0.1:0") if path == "service" else name
        with attach([place], path=path, timeout_s=60.0) as table:
            envs = record(worlds(4), table)
            before, _ = envs.reset(seed=0)
            for _ in range(2):
                note(diary, before, result := envs.step(np.ones(4, int)))
                before = result[0]
            with monkeypatch.context() as patch:
                patch.setattr(writing, "_WHOLE_FOR_S", 0.0)
                patch.setattr(Wait, "pause", raising)
                with pytest.raises(KeyboardInterrupt) as caught:
                    envs.step(np.ones(4, int))
            assert len(table) == 10 and not getattr(caught.value, "unanswered", 0)
            table.sample(4)
            note(diary, before, envs.finish_step())
            envs.close()
            owner.table.set_limiter(relive.MinSize(1))
            found = {row[:7] for row in stored(owner.table)}
            assert {row[:7] for row in diary.transitions()} <= found and len(found) == len(table) == 12
            assert all(after == t + 1 for _, _, t, *_, after in found)


def raising(_: Wait) -> None:
    raise KeyboardInterrupt
