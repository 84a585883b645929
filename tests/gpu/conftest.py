"""Chooses Triton's interpreter before any kernel is imported, and has it prepare the language once a launch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def one_preparation_a_launch() -> Iterator[None]:
    """Triton's interpreter replaces the functions of its language for a launch, and again for each nested call.

    The nested calls look through some hundred names and find them replaced: half of the time of these tests.
    """
    try:
        from triton.runtime import interpreter
    except ImportError:
        yield
        return
    language, prepare = interpreter.tl, interpreter._patch_lang
    prepared: set[int] = set()

    class Scope(interpreter._LangPatchScope):  # type: ignore[misc]
        def restore(self) -> None:
            prepared.clear()
            super().restore()

    def prepare_once(function: Any) -> Any:
        parts = {id(one) for one in function.__globals__.values() if one is language or one is language.core}
        if parts <= prepared:
            return interpreter._LangPatchScope()
        made, scope = prepare(function), Scope()
        scope._changes = made._changes
        prepared.update(parts)
        return scope

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        yield
