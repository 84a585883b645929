"""Recorded experience outside of a table: the columns, and the whole episodes one after another.

Every format has two functions over such episodes:

    write(path, spec, episodes)      # any iterable of Episode
    read(path) -> Recorded
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.config.spec import StepSpec
from relive.errors import ReliveError
from relive.reading.episodes import Episode, EpisodeFacts

__all__ = ["Format", "Recorded", "described", "episode_of", "spec_of"]

_FIRST_VERSION = 1


@final
@dataclass(frozen=True)
class Recorded:
    """Episodes that a format can read.

    Attributes:
        spec: the columns of a step.
        num_episodes: how many there are.
        num_steps: the steps of all episodes.
        episodes: makes an iterator over them; it may be called again.
    """

    spec: StepSpec
    num_episodes: int
    num_steps: int
    episodes: Callable[[], Iterator[Episode]]


class Format(Protocol):
    """The functions of a module of this folder."""

    def write(self, path: str, spec: StepSpec, episodes: Iterable[Episode]) -> None:
        """Writes a new file or folder. Memory does not grow with the number of episodes."""
        ...

    def read(self, path: str) -> Recorded:
        """Reads what write() wrote, exactly; and files of other programs in this format. Raises DatasetUnreadable."""
        ...


def described(spec: StepSpec) -> str:
    """The text that every format keeps: with it a table gets the same columns again."""
    return json.dumps({"relive": _FIRST_VERSION, "spec": spec.to_dict()})


def spec_of(path: object, text: Any) -> StepSpec:
    """The spec from the text that described() made. Raises DatasetUnreadable."""
    try:
        told = json.loads(text)
        if told["relive"] != _FIRST_VERSION:
            raise DatasetUnreadable(path, f"version {_FIRST_VERSION} of its description", told["relive"])
        return StepSpec.from_dict(told["spec"])
    except DatasetUnreadable:
        raise
    except (ReliveError, ValueError, KeyError, TypeError) as problem:
        raise DatasetUnreadable(path, "the description of its columns", str(problem)) from None


def episode_of(
    spec: StepSpec,
    flat: Mapping[str, npt.NDArray[Any]],
    terminated: Any,
    truncated: Any,
    discount: npt.NDArray[Any] | None = None,
    policy_version: npt.NDArray[Any] | None = None,
) -> Episode:
    """An episode that comes from no table: its lane is 0, and its keys are 0, 1, 2 and so on.

    Args:
        spec: the columns of a step.
        flat: {flat name: array}, as in Episode.
        terminated, truncated: how it ended.
        discount: float32[T]; None: 1 - terminated.
        policy_version: int64[T]; None: zeros.
    """
    per_step = (array for name, array in flat.items() if spec.columns[name].kind in ("step", "start"))
    of_state = (len(array) - 1 for name, array in flat.items() if spec.columns[name].kind == "state")
    if discount is None:
        count = next((len(array) for array in per_step), next(of_state, 0))
        discount = np.ones(count, np.float32)
        discount[-1:] = 0.0 if terminated else 1.0
    count = len(discount)
    versions = np.zeros(count, np.int64) if policy_version is None else policy_version.astype(np.int64)
    facts = EpisodeFacts(
        0, np.arange(count), bool(terminated), bool(truncated), discount.astype(np.float32, copy=False), versions
    )
    return Episode(spec, flat, facts)
