"""The pictures of items show what relive reads: each line is drawn from a table of the same steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
if not SCRIPTS.is_dir():
    pytest.skip("the pictures are drawn beside the tests in the source tree only", allow_module_level=True)
sys.path.insert(0, str(SCRIPTS))
import draw_items  # noqa: E402

SHOWN: dict[str, Any] = {
    "Transitions(n_step=3, stack=4)": relive.Transitions(3, stack={"observation": 4}),
    "Sequences(4, burn_in=2, bootstrap=1)": relive.Sequences(4, 2, 1),
    "the first of these sequences": relive.Sequences(4, 2, 1),
    'the last sequence, at_end="pad"': relive.Sequences(4, 2, 1, at_end="pad"),
    'the last sequence, at_end="shift"': relive.Sequences(4, 2, 1, at_end="shift"),
    'the last sequence, at_end="drop"': relive.Sequences(4, 2, 1, at_end="drop"),
    "Episodes(16, bootstrap=1)": relive.Episodes(16, 1),
}


def table_of(items: Any, num_steps: int, **columns: relive.ArraySpec) -> tuple[relive.Table, relive.Writer, Any]:
    """One episode whose states count from 1 and whose number is that of the step."""
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((), "int64", kind="state"),
            "number": relive.ArraySpec((), "int64"),
            **columns,
        }
    )
    table = relive.Table(spec, 100, relive.Index(items), seed=0)
    writer = table.writer()
    keys = writer.extend(observation=np.arange(1, num_steps + 2), number=np.arange(num_steps), truncated=True)
    return table, writer, keys


def positions(line: draw_items.Line) -> dict[int, str]:
    return {step: kind for kind, steps in line.cells for step in steps}


def read_by_sequences(batch: relive.Batch, row: int, lead: int) -> Iterator[tuple[int, str]]:
    """The mark that stands for each row of a window. The step of a row follows from the step of the key."""
    mask, numbers, states = batch["mask"][row], batch["number"][row], batch["observation"][row]
    last = len(mask) - 1
    for at in range(len(mask)):
        step = int(numbers[lead]) + at - lead
        if mask[at]:
            assert numbers[at] == step and states[at] == step + 1
            kind = "lead" if at < lead else "key" if at == lead else "behind" if at == last and lead else "loss"
        else:
            kind = "behind" if states[at] == step + 1 else "pad"
        yield step, kind


@pytest.mark.parametrize("line", draw_items.ITEMS.lines[1:], ids=lambda line: line.what)
def test_an_item_reads_what_its_line_shows(line: draw_items.Line) -> None:
    table, _, keys = table_of(SHOWN[line.what], 10)
    drawn = positions(line)
    key = next(step for step, kind in drawn.items() if kind == "key")
    batch = table.gather(keys[[key]])
    assert batch.present is not None and batch.present.all()
    if "Transitions" in line.what:
        steps = [step for step, kind in drawn.items() if kind in ("lead", "key")]
        assert batch["observation"][0].tolist() == [step + 1 for step in sorted(steps)]
        assert batch["next_observation"][0, -1] - 1 == next(step for step, kind in drawn.items() if kind == "behind")
        return
    assert dict(read_by_sequences(batch, 0, 0 if "Episodes" in line.what else 2)) == drawn
    if line.what.startswith("the last"):
        assert not table.gather(keys[key + 1 :]).present.any()  # type: ignore[union-attr]


def test_late_items_can_be_drawn_as_shown() -> None:
    late = relive.ArraySpec((), "float32", late=True)
    table, _, keys = table_of(relive.Transitions(3), 8, reward=late)
    calls = [[5, 1], [2, 0, 6]]
    for line, call in zip(draw_items.LATE.lines[1:3], calls, strict=True):
        assert f"keys[{call}]" in line.what
        table.complete(keys[call], reward=np.zeros(len(call)))
    completed = {step for step, kind in positions(draw_items.LATE.lines[2]).items() if kind == "step"}
    assert completed == {step for call in calls for step in call}
    for line, key in zip(draw_items.LATE.lines[3:], (0, 1, 5), strict=True):
        present = table.gather(keys[[key]]).present
        assert present is not None and present[0] == (line.note == "can be drawn")
        needed = {step for step, kind in positions(line).items() if kind != "behind"}
        assert needed == set(range(key, key + 3)) and (needed <= completed) == present[0]


def test_explicit_items_are_made_as_shown() -> None:
    items = relive.Explicit({"past": 5, "now": 1, "far": relive.Window(3, stride=4)})
    table, writer, keys = table_of(items, 13)
    windows = {"past": (keys[[6, 2]], np.array([-5, -3])), "now": keys[[6, 2]], "far": (keys[[0, 0]], np.array([3, 0]))}
    made = table.gather(table.create_items(windows))
    shown = [sorted(positions(line)) for line in draw_items.EXPLICIT.lines[1:5]]
    for window, steps in zip(("past", "now", "far"), shown, strict=False):
        assert made[f"{window}/number"][0][made[f"{window}/mask"][0]].tolist() == steps
    assert made["past/number"][1][made["past/mask"][1]].tolist() == shown[3] and not made["far/mask"][1].any()

    patterns = [relive.Pattern({"past": 5}, every=2), relive.Pattern({"past": 5}, at_end=True)]
    with relive.PatternWriter(table, writer, patterns) as recorder:
        for step in range(13):
            recorder.append(observation=step, number=100 + step, terminated=step == 12)
    batch = table.sample(500)
    past = {tuple(row - 100) for row in batch["past/number"] if row[0] >= 100}
    assert {tuple(sorted(positions(line))) for line in draw_items.EXPLICIT.lines[5:]} <= past
    assert past == {tuple(range(last - 4, last + 1)) for last in (4, 6, 8, 10, 12)}


def test_batches_of_episodes_lie_as_shown() -> None:
    lengths = [5, 2, 4]
    lines = [positions(line) for line in draw_items.RAGGED.lines]
    index = {"padded": relive.Index(relive.Episodes(9)), "ragged": relive.Index(relive.Episodes(9, layout="ragged"))}
    table = relive.Table(relive.StepSpec({"number": relive.ArraySpec((), "int64")}), 100, index)
    with table.writer() as writer:
        keys = [writer.extend(number=np.arange(length), truncated=True)[0] for length in lengths]
    padded, ragged = (table.gather(np.asarray(keys), index=name) for name in index)
    for line, mask in zip(lines, padded.mask, strict=False):
        assert [line[step] != "pad" for step in range(mask.size)] == mask.tolist()
    assert sorted(lines[3]) == list(range(len(ragged["number"])))
    assert [step for step, kind in sorted(lines[3].items()) if kind == "key"] == ragged.offsets[:-1].tolist()
    assert draw_items.RAGGED.lines[3].note.endswith(", ".join(map(str, ragged.offsets)))


def test_groups_form_as_shown() -> None:
    spec = relive.StepSpec(
        {"number": relive.ArraySpec((), "int64"), "prompt": relive.ArraySpec((), "int64", kind="episode")}
    )
    groups = relive.Episodes(9, group_by="prompt", group_size=2, max_groups=9)
    table = relive.Table(spec, 100, relive.Index(groups), seed=0)
    prompts = {"loss": 7, "lead": 8}
    lanes = [[(prompts[kind], steps) for kind, steps in lane] for lane in draw_items.PROMPTS]
    assert [draw_items.GROUPS.lines[lane].cells for lane in range(2)] == list(draw_items.PROMPTS)
    with table.writer() as first, table.writer() as second:
        for writer, episodes in ((first, lanes[0]), (second, lanes[1])):
            for prompt, steps in episodes:
                writer.extend(number=np.array(steps), prompt=np.full(len(steps), prompt), truncated=True)
        assert table.num_items() == 2
        batch = table.sample(40)
    lines = [positions(line) for line in draw_items.GROUPS.lines[2:]]
    for prompt, members in ((7, lines[:2]), (8, lines[2:4])):
        row = batch["prompt"][:, 0].tolist().index(prompt)
        for mask, line in zip(batch.mask[row], members, strict=True):
            assert [line.get(step, "pad") != "pad" for step in range(mask.size)] == mask.tolist()
    assert len(lines[4]) == len(lanes[1][1][1]) and set(lines[4].values()) == {"loss"}
