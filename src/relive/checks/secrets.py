"""Secrets that no repr, pickle, log, error or traceback shows."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast, final

from relive.errors import InvalidConfig

__all__ = ["Secret", "check_private", "hides_token", "read_token"]

Called = TypeVar("Called", bound=Callable[..., Any])

_FORM = re.compile(r"[A-Za-z0-9_-]{20,200}\Z")
_MOST_BYTES = 4096


@final
class Secret:
    """A token. Only reveal() shows it.

    Args:
        text: The token.
        what: Its place, which the error names.

    Raises:
        InvalidConfig: The text has not the form of a token. The error shows its length alone.
        TypeError: The secret is pickled.
    """

    __slots__ = ("_text",)

    def __init__(self, text: object, what: str = "token") -> None:
        is_token = isinstance(text, str) and _FORM.match(text) is not None
        self._text = cast(str, text) if is_token else ""
        if not is_token:
            got = f"<{type(text).__name__}>" if not isinstance(text, str) else f"<{len(text)} characters>"
            del text
            raise InvalidConfig(what, "a token as `relive token new` printed it", got)

    def reveal(self) -> str:
        """Returns the token. Callers use the result in one expression, and keep it in no variable."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token does not pickle: set RELIVE_TOKEN_FILE or RELIVE_TOKEN where the handle is opened")


def hides_token(function: Called) -> Called:
    """Decorates a function with a keyword `token`: a text becomes a Secret before any other frame sees it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("token"), str):
            kwargs["token"] = Secret(kwargs.pop("token"))
        return function(*args, **kwargs)

    return cast(Called, call)


def check_private(path: str) -> None:
    """Raises InvalidConfig if other users may read the file or it is a folder, and OSError if it is not there."""
    told = os.stat(path)
    if stat.S_ISDIR(told.st_mode):
        raise InvalidConfig("file with secrets", "a file", f"the folder {path}")
    mode = stat.S_IMODE(told.st_mode)
    if mode & 0o077:
        raise InvalidConfig(f"mode of {path}", "0600, so that no other user reads it (chmod 600)", f"{mode:04o}")


def read_token(path: str) -> Secret:
    """Reads the token in a file: one line, which other users cannot read.

    Raises:
        InvalidConfig: The file is not there, is readable by others, or contains no token.
    """
    try:
        check_private(path)
        with open(path, "rb") as file:
            return Secret(file.read(_MOST_BYTES).decode("utf-8", "replace").strip(), f"token in {path}")
    except OSError as problem:
        raise InvalidConfig(f"file of a token {path}", "a file of this user", str(problem.strerror)) from None
