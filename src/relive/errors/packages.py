"""The error of a package that is not installed."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError

__all__ = ["MissingPackage"]


@final
class MissingPackage(ReliveError, ModuleNotFoundError):
    """A part of the library needs a package that is not installed. command: installs it."""

    def __init__(self, what: str, package: str, command: str) -> None:
        self.what = what
        self.package = package
        self.command = command
        super().__init__(f"{what} needs {package}: {command}")
        self.name = package
