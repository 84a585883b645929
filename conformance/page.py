"""The page and the table of verdicts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from conformance.cases import TOPICS
from conformance.system import NO_WORD
from conformance.verdicts import DIFFERS, FAILED, MET
from conformance.words import SAME, Case, in_words

__all__ = ["as_markdown", "as_text", "table"]

WIDTH = 118
MOST_SHOWN = 60  # characters of an answer
COLUMNS = ("topic", "cases", "Reverb: as expected", "relive: the same", DIFFERS, "failed")


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
    numbers = [len(cases), reverb[MET], relive[MET], relive[DIFFERS], reverb[FAILED] + relive[FAILED]]
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
        "# Conformance with Reverb's semantics",
        _prose(
            f"`make conformance` runs {total['cases']} cases on {values['reverb']} and on relive. A case is a small"
            " program that inserts, draws, updates, deletes and waits. The cases come from Reverb's published"
            " documentation, and from running Reverb where the documentation is silent."
        ),
        _list(
            "Each case (`conformance/cases`) states its rule in a sentence, the source of the rule, and the expected"
            " result of every call.",
            "Both systems are called through their public interface only. One item is one row, unless the case says"
            " otherwise.",
            "Reverb's patterns count the steps of an episode themselves. relive's patterns read this count from a"
            " column. A condition with several remainders becomes several patterns in relive.",
            "Values and orders are compared exactly. Random draws are compared by a chi-square that a fair sampler"
            " exceeds once in 100,000 runs.",
            "The command fails if a system's result differs from the expected result of its case, or if the results"
            " of the two systems differ in a case that calls them the same.",
            "The command writes this page and `conformance/verdicts.json`. `python -m conformance.run --relive-only`"
            " runs only relive's side, without dm-reverb. The tests compare relive with these verdicts.",
        ),
        "\n".join(
            [
                "| " + " | ".join(COLUMNS) + " |",
                "|---|" + "---:|" * (len(COLUMNS) - 1),
                *("| " + " | ".join(row) + " |" for row in rows),
            ]
        ),
        "## Where relive differs on purpose",
        _prose(
            "Each entry states the rule of Reverb's documentation, then the difference and its reason, and then the"
            " calls with different results. A result is `done`, `refused`, a value, `waits` (the call would have to"
            " wait and had no effect) or `no equivalent` (the system has no such call or option)."
        ),
        _differences(values),
        "## How it is run",
        _list(
            "dm-reverb has an environment of its own under `benchmarks/.venvs/reverb` (tensorflow 2.15.1, numpy below"
            " 2). `benchmarks/constraints/reverb.txt` pins all its packages. The first run makes this environment.",
            "Reverb's server runs in the process of the cases. If a case ends that process, the other cases continue"
            " in a new process.",
            "`python -m conformance.run WORDS` runs the cases whose names contain one of these words, prints the"
            " result of every call, and writes nothing.",
            "`--seed` sets the seed of relive's draws. Reverb takes no seed from Python.",
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
    parts = f"*Rule:* {case.says} *Difference:* {case.differs} *Calls:* {'; '.join(dict.fromkeys(shown))}"
    return _item(f"**{case.name}.** {parts}")


def _short(expected: Any) -> str:
    words = "no equivalent" if expected == NO_WORD else in_words(expected)
    return words if len(words) <= MOST_SHOWN else words[: MOST_SHOWN - 3] + "..."


def _prose(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _list(*texts: str) -> str:
    return "\n".join(map(_item, texts))


def _item(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
