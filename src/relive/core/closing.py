"""The base of everything that a `with` block closes at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """Owns something until close(). A `with` block calls close() at its end, also after an exception."""

    @abstractmethod
    def close(self) -> None:
        """Gives back everything that is owned. Closing twice is harmless."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
