"""The page and the table of verdicts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from conformance.cases import TOPICS
from conformance.verdicts import DIFFERS, FAILED, MET, TO_COME
from conformance.words import SAME, Case, in_words

__all__ = ["as_markdown", "as_text", "table"]

WIDTH = 118
MOST_SHOWN = 60  # characters of an answer
COLUMNS = ("topic", "cases", "Reverb: as expected", "relive: the same", DIFFERS, TO_COME, "failed")


def table(values: Mapping[str, Any]) -> list[list[str]]:
    """A row for each topic and one for all: cases, and how many there are of each verdict."""
    rows = []
    for topic in TOPICS:
        cases = [one for one in values["cases"].values() if one["topic"] == topic]
        if cases:
            rows.append([topic, *_numbers(cases)])
    return [*rows, ["all", *_numbers(list(values["cases"].values()))]]


def _numbers(cases: list[Mapping[str, Any]]) -> list[str]:
    reverb = Counter(one["reverb"]["verdict"] for one in cases)
    relive = Counter(one["relive"]["verdict"] for one in cases)
    numbers = [len(cases), reverb[MET], relive[MET], relive[DIFFERS], relive[TO_COME], reverb[FAILED] + relive[FAILED]]
    return [str(number) for number in numbers]


def as_text(values: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    rows = [list(COLUMNS), *table(values)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def as_markdown(values: Mapping[str, Any]) -> str:
    """docs/conformance.md."""
    rows = table(values)
    total = dict(zip(COLUMNS, rows[-1], strict=True))
    parts = [
        "# Reverb's semantics as a measure",
        _prose(
            f"`make conformance` runs {total['cases']} cases on {values['reverb']} and on relive: small programmes that"
            " insert, draw, update, delete and wait, derived from Reverb's published documentation, and from running it"
            " where the documentation is silent. Each case (`conformance/cases`) says its rule in a sentence, where it"
            " is written, and what every call is to give. Both systems are spoken to through their public interface"
            " only, one item being one row where nothing else is said. The steps of an episode, which Reverb's patterns"
            " count by themselves, relive's are given as a column; a condition with several rests is as many patterns."
        ),
        _prose(
            "Values and orders are compared exactly, draws by chance by a chi-square that a fair sampler"
            " exceeds once in"
            " 100,000 runs. The command fails where a system gives anything but what its case says, or where the two"
            " differ in a case that calls them the same. This page and `conformance/verdicts.json` are written by it;"
            " `python -m conformance.run --relive-only` does relive's side again without dm-reverb, and the tests hold"
            " relive to these verdicts."
        ),
        "\n".join(
            [
                "| " + " | ".join(COLUMNS) + " |",
                "|---|" + "---:|" * (len(COLUMNS) - 1),
                *("| " + " | ".join(row) + " |" for row in rows),
            ]
        ),
        "## Where relive differs on purpose",
        _differences(values),
        "## What is to come",
        _prose("The cases stand and run on Reverb; on relive they say what they wait for."),
        _to_come(values),
        "## How it is run",
        _prose(
            "dm-reverb lives in an environment of its own under `benchmarks/.venvs/reverb` (tensorflow 2.15.1, numpy"
            " below 2; pinned whole in `benchmarks/constraints/reverb.txt`), made by the first run. Its server runs in"
            " the process of the cases; where a case ends that process the others go on in another. `python -m"
            " conformance.run WORDS` runs the cases whose names hold these words, prints what every call gave, and"
            " writes nothing. `--seed` is of relive's draws; Reverb takes no seed from Python."
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _differences(values: Mapping[str, Any]) -> str:
    parts = []
    for topic, cases in TOPICS.items():
        names = {name for name, row in values["cases"].items() if row["relive"]["verdict"] == DIFFERS}
        found = [case for case in cases if case.name in names]
        if found:
            parts += [f"### {topic.capitalize()}", "\n".join(_difference(case) for case in found)]
    return "\n\n".join(parts)


def _difference(case: Case) -> str:
    apart = [call for call in case.calls if call.relive is not SAME]
    shown = [f"`{call}`: Reverb {_short(call.expected)}, relive {_short(call.relive)}" for call in apart]
    return _item(f"**{case.name}.** {case.says} {case.differs} ({'; '.join(dict.fromkeys(shown))})")


def _short(expected: Any) -> str:
    words = in_words(expected)
    return words if len(words) <= MOST_SHOWN else words[: MOST_SHOWN - 3] + "..."


def _to_come(values: Mapping[str, Any]) -> str:
    waiting: dict[str, list[str]] = {}
    for name, row in values["cases"].items():
        if row["relive"]["verdict"] == TO_COME:
            waiting.setdefault(row["relive"]["detail"], []).append(name)
    parts = []
    for missing, names in waiting.items():
        parts.append(_item(f"**{missing}** ({len(names)}): {'; '.join(names)}"))
    return "\n".join(parts)


def _prose(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _item(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
