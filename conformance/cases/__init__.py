"""The cases, by topic."""

from __future__ import annotations

from conformance.cases import (
    data,
    limiters,
    mutation,
    patterns,
    priorities,
    ratios,
    removal,
    resets,
    selectors,
    shares,
    tables,
    trajectories,
    trajectory_rules,
    trajectory_tables,
    uses,
    walks,
)
from conformance.words import Case

__all__ = ["TOPICS", "by_name", "topic_of"]

# The topics of the page, in its order; a long one lies in two files.
TOPICS: dict[str, tuple[Case, ...]] = {
    "selectors": selectors.CASES + shares.CASES,
    "limiters": limiters.CASES + ratios.CASES + walks.CASES,
    "use counts": uses.CASES,
    "removal": removal.CASES,
    "priorities": priorities.CASES,
    "mutation": mutation.CASES,
    "resetting and saving": resets.CASES,
    "several tables": tables.CASES,
    "data": data.CASES,
    "trajectories": trajectories.CASES + trajectory_tables.CASES + trajectory_rules.CASES,
    "patterns": patterns.CASES,
}


def by_name() -> dict[str, Case]:
    """Every case by its name, which no other has."""
    return {case.name: case for cases in TOPICS.values() for case in cases}


def topic_of() -> dict[str, str]:
    """The topic of every case by the case's name."""
    return {case.name: topic for topic, cases in TOPICS.items() for case in cases}
