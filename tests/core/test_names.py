"""Names of an append that are no plain strings: looking one up runs Python, which may come back to the same writer."""

from __future__ import annotations

from typing import Any

import numpy as np

import relive


class Name(str):
    """A name whose hash writes a step of other columns first."""

    writer: Any = None
    busy = False

    def __hash__(self) -> int:
        if Name.writer is not None and not Name.busy:
            Name.busy = True
            try:
                more = {} if len(self) % 2 else {"terminated": False, "truncated": False, "discount": 1.0}
                Name.writer.append(observation=0.0, next_observation=0.0, action=-1, **more)
            finally:
                Name.busy = False
        return str.__hash__(self)


def test_a_name_that_writes_while_it_is_looked_up() -> None:
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((), "float32", kind="state"),
            "action": relive.ArraySpec((), "int64"),
        }
    )
    with relive.Table(spec, 4000) as table, table.writer() as writer:
        keys = []
        for t in range(200):
            step = {"observation": 0.0, "next_observation": 0.0, "action": t}
            Name.writer = writer if t % 3 else None
            names = [Name(name) if (t + place) % 2 else name for place, name in enumerate(step)]
            keys.append(writer.append(**dict(zip(names, step.values(), strict=True))))
        Name.writer = None
        batch = table.gather(np.asarray(keys, np.int64))
        assert batch.present.all() and batch["action"].tolist() == list(range(200))
        table.check()
