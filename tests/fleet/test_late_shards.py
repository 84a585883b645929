"""Rows of a live shard whose answer is late are not gone, and a completion that was not checked is not made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from contract.late import late_spec, write
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import ShardOwner, attach
from relive.fleet.remote.answers import RemoteAnswer
from relive.fleet.remote.shard import RemoteShard
from relive.fleet.shards import Missed
from relive.service.client import deadlines

pytestmark = needs_shared_memory


@pytest.fixture
def served(shm_name: Any) -> Iterator[Any]:
    """Opens a table over served shards of these configurations."""
    with contextlib.ExitStack() as stack:

        def over(*configs: Any) -> Any:
            owners = [stack.enter_context(ShardOwner(number, one)) for number, one in enumerate(configs)]
            return stack.enter_context(attach([one.serve() for one in owners], path="service", timeout_s=20.0))

        yield over


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """By shard, whether its answers are late (True), or do not come (False)."""
    by_shard: dict[Any, Any] = {}
    take = RemoteAnswer.take

    def takes(answer: Any) -> Any:
        if answer._shard in by_shard:
            answer.drop()
            is_late = by_shard[answer._shard]
            raise Missed(answer._shard, errors.ServiceUnavailable(answer._shard.address, 1.0, "no answer", is_late))
        return take(answer)

    monkeypatch.setattr(RemoteAnswer, "take", takes)
    return by_shard


@pytest.mark.parametrize("number", [0, 1])
def test_a_gather_whose_rows_are_late(served: Any, shm_name: Any, missed: Any, number: int) -> None:
    table = served(config_of(shm_name()), config_of(shm_name()))
    for at in range(2):
        fill(table, at, 100 * at, 50)
    keys = table.draw(64).item_keys
    whole = table.gather(keys)
    name = next(iter(whole))
    out = {name: np.full_like(whole[name], 7)}
    slow = table._fleet.shards[number]
    missed[slow] = True
    with pytest.raises(errors.ServiceUnavailable, match="give a larger timeout_s") as raised:
        table.gather(keys, columns=[name], out=out)
    assert raised.value.address == slow.address and slow.is_live and (out[name] == 7).all()
    others = keys[keys >> 51 != number]
    assert table.gather(others).present.all(), "the other shard has its rows"
    missed[slow] = False
    gone = table.gather(keys).present
    assert (gone == (keys >> 51 != number)).all()
    missed.clear()
    assert table.gather(keys).present.all()


def late_tables(served: Any, shm_name: Any) -> tuple[Any, list[Any]]:
    """A table over two shards, and the keys of four rows without their late columns in each."""
    configs = [relive.TableConfig(late_spec(), 1000, storage=relive.SharedMemory(shm_name())) for _ in range(2)]
    table = served(*configs)
    keys = []
    for number in range(2):
        with table.writer(shard=number) as writer:
            keys.append(np.asarray(write(writer, 0, 4)))
    return table, keys


def values_of(keys: Any) -> dict[str, Any]:
    return {name: np.zeros((len(keys), *one.shape), one.dtype) for name, one in late_spec().columns.items() if one.late}


def test_a_completion_whose_check_is_late_is_not_made(served: Any, shm_name: Any, missed: Any) -> None:
    table, keys = late_tables(served, shm_name)
    table.complete(keys[0][:1], **values_of(keys[0][:1]))
    both = np.concatenate([keys[1][:1], keys[0][:1]])
    slow = table._fleet.shards[0]
    missed[slow] = True
    with pytest.raises(errors.ServiceUnavailable, match="give a larger timeout_s"):
        table.complete(both, **values_of(both))
    missed.clear()
    with pytest.raises(errors.AlreadyCompleted) as raised:
        table.complete(both, **values_of(both))
    assert raised.value.position == 1
    assert table.complete(keys[1][:1], **values_of(keys[1][:1])) == 1, "no call has completed it"


def test_the_questions_of_a_completion_have_one_deadline(
    served: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, keys = late_tables(served, shm_name)
    both = np.concatenate([one[:1] for one in keys])
    began: list[tuple[str, float]] = []
    filled, ask = RemoteShard.ask_filled, RemoteShard.ask

    def note(what: str) -> None:
        began.append((what, deadlines.asked_at(-1.0)))

    def asks_filled(shard: Any, mine: Any) -> Any:
        note("filled")
        return filled(shard, mine)

    def asks(shard: Any, call: str, *values: Any) -> Any:
        note(call)
        return ask(shard, call, *values)

    monkeypatch.setattr(RemoteShard, "ask_filled", asks_filled)
    monkeypatch.setattr(RemoteShard, "ask", asks)
    assert table.complete(both, **values_of(both)) == 2
    assert {what for what, _ in began} == {"filled", "complete"}
    assert len({at for _, at in began}) == 1 and began[0][1] > 0.0, began
