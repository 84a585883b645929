"""When sampling and inserting may go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from relive._checks import finite, integer
from relive._wrong_names import names_arguments
from relive.errors import InvalidConfig

__all__ = ["MinSize", "SamplesPerInsert"]


@names_arguments
@final
@dataclass(frozen=True)
class MinSize:
    """A draw waits until min_size items are live; writers never wait. Raises InvalidConfig."""

    min_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {"limiter": "min_size", "min_size": self.min_size}


@names_arguments
@final
@dataclass(frozen=True)
class SamplesPerInsert:
    """Keeps items sampled / items inserted near samples_per_insert, making whichever side is ahead wait.

    (Items sampled over all batches: samples_per_insert = replay ratio x batch size at one item a step.)
    With difference d = inserted x samples_per_insert - sampled, a draw of n passes when live >= min_size and d - n >=
    low, an insert of n when the first fill lasts (live + n <= min_size), or d + n x samples_per_insert <= high, or
    live < min_size and n is worth no more than the window (n x samples_per_insert <= high - low);
    low, high = samples_per_insert x min_size -/+ tolerance. tolerance None: the larger of 0.1 x samples_per_insert x
    min_size and 1024. A draw and one row must fit the window high - low together, else both could wait for each other:
    larger draws are refused, and blocks of rows worth more than the window. A block that does not fit the window beside
    the draws that wait is let in by parts.
    Raises InvalidConfig, also where the window is so small that no insert or no draw could ever pass.
    """

    samples_per_insert: float
    min_size: int
    tolerance: float | None = None

    def __post_init__(self) -> None:
        ratio = finite("samples_per_insert", self.samples_per_insert, 0.0, above=True)
        object.__setattr__(self, "samples_per_insert", ratio)
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", finite("tolerance", self.tolerance, 0.0))
        if self.window < ratio + 1:
            raise InvalidConfig(
                "tolerance",
                f"at least (samples_per_insert + 1) / 2 = {(ratio + 1) / 2:g}, so that an insert of one item, worth"
                f" {ratio:g} samples, and a draw of one fit the window of 2 x tolerance together; under it both sides"
                " would come to wait for each other",
                self.tolerance if self.tolerance is not None else self.half_window,
            )

    @property
    def half_window(self) -> float:
        """The tolerance in use, in samples."""
        if self.tolerance is not None:
            return self.tolerance
        return max(0.1 * self.samples_per_insert * self.min_size, 1024.0)

    @property
    def window(self) -> float:
        """high - low, in samples: a draw and a row must fit it together."""
        return 2.0 * self.half_window

    def arithmetic(self) -> str:
        """The window and how it came about, for messages."""
        middle = self.samples_per_insert * self.min_size
        return (
            f"samples_per_insert {self.samples_per_insert:g} x min_size {self.min_size} = {middle:g}, tolerance"
            f" {self.half_window:g}: window [{middle - self.half_window:g}, {middle + self.half_window:g}]"
        )

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {
            "limiter": "samples_per_insert",
            "min_size": self.min_size,
            "samples_per_insert": self.samples_per_insert,
            "tolerance": self.half_window,
        }
