"""Chooses what runs the kernels before any kernel is imported: Triton's interpreter, or the card.

RELIVE_TEST_DEVICE=cuda runs these tests on a card. Unset, the interpreter runs them, and prepares the language once a
launch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest

ON_CARD = os.environ.get("RELIVE_TEST_DEVICE", "cpu") != "cpu"
if not ON_CARD:
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def one_preparation_a_launch() -> Iterator[None]:
    """Triton's interpreter replaces the functions of its language for a launch, and again for each nested call.

    The nested calls look through some hundred names and find them replaced: half of the time of these tests.
    """
    if ON_CARD:
        yield
        return
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


@pytest.fixture(params=[1, 1 << 30], ids=["words copied", "words read"])
def words_of_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to read words of pages: from a copy of all, and each by itself."""
    from relive.gpu.layout_args import IndexLayout

    made, given = IndexLayout.from_facts, {"copies_from": request.param}
    monkeypatch.setattr(IndexLayout, "from_facts", lambda *facts: dataclasses.replace(made(*facts), **given))
