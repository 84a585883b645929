"""Takes Ctrl-C, SIGTERM and SIGHUP as the wish to end a run, and ends calls of an environment that do not return.

Protocol, in the main thread, in which Python runs the handlers of signals:

  S1  The first signal is noted. The run sees it before its next batch, writes a checkpoint and ends. If the run has not
      ended after a second, a line says so. SIGHUP is left alone where it was ignored before (nohup).
  S2  The second signal raises KeyboardInterrupt, wherever the main thread is; if the program had a handler of its own,
      that handler is called instead. This happens once in a run: later signals are noted.
  S3  While resources are given back (`owning`, `uninterrupted`), and while an update is made, signals are noted and
      raise nothing. After the second signal every wait in there ends at once (`in_a_hurry`), and children are killed.
      A call of an environment that is closed then ends with KeyboardInterrupt.
  S4  A call of an environment (`Call`) that has not returned at its time is interrupted. A call that begins after the
      time limit of its run gets the same grace as one that is under way then. A thread looks for overdue calls and
      sends SIGURG to the main thread, whose handler raises. A call that never returns to Python, such as a loop in C,
      cannot be interrupted.
  S5  A block notes the signals of the blocks inside it, too. So code that calls `train` in a block of its own finds out
      whether a signal came, also if it came while the run was about to end.

In other threads Python delivers no signals: there the functions of this module do nothing, and no call is interrupted.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, final

from relive.train.errors import EnvironmentHangs

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 10.0  # that a call of an environment gets after the time limit of the run, and after its own beginning
_LOOK_S = 0.2
_SILENT_S = 1.0  # between the first signal and the line about it
_KICK = signal.SIGURG  # ignored by default, and of no other use in a run
_KICK_PERIOD_S = 2.0  # an environment may catch every exception: it is interrupted again


@final
class _Overdue(BaseException):
    """Interrupts a call of an environment. It is no Exception, so that the environment does not catch it."""


@final
class Call:
    """A call of an environment that the main thread is in: `with call: envs.step(...)`. It can be entered again.

    In another thread it does nothing.

    Cost: about 0.5 us a call.
    """

    __slots__ = ("began_s", "ends_s", "grace_s", "kicked_s", "what")

    def __init__(self, what: str, ends_s: float, grace_s: float = 0.0) -> None:
        """Describes the call.

        Args:
            what: The call, for the error.
            ends_s: Time on time.monotonic() at which the call should have returned.
            grace_s: Seconds after ends_s, or after the beginning of the call if it is later, at which the call is
                interrupted.
        """
        self.what, self.ends_s, self.grace_s = what, ends_s, grace_s
        self.began_s = self.kicked_s = 0.0

    def __enter__(self) -> None:
        heard = _here()
        if heard is not None:
            self.began_s, self.kicked_s = time.monotonic(), 0.0
            heard.call = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises EnvironmentHangs if the call was interrupted at its time; KeyboardInterrupt if a signal ended it."""
        heard = _here()
        if heard is not None:
            heard.call = None
        if kind is _Overdue:
            if not self.is_overdue():
                raise KeyboardInterrupt from None
            raise EnvironmentHangs(self.what, time.monotonic() - self.began_s) from None

    def is_overdue(self) -> bool:
        """Whether the call should have returned, and its grace is over."""
        return time.monotonic() >= max(self.ends_s, self.began_s) + self.grace_s


@final
class _Listening:
    """The words of one `stop_signals` block. Handlers may interrupt themselves, so no word has a lock."""

    def __init__(self, say: Callable[[str], None], outer: _Listening | None) -> None:
        self._outer = outer
        self.num_heard = 0
        self.num_shields = 0  # blocks of `uninterrupted` that are open
        self.call: Call | None = None
        self._say, self._has_raised, self._heard_s = say, False, 0.0
        self.main = threading.get_ident()
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="relive-signals", daemon=True)

    def begin(self) -> None:
        """Takes the handlers over, and starts the thread."""
        for number in STOP_SIGNALS:
            before = signal.getsignal(number) or signal.SIG_DFL
            if number != signal.SIGHUP or before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._take)
        self._before[_KICK] = signal.getsignal(_KICK) or signal.SIG_DFL
        signal.signal(_KICK, self._interrupt)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._lose
        self._thread.start()

    def end(self) -> None:
        """Gives the handlers back. The thread ends by itself: it may be in the middle of a line."""
        self._over.set()
        self._thread.join(_LOOK_S)
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._note()
        if self.num_heard > 1 and self.num_shields == 0 and not self._has_raised:
            self._has_raised = True
            before = self._before.get(number, signal.SIG_DFL)
            if callable(before):
                before(number, frame)
            elif before != signal.SIG_IGN:
                raise KeyboardInterrupt

    def _note(self) -> None:
        self.num_heard += 1
        if self.num_heard == 1:
            self._heard_s = time.monotonic()
        if self._outer is not None:
            self._outer._note()

    def _lose(self, unraisable: Any) -> None:
        """An exception in a destructor, which Python drops. If it is a signal's, the next signal raises again."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._has_raised = False
            if self._outer is not None:
                self._outer._lose(unraisable)
        elif not issubclass(unraisable.exc_type, _Overdue):
            self._hook(unraisable)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.call is not None and self._is_overdue(self.call):
            raise _Overdue

    def _is_overdue(self, call: Call) -> bool:
        is_shut = self.num_shields > 0 or self._has_raised
        hurries = self.num_heard > 1 and is_shut  # no other signal will interrupt the call
        return hurries or call.is_overdue()

    def _line(self) -> str:
        call = self.call
        after = "" if call is None else f" when {call.what} returns"
        return f"stopping{after}; another Ctrl-C ends it at once"

    def _look(self) -> None:
        """The thread: says that the run is about to end, and interrupts calls that are overdue."""
        is_said = False
        while not self._over.wait(_LOOK_S):
            now_s = time.monotonic()
            if self.num_heard and not is_said and now_s - self._heard_s >= _SILENT_S:
                is_said = True
                with suppress(OSError, ValueError):  # the output may be gone, and closed
                    self._say(self._line())
            call = self.call
            if call is not None and now_s - call.kicked_s >= _KICK_PERIOD_S and self._is_overdue(call):
                call.kicked_s = now_s
                signal.pthread_kill(self.main, _KICK)


_listening: _Listening | None = None  # of the innermost block of the main thread


def _here() -> _Listening | None:
    """The listening of this thread; None: the thread is not the main thread, or nothing listens."""
    heard = _listening
    return heard if heard is not None and heard.main == threading.get_ident() else None


@contextmanager
def stop_signals(say: Callable[[str], None] = lambda line: None) -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether SIGINT, SIGTERM or SIGHUP came while the block runs: rules S1 to S4.

    The function also tells so after the block has ended. Outside the main thread it always returns False.

    Args:
        say: Gets a line for people if the block goes on for a second after the first signal. Another thread calls it.
    """
    global _listening
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = _listening
    heard = _Listening(say, before)
    _listening = heard
    heard.begin()
    try:
        yield lambda: heard.num_heard > 0
    finally:
        heard.num_shields += 1
        heard.end()
        _listening = before


@contextmanager
def raising_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt while the block runs, so that its clean-up is done.

    Python drops an exception in a destructor. If that was the KeyboardInterrupt, the end of the block raises it. A
    signal that the program ignores or has a handler for is left alone. A block of `stop_signals` inside takes the
    signals for its time. Outside the main thread nothing changes.
    """
    heard: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS if is_main}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = {number: handler for number, handler in before.items() if handler in usual}
    try:
        for number in taken:
            signal.signal(number, take)
        yield
    finally:
        for number, handler in taken.items():
            if signal.getsignal(number) is take:
                signal.signal(number, handler)
    if heard:
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that come while the block runs are noted, and raise nothing: rule S3."""
    heard = _here()
    if heard is None:
        yield
        return
    heard.num_shields += 1
    try:
        yield
    finally:
        heard.num_shields -= 1


@contextmanager
def owning() -> Iterator[ExitStack]:
    """Gives an ExitStack whose exits no signal interrupts: rule S3.

    The second signal may come in any instruction. If it comes before the shield is up, it has raised by then, and
    raises no second time: the exits run in any case. If the block raises an error, errors of the exits are dropped:
    most follow from it.
    """
    heard, stack, shields = _here(), ExitStack(), 0
    try:
        try:
            yield stack
        finally:
            if heard is not None:
                heard.num_shields += 1
                shields = 1
    except BaseException as error:
        with suppress(Exception):
            stack.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        stack.close()
    finally:
        if heard is not None:
            heard.num_shields -= shields


def in_a_hurry() -> bool:
    """Whether a second signal asked this thread's run to end at once."""
    heard = _here()
    return heard is not None and heard.num_heard > 1
