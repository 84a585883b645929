"""Configures gRPC before the process's first connection, and keeps gRPC running until the process ends.

The configuration puts fewer threads between a message and its receiver.

With gRPC's event engine, a message wakes three threads: one polls, one reads, and one waits. Without the event engine,
the waiting thread polls and reads by itself. Round trips and large batches then take about 15% less time. A large batch
gains because one core reads it, into memory that is still in the cache of that core.

gRPC counts its clients and servers. When the last one goes, gRPC releases its global state. A thread of gRPC can still
poll for a connection that ended with unsent bytes, for ten seconds, and it uses that state: the process then dies by
SIGSEGV or SIGABRT (seen with the gRPC of pyarrow 26). So that the count never reaches 0, one client that never connects
stays until the process ends.

gRPC does not survive a fork: its threads stay in the parent, and its locks may be taken. In a forked child of a process
that used gRPC, a call would wait for ever. The child therefore uses no object of gRPC, and releases none. The release
of a server joins threads that the child does not have, and so does the release of the last object of a client. An
object may be held by anything, such as a thread that Python drops in the child, or an error that waits for the
collector. So this module knows all clients, servers and streams by weak references, and a child keeps those that exist
at its birth.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow.flight as flight

from relive.errors import ForkedHandle

__all__ = ["all_of", "check_process", "keep_for_ever", "leave_to_parent", "with_few_wakeups"]

Made = TypeVar("Made")

_VARIABLE = "GRPC_EXPERIMENTS"
_FEW_WAKEUPS = "-event_engine_client,-event_engine_listener"
_making = threading.Lock()
_was_made = False
_came_by_fork = False  # from a process that had used gRPC
_objects: weakref.WeakSet[Any] = weakref.WeakSet()  # of gRPC: all that exist
_kept: list[list[Any]] = []  # a list for each fork, from before it until after it; in a child for ever


def check_process(what: str) -> None:
    """Raises ForkedHandle in a forked child of a process that used gRPC."""
    if _came_by_fork:
        raise ForkedHandle(
            what,
            "gRPC, which carries the service, does not work in a forked child of a process that has used it; start the"
            ' child with multiprocessing.get_context("spawn"), or fork before the first connect, serve or attach to an'
            " address",
        )


def keep_for_ever(*objects: object) -> None:
    """Keeps objects from being released, even at the end of the interpreter."""
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def leave_to_parent(*objects: object) -> None:
    """Notes objects of gRPC: a child that is forked from now on never releases one, whatever refers to it there."""
    for one in objects:
        _objects.add(one)


def all_of(found: weakref.WeakSet[Made]) -> list[Made]:
    """Returns what a set of weak references has now, while other threads may change it."""
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has added one meanwhile
            return list(found)


def with_few_wakeups(make: Callable[[], Made]) -> Made:
    """Calls make(). The first client or server of this process is made without gRPC's event engine.

    gRPC reads its environment once, at its start. This function therefore sets the variable for that moment only, so
    that neither child processes nor another gRPC in this process see the variable. If the environment already has
    GRPC_EXPERIMENTS, that value stays.

    A change of os.environ must not meet C code of another thread that reads the environment at that moment. A program
    with such threads should set GRPC_EXPERIMENTS itself (an empty value is enough) before it starts those threads.

    Raises ForkedHandle in a forked child of a process that used gRPC.
    """
    global _was_made
    check_process("this process")
    if _was_made:
        return make()
    with _making:
        is_given = _was_made or _VARIABLE in os.environ
        if not is_given:
            os.environ[_VARIABLE] = _FEW_WAKEUPS
        try:
            made = make()
            if not _was_made:
                _keep_running()
            _was_made = True
            return made
        finally:
            if not is_given:
                del os.environ[_VARIABLE]


def _keep_running() -> None:
    """Makes a client that nothing releases, not even the end of the interpreter: polling threads run until then."""
    keep_for_ever(flight.FlightClient("grpc://127.0.0.1:1"))  # connects at its first call, which never comes


def _note_fork() -> None:
    global _came_by_fork, _making
    _came_by_fork = _came_by_fork or _was_made
    _making = threading.Lock()  # the copy may be taken
    keep_for_ever(*_kept)


def _keep() -> None:
    """Runs before a fork: the first that Python does in the child is to drop other threads, with what they refer to."""
    _kept.append(all_of(_objects))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep, after_in_parent=_kept.pop, after_in_child=_note_fork)
