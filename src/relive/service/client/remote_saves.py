"""Saves of a table on another machine: the server saves, and the client asks how far the save is."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Mapping
from typing import Any, final

from relive.checks.values import timeout
from relive.errors import (
    BadMessage,
    DeadlineExceeded,
    InvalidConfig,
    NotShareable,
    ReliveError,
    SaveCancelled,
    ServiceUnavailable,
)
from relive.saving.copying import SaveFacts
from relive.service.client.remote_core import RemoteCore
from relive.service.wire import framing

__all__ = ["RemoteSaving", "begin_saving", "facts_of", "forget_saves"]

_SLICE_S = 0.25  # of a wait; Ctrl-C takes effect between two slices
_OUTCOME_S = 2.0  # how long the outcome of a save that was cancelled may take
_MOST_BESIDE_BYTES = 1 << 30  # of one message
_FACTS: dict[str, type | tuple[type, ...]] = {
    "path": str,
    "number": int,
    "num_steps": int,
    "num_pages": int,
    "num_pages_written": int,
    "num_bytes": int,
    "locked_s": (int, float),
    "wall_s": (int, float),
    "cut": str,
}


def begin_saving(
    core: RemoteCore, name: str, beside: Mapping[str, bytes], keep: int | frozenset[int], ends: float
) -> RemoteSaving:
    """Has the server start a save.

    Args:
        core: The core of the table.
        name: The name of the save.
        beside: Blobs to keep with the table.
        keep: The number of saves that the folder keeps, or the numbers of those that stay beside this one.
        ends: A time.monotonic(), until which the server may take to answer.

    Raises:
        SavesNotAllowed, InvalidConfig: as RemoteTable.save.
        ServiceUnavailable: the server did not answer by `ends`. A save that it has begun is cancelled, if the server
            answers in a second more.
    """
    size = sum(map(len, beside.values()))
    if size > _MOST_BESIDE_BYTES:
        raise InvalidConfig("bytes beside a table of a server", f"at most {_MOST_BESIDE_BYTES} in all", size)
    saving = RemoteSaving(core, name)
    header = {
        "op": "save",
        "token": saving.token,
        "name": name,
        "beside": [[blob, len(data)] for blob, data in beside.items()],
        "keep": sorted(keep) if isinstance(keep, frozenset) else keep,
    }
    try:
        core.tell(header, max(ends - time.monotonic(), 0.0), tuple(beside.values()), waits_for_steps=True)
    except ServiceUnavailable:
        saving.give_up()  # the answer may only be late: the server would save on, and refuse another save of this name
        raise
    except ReliveError:
        raise  # the server's answer
    except BaseException:
        saving.give_up()
        raise
    return saving


def forget_saves(core: RemoteCore, name: str, staying: frozenset[int], timeout_s: float) -> None:
    """Has the server remove the saves of a folder but those with these numbers. Raises as RemoteTable.save."""
    core.tell({"op": "forget", "name": name, "staying": sorted(staying)}, timeout_s)


@final
class RemoteSaving:
    """A save that a server makes. Any number of threads may use it.

    `remote.save(name, wait=False)` returns it. The save goes on without this object, and without this process.
    """

    def __init__(self, core: RemoteCore, name: str) -> None:
        self.token = secrets.token_hex(16)
        self._core, self._name = core, name

    @property
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1. Cost: a round trip. Raises the error of the save."""
        return framing.number(self.look(0.0, "end", self._core.timeout_s), "progress")

    @property
    def done(self) -> bool:
        """Whether the save has ended, in a commit or in an error. Cost: a round trip."""
        try:
            return "facts" in self.look(0.0, "end", self._core.timeout_s)
        except ReliveError:
            return True

    def wait(self, timeout_s: float | None = None) -> SaveFacts:
        """Waits for the commit and returns what was written.

        Args:
            timeout_s: How long, in seconds; None: until the save has ended.

        Raises:
            DeadlineExceeded: It has not ended in time; it goes on.
            SaveCancelled: `cancel`, or the end of the server, ended it.
            ServiceUnavailable: The server does not answer, or was started again.
            ReliveError: also every error with which the save can fail (RemoteTable.save).
        """
        began = time.monotonic()
        told = self.follow("facts", began + (math.inf if timeout_s is None else timeout(timeout_s)))
        if told is None:
            raise DeadlineExceeded("the commit of a save", "pages to write", time.monotonic() - began)
        return facts_of(told)

    def follow(self, until: str, ends: float) -> dict[str, Any] | None:
        """Waits until the save has its moment ("has_cut") or is committed ("facts"). Returns its state.

        None: it was not there at `ends`, a time.monotonic(). Raises the error that ended the save.
        """
        awaited = "end" if until == "facts" else "cut"
        while True:
            left = ends - time.monotonic()
            told = self.look(max(min(left, _SLICE_S), 0.0), awaited, max(min(left, self._core.timeout_s), 0.0))
            if told.get(until) or "facts" in told:
                return told
            if time.monotonic() >= ends:
                return None

    def cancel(self) -> None:
        """Ends the save at its next block, if it has not committed. The save before it stays whole."""
        self._cancel(self._core.timeout_s)

    def _cancel(self, timeout_s: float) -> None:
        self._core.tell({"op": "cancel", "token": self.token}, timeout_s)

    def give_up(self) -> None:
        """Cancels the save as far as that is possible in a second. Raises nothing."""
        with contextlib.suppress(ReliveError):
            self._cancel(0.0)

    def ended_by(self, began: float, needs: str) -> SaveFacts:
        """Cancels the save at the deadline of its call. Returns its facts if it was committed just then.

        Raises DeadlineExceeded, or the error that ended the save before.

        Blocks: two round trips, and until the save has ended. On a server that answers late, 4 s at most: 1 s for the
        cancel, and 3 s for the outcome.
        """
        self._cancel(0.0)
        try:
            told = self.follow("facts", time.monotonic() + _OUTCOME_S)
        except SaveCancelled:
            told = None
        if told is not None:
            return facts_of(told)
        raise DeadlineExceeded(needs, "pages to write", time.monotonic() - began)

    def look(self, wait_s: float, until: str, timeout_s: float) -> dict[str, Any]:
        """Returns the state of the save: "has_cut", "progress", and "facts" after the commit.

        Args:
            wait_s: How long the server waits for the moment or the end, in seconds; it waits half a second at most.
            until: "cut" or "end".
            timeout_s: How long the answer may take, in seconds.

        Raises:
            ReliveError: The error that ended the save, or ServiceUnavailable.
        """
        header = {"op": "saving", "token": self.token, "until": until, "timeout_s": wait_s}
        return self._core.tell(header, timeout_s)

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotShareable("save")

    def __repr__(self) -> str:
        return f"RemoteSaving({self._name!r} of {self._core.path})"


def facts_of(told: Mapping[str, Any]) -> SaveFacts:
    """Returns the facts in the state of a save that is committed. Raises BadMessage."""
    facts = told.get("facts")
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), kind) for name, kind in _FACTS.items()):
        raise BadMessage("facts of a save", " and ".join(_FACTS), str(facts)[:100])
    return SaveFacts(**{name: facts[name] for name in _FACTS})
