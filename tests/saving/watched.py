"""Files whose operations a test counts, fails, skips or interrupts, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from relive.saving.files import Files
from saving.power import Disk, MemoryFiles

Names: TypeAlias = "tuple[str, ...]"


class Killed(BaseException):
    """The process is dead. Nothing that it does after this has an effect."""


class Hook:
    """Makes each operation. Subclasses change some of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Names]] = []

    def make(self, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        self.calls.append((operation, names))
        return self.changed(len(self.calls) - 1, operation, names, do)

    def changed(self, number: int, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        return do()


class Fail(Hook):
    """Raises an error at one operation: instead of it, or after it."""

    def __init__(self, at: int, error: BaseException, *, after: bool = False) -> None:
        super().__init__()
        self.at, self.error, self.after = at, error, after
        self.failed: str | None = None

    def changed(self, number: int, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        if number != self.at:
            return do()
        self.failed = operation
        if self.after:
            do()
        raise self.error


class Kill(Hook):
    """Ends the process before one operation."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def changed(self, number: int, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        if number >= self.at:
            raise Killed
        return do()


class KillAndSkip(Kill):
    """The same for a program that leaves an operation out."""

    def __init__(self, at: int, is_left_out: Callable[[Hook, str, Names], bool]) -> None:
        super().__init__(at)
        self.is_left_out = is_left_out

    def changed(self, number: int, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        return super().changed(
            number, operation, names, do if not self.is_left_out(self, operation, names) else _nothing
        )


def _nothing() -> None:
    return None


class _Watched(Files):
    """Files with a hook. Operations on a handle are shown with the name of its file."""

    def __init__(self, inner: Files, hook: Hook) -> None:
        self.inner, self.hook = inner, hook
        self.opened: dict[int, Names] = {}


def _method(operation: str) -> Callable[..., Any]:
    def method(self: _Watched, *given: Any) -> Any:
        is_handle = bool(given) and isinstance(given[0], int)
        names = self.opened.get(given[0], ()) if is_handle else given
        result = self.hook.make(operation, names, lambda: getattr(self.inner, operation)(*given))
        if operation in ("open", "create"):
            self.opened[result] = names
        return result

    return method


Watched: Any = type("Watched", (_Watched,), {name: _method(name) for name in Files.__abstractmethods__})


def watched(disk: Disk, hook: Hook) -> Files:
    """The files of a new process on a disk in memory, with a hook."""
    files: Files = Watched(MemoryFiles(disk), hook)
    return files
