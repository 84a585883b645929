"""The verbs of programs, short enough for a case to read as a sentence; `system.System` defines their meaning."""

from __future__ import annotations

from typing import Any

from conformance.words import Call, Limit, Setup, TableSetup, verb

opens = verb("open")
insert = verb("insert")
insert_all = verb("insert_all")
sample = verb("sample")
batch = verb("batch")
fields = verb("fields")
tally = verb("tally")
learn = verb("learn")
update = verb("update")
delete = verb("delete")
mutate = verb("mutate")
mutate_key = verb("mutate_key")
reset = verb("reset")
size = verb("size")
contents = verb("contents")
can_insert = verb("can_insert")
can_sample = verb("can_sample")
counts = verb("counts")
fill = verb("fill")
drain = verb("drain")
begin_sample = verb("begin_sample", "waits")
begin_insert = verb("begin_insert", "waits")
settle = verb("settle")
put = verb("put")
take = verb("take")
change_what_was_put = verb("change_what_was_put")
change_what_was_taken = verb("change_what_was_taken")
write = verb("write")
step = verb("step")
walk = verb("walk")
item = verb("item")
item_of_last = verb("item_of_last")
flush = verb("flush")
end_episode = verb("end_episode")
episode_steps = verb("episode_steps")
patterns = verb("patterns")
save_and_load = verb("save_and_load")


def one(**parts: Any) -> Setup:
    """One table of the name 'table'."""
    return Setup((TableSetup(**parts),))


def two(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Setup:
    """Two tables, 'left' and 'right', over the same data."""
    return Setup((TableSetup(name="left", **(first or {})), TableSetup(name="right", **(second or {}))))


def min_size(size: int) -> Limit:
    return Limit("min_size", size)


def ratio(samples_per_insert: float, size: int, buffer: float | tuple[float, float]) -> Limit:
    return Limit("ratio", size, samples_per_insert, buffer)


def queue(size: int) -> Setup:
    """Reverb's Table.queue."""
    return one(sampler="fifo", remover="fifo", max_size=size, max_times_sampled=1, limit=Limit("queue", size))


def stack(size: int) -> Setup:
    """Reverb's Table.stack."""
    return one(sampler="lifo", remover="lifo", max_size=size, max_times_sampled=1, limit=Limit("stack", size))


def counted(num_steps: int, begin: int = 0) -> tuple[Call, ...]:
    """Steps with a = t and b = 10 t, t counted on from `begin`."""
    return tuple(step(a=t, b=10 * t) for t in range(begin, begin + num_steps))
