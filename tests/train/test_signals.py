"""Signals to a run: noted, raised once, held off while resources go back; calls of environments that do not return."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relive.train import signals
from relive.train.child import Child, end_all
from relive.train.errors import EnvironmentHangs
from relive.train.signals import (
    STOP_SIGNALS,
    Call,
    in_a_hurry,
    owning,
    raising_signals,
    stop_signals,
    uninterrupted,
)
from train.workers import never_end


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@contextmanager
def ended_by_an_interrupt() -> Iterator[None]:
    with pytest.raises(KeyboardInterrupt):
        yield


@pytest.mark.parametrize("first", STOP_SIGNALS)
@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_the_first_is_noted_and_the_second_raises_once(first: signal.Signals, second: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with ended_by_an_interrupt(), stop_signals() as stopping:
        assert not stopping() and not in_a_hurry()
        send(first)
        assert stopping() and not in_a_hurry()
        try:
            send(second)
        finally:
            assert in_a_hurry()
            send(first, second, first)  # raise nothing any more
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before and not in_a_hurry()


def test_an_interrupt_that_a_destructor_drops_is_raised_by_the_next_signal() -> None:
    class Dropping:
        def __del__(self) -> None:
            send(signal.SIGINT)

    with ended_by_an_interrupt(), stop_signals():
        send(signal.SIGINT)
        Dropping()  # Python drops what is raised in there
        assert in_a_hurry()
        send(signal.SIGINT)


def test_what_gives_back_is_not_interrupted() -> None:
    done: list[str] = []

    def give_back(name: str) -> None:
        send(signal.SIGINT, signal.SIGTERM)
        done.append(name)

    with stop_signals() as stopping:
        with owning() as stack:
            for name in "abc":
                stack.callback(give_back, name)
        assert done == ["c", "b", "a"] and stopping() and in_a_hurry()
        with uninterrupted():
            send(signal.SIGINT)
    with ended_by_an_interrupt(), stop_signals(), owning() as stack:
        for name in "de":
            stack.callback(give_back, name)
        send(signal.SIGINT)
        send(signal.SIGINT)
    assert done == ["c", "b", "a", "e", "d"]


def test_the_first_error_is_raised_and_all_is_given_back() -> None:
    done: list[int] = []

    def fail() -> None:
        done.append(1)
        raise OSError("later")

    with pytest.raises(ArithmeticError, match="first"), owning() as stack:
        stack.callback(done.append, 2)
        stack.callback(fail)
        raise ArithmeticError("first")
    with pytest.raises(OSError, match="later"), owning() as stack:
        stack.callback(done.append, 2)
        stack.callback(fail)
    assert done == [1, 2, 1, 2]


def test_a_handler_of_the_program_hears_the_second_signal() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with stop_signals():
            send(signal.SIGINT, signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_nohup_keeps_a_run_going() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stopping:
            send(signal.SIGHUP)
            assert not stopping()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_block_around_a_block_hears_its_signals_and_the_second_raises_once() -> None:
    with stop_signals() as around:
        with stop_signals() as inside:
            send(signal.SIGTERM)
            assert inside() and around()
        assert around() and in_a_hurry() is False
    assert around(), "after the block, too"
    with ended_by_an_interrupt(), stop_signals() as around, stop_signals():
        with uninterrupted():
            send(signal.SIGTERM, signal.SIGINT)  # noted: the inner block is shielded
        assert around()
        try:
            send(signal.SIGINT)
        finally:
            send(signal.SIGINT, signal.SIGTERM)


def test_a_block_that_has_heard_a_signal_before_notes_the_first_of_a_block_inside() -> None:
    with stop_signals():
        send(signal.SIGINT)
        with stop_signals() as inside:
            send(signal.SIGINT)
            assert inside()
            assert not in_a_hurry()


def test_every_signal_raises_in_a_block_that_raises() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    for number in STOP_SIGNALS:
        with ended_by_an_interrupt(), raising_signals():
            send(number)
            pytest.fail("the signal was lost")
        with raising_signals(), stop_signals() as stopping:
            send(number)
            assert stopping()
        assert [signal.getsignal(one) for one in STOP_SIGNALS] == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_destructor_drops_is_raised_at_the_end_of_a_block_that_raises() -> None:
    class Dropping:
        def __del__(self) -> None:
            send(signal.SIGTERM)

    went_on = False
    with ended_by_an_interrupt(), raising_signals():
        Dropping()
        went_on = True
    assert went_on


def test_a_block_that_raises_leaves_the_handlers_of_the_program_alone() -> None:
    heard: list[int] = []
    before = [
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number)),
        signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ]
    try:
        with raising_signals():
            send(signal.SIGTERM, signal.SIGHUP)
            mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert heard == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) == signal.SIG_IGN and callable(mine)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


def test_other_threads_hear_nothing() -> None:
    heard: list[bool] = []

    def run() -> None:
        with raising_signals(), stop_signals() as stopping, uninterrupted(), Call("a call", 0.0):
            heard.append(stopping() or in_a_hurry())

    with stop_signals():
        send(signal.SIGINT)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert heard == [False]


def test_a_call_of_another_thread_neither_interrupts_this_one_nor_ends_its_call() -> None:
    entered, leaves = threading.Event(), threading.Event()

    def run() -> None:
        with Call("the call of another run", 0.0):  # overdue
            entered.set()
            assert leaves.wait(60)

    thread, mine = threading.Thread(target=run, daemon=True), Call("the call of this run", time.monotonic() + 600)
    with stop_signals(), mine:
        heard = signals._listening
        assert heard is not None
        thread.start()
        assert entered.wait(60)
        heard._interrupt(signal.SIGURG, None)  # raises if the call that is noted is overdue
        noted = [heard.call]
        leaves.set()
        thread.join(60)
        assert [*noted, heard.call] == [mine, mine]


def test_a_call_that_does_not_return_is_interrupted() -> None:
    num_caught = 0
    with stop_signals() as stopping:
        call = Call("the environment of actor 3", time.monotonic() + 0.3)
        with pytest.raises(EnvironmentHangs, match="actor 3") as caught, call:
            while True:
                try:
                    time.sleep(60)
                except Exception:
                    num_caught += 1
        assert num_caught == 0 and caught.value.waited_s >= 0.3 and not stopping()
        with Call("another", time.monotonic() + 600):
            pass


def test_a_call_that_catches_all_is_interrupted_again() -> None:
    num_caught = 0
    with stop_signals(), pytest.raises(EnvironmentHangs), Call("a call", time.monotonic()):
        while True:
            try:
                time.sleep(60)
            except BaseException:
                num_caught += 1
                if num_caught == 2:
                    raise
    assert num_caught == 2


@pytest.mark.parametrize("num_before", [1, 2])
def test_closing_hurries_after_the_second_signal(num_before: int) -> None:
    """The environment is innocent, so the run ends by the signal."""
    with ended_by_an_interrupt(), stop_signals(), owning() as stack:

        def close() -> None:
            with pytest.raises(KeyboardInterrupt), Call("the close", time.monotonic() + 600):
                for _ in range(2 - num_before):
                    send(signal.SIGINT)
                time.sleep(600)
            raise KeyboardInterrupt

        stack.callback(close)
        for _ in range(num_before):
            send(signal.SIGINT)


def test_a_line_says_what_the_run_waits_for() -> None:
    said: list[str] = []
    spoken = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        spoken.set()

    with stop_signals(say), Call("the environment of actor 0", time.monotonic() + 600):
        send(signal.SIGINT)
        assert spoken.wait(60)
    assert said == ["stopping when the environment of actor 0 returns; another Ctrl-C ends it at once"]


# ---- children --------------------------------------------------------------------------------------------------------


def test_children_are_killed_at_once_after_the_second_signal() -> None:
    child = Child("relive-test", never_end)
    child.start(None)
    pid = child.pid
    with ended_by_an_interrupt(), stop_signals():
        send(signal.SIGINT)
        with owning() as stack:
            stack.callback(end_all, [child], 10_000.0)  # longer than a test may take
            send(signal.SIGINT)
    assert pid is not None and child.pid is None and not Path(f"/proc/{pid}").exists()


def test_an_interrupted_end_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    children = [Child("relive-test", never_end) for _ in range(2)]
    for child in children:
        child.start(None)
    pids = [child.pid for child in children]

    def interrupted(self: Child, deadline_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "wait", interrupted)
    with ended_by_an_interrupt():
        end_all(children)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_first_child_starts_with_its_signals_masked() -> None:
    """The start of multiprocessing's resource tracker, which comes with the first child, unblocks them."""
    code = """
import multiprocessing.util, signal
from relive.train.child import Child
from train.workers import never_end
masks, spawn = [], multiprocessing.util.spawnv_passfds
def noted(path, words, passed):
    if "--multiprocessing-fork" in [getattr(word, "decode", lambda: word)() for word in words]:
        masks.append(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
    return spawn(path, words, passed)
multiprocessing.util.spawnv_passfds = noted
if __name__ == "__main__":
    for _ in range(2):
        child = Child("relive-test", never_end)
        child.start(None)
        child.reap()
    print(masks, sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
"""
    path = os.pathsep.join((str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")))
    variables = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    mask = sorted(map(int, STOP_SIGNALS))
    assert done.stdout.strip() == f"{[mask, mask]} []", done.stdout + done.stderr
