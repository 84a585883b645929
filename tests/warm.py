"""Starts Python processes that have imported torch already, as forks of one server in place of fresh interpreters.

A process of a run needs two seconds of a core to import torch, and the tests of training start hundreds of processes.
The server has imported the libraries of other projects and nothing of relive. Within `diverted` it starts:

- children of multiprocessing (spawn);
- the commands of relive that train, evaluate, play, act and tune;
- programmes that have `RELIVE_TEST_WARM=1` in their environment.

A warm process is like a fresh one in all that relive can see. It is a child of the process that asked for it. It has
the descriptors, environment, directory, signal mask and command line that it was given, and it imports relive itself.
It differs in the modules that it finds imported. `RELIVE_TEST_ALL=1` (`make test-all`) starts fresh processes.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import multiprocessing.util
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

LIBRARIES = (
    "numpy", "torch", "torch.utils.tensorboard", "torch.distributed", "gymnasium", "rich.console", "rich.live", "typer",
    "matplotlib.figure", "matplotlib.backends.backend_agg", "pytest",
)  # fmt: skip
COMMANDS = {"train", "evaluate", "play", "act", "tune"}
FLAGS = {"-u": "PYTHONUNBUFFERED", "-B": "PYTHONDONTWRITEBYTECODE", "-X faulthandler": "PYTHONFAULTHANDLER"}
SET_CHILD_SUBREAPER = 36  # of prctl: orphans below this process become its children
ROOM = 4096  # bytes of a command line that a warm process can show
HEAD = struct.Struct("=QI")  # bytes of the request, descriptors with it


class Request(NamedTuple):
    """A process to start."""

    command: list[str]
    targets: list[int]  # of the descriptors sent along: their numbers in the process
    environment: dict[str, str]
    directory: str
    mask: set[int]  # signals that are blocked
    ignored: list[int]
    has_own_session: bool
    starts_others: bool  # a programme that may start warm processes itself


# ---- the server ------------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """Serves until the other end of the socket closes. In a warm process it runs the programme, and ends with it."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        return  # a fork would lose the other threads; the client hears it and starts fresh processes
    gc.freeze()  # a warm process does not look at what the libraries have made
    server = socket.socket(fileno=descriptor)
    server.sendall(b"r")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # those of a terminal come to the whole group
        signal.signal(number, signal.SIG_IGN)
    while True:
        request, descriptors = _serve(server)
        server.detach()
        _become(request, descriptors)
        if not request.starts_others:
            _end(_run, request.command)
        mine, its = socket.socketpair()
        if os.fork():
            its.close()
            with diverted(Client(mine)):
                _end(_run, request.command)
        mine.detach()  # here is the server for the processes that this programme starts
        server = _alone(its)


def _serve(server: socket.socket) -> tuple[Request, list[int]]:
    """Returns in each new process, once it is a child of the process that asked for it."""
    while True:
        request, descriptors = _receive(server)
        go, its_go = os.pipe()
        told, its_told = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(its_told, str(child).encode())
                os._exit(0)
            os.close(its_go)
            if os.read(go, 1) != b"g":
                os._exit(1)
            return request, descriptors
        pid = os.read(told, 16)
        os.waitpid(between, 0)  # from here on the child's parent is the one that asked
        os.write(its_go, b"g")
        for one in (go, its_go, told, its_told, *descriptors):
            os.close(one)
        server.sendall(pid.ljust(16))


def _receive(server: socket.socket) -> tuple[Request, list[int]]:
    head, ancillary, *_ = server.recvmsg(HEAD.size, socket.CMSG_SPACE(253 * 4))
    if not head:
        os._exit(0)
    size, count = HEAD.unpack(head)
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % 4])
    assert len(descriptors) == count
    text = b""
    while len(text) < size:
        text += server.recv(size - len(text))
    return pickle.loads(text), list(descriptors)


def _alone(server: socket.socket) -> socket.socket:
    """A server keeps nothing open of the programme that it was forked from: ends of pipes would never close."""
    null = os.open(os.devnull, os.O_RDWR)
    kept = fcntl.fcntl(server.detach(), fcntl.F_DUPFD_CLOEXEC, 3)
    for standard in range(3):
        os.dup2(null, standard)
    for one in _open_descriptors():
        if one > 2 and one != kept:
            os.close(one)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    return socket.socket(fileno=kept)


def _open_descriptors() -> list[int]:
    found = []
    for one in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing itself
            os.fstat(one)
            found.append(one)
    return found


# ---- a warm process --------------------------------------------------------------------------------------------------


def _become(request: Request, descriptors: list[int]) -> None:
    """Gives this process all that a fresh one would have been given."""
    above = max([*request.targets, *descriptors, 2]) + 1
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, above) for one in descriptors]
    for one in _open_descriptors():
        if one not in moved:
            os.close(one)
    for one, target in zip(moved, request.targets, strict=True):
        os.dup2(one, target)
        os.close(one)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    if request.has_own_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)
    _show(request.command)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = None
        with contextlib.suppress(OSError):
            is_direct = bool(request.environment.get("PYTHONUNBUFFERED")) or number == 2
            stream = open(number, mode, buffering=1 if is_direct else -1, closefd=False, errors="backslashreplace")
        setattr(sys, name, stream)
    if request.environment.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _end(run: Callable[[list[str]], None], command: list[str]) -> NoReturn:
    """Runs a programme and ends the process: as the interpreter does, but without taking every module apart."""
    code: Any = 0
    try:
        run(command)
    except SystemExit as asked:
        code = 0 if asked.code is None else asked.code
        if not isinstance(code, int):
            raise  # the interpreter prints it
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 255)


def _show(command: list[str]) -> None:
    """Writes the command line to the memory in which the kernel looks for it."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(word.encode() for word in command)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _run(command: list[str]) -> None:
    """Runs `-c CODE` or `-m MODULE` as the interpreter does."""
    words, _ = _parts(command)
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    sys.orig_argv = list(command)
    of_environment = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = of_environment + [path for path in _PATH if path not in of_environment]
    if words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), main_module.__dict__)
    else:
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *words[2:]]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # as python -m itself


def _parts(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words from -c or -m on, and the flags before them as variables; ([], {}) if a flag is not in FLAGS."""
    variables, at = {}, 1
    while at < len(command) and command[at] not in ("-c", "-m"):
        length = 2 if command[at] == "-X" else 1
        variable = FLAGS.get(" ".join(command[at : at + length]))
        if variable is None:
            return [], {}
        variables[variable] = "1"
        at += length
    return list(command[at:]), variables


_PATH: list[str] = []


# ---- the client ------------------------------------------------------------------------------------------------------


class Client:
    """Asks a server for processes, which become children of this one."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._library = ctypes.CDLL(None, use_errno=True)

    def is_ready(self) -> bool:
        """Whether the server has imported its libraries; waits until then."""
        return self._server.recv(1) == b"r"

    def start(self, request: Request, descriptors: list[int]) -> int:
        """The id of the new process."""
        text = pickle.dumps(request)
        head = HEAD.pack(len(text), len(descriptors))
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            self._library.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                self._server.sendmsg([head], passed)
                self._server.sendall(text)
                return int(self._server.recv(16, socket.MSG_WAITALL))
            finally:
                self._library.prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def request_of(
    command: list[str], targets: list[int], environment: Mapping[str, str], directory: str, has_own_session: bool
) -> Request:
    mask = set(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    ignored = [
        int(number)
        for number in signal.valid_signals()
        if number != signal.SIGPIPE and signal.getsignal(number) == signal.SIG_IGN
    ]
    variables = {**environment, **_parts(command)[1]}
    starts_others = "--multiprocessing-fork" not in command
    return Request(command, targets, variables, directory, mask, ignored, has_own_session, starts_others)


def _by_python(command: list[str]) -> list[str]:
    """The installed command `relive` as the module that it runs; other command lines as they are."""
    if command and command[0] == os.path.join(os.path.dirname(sys.executable), "relive"):
        return [sys.executable, "-m", "relive.cli", *command[1:]]
    return command


def is_warm(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a programme is one of those that this module starts."""
    words = _parts(command)[0] if command[:1] == [sys.executable] else []
    is_named = environment.get("RELIVE_TEST_WARM") == "1" and bool(words)
    return is_named or (words[:2] == ["-m", "relive.cli"] and bool(COMMANDS & set(words[2:3])))


@contextlib.contextmanager
def diverted(client: Client) -> Iterator[None]:
    """Within this the two kinds of processes are started by the server."""
    spawn, fork_exec = multiprocessing.util.spawnv_passfds, subprocess._fork_exec  # type: ignore[attr-defined]

    def spawn_warm(path: Any, words: Sequence[Any], passed: Sequence[int]) -> int:
        command = [os.fsdecode(word) for word in words]
        if "--multiprocessing-fork" not in command or not _parts(command)[0]:
            return int(spawn(path, words, passed))
        targets = [one for one in sorted({0, 1, 2, *passed}) if _is_open(one)]
        return client.start(request_of(command, targets, os.environ, os.getcwd(), False), targets)

    def fork_exec_warm(*given: Any) -> int:
        command = _by_python([os.fsdecode(word) for word in given[0]])
        closes, kept, directory, variables = given[2:6]
        environment = dict(os.environ)
        if variables is not None:
            environment = dict(os.fsdecode(one).split("=", 1) for one in variables)
        if not closes or not is_warm(command, environment):
            return int(fork_exec(*given))
        ends = {number: end if end != -1 else number for number, end in enumerate((given[6], given[9], given[11]))}
        ends |= {one: one for one in kept if one != given[13]}  # without the pipe that tells of a failed exec
        ends = {target: end for target, end in ends.items() if _is_open(end)}
        where = os.getcwd() if directory is None else os.fsdecode(directory)
        return client.start(request_of(command, list(ends), environment, where, bool(given[15])), [*ends.values()])

    multiprocessing.util.spawnv_passfds = spawn_warm
    subprocess._fork_exec = fork_exec_warm  # type: ignore[attr-defined]
    try:
        yield
    finally:
        multiprocessing.util.spawnv_passfds = spawn
        subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def can_be_warm() -> bool:
    """Whether this is the Python and the system that this module knows, and no release is at stake."""
    is_known = sys.platform == "linux" and sys.version_info[:2] == (3, 11)
    return is_known and os.environ.get("RELIVE_TEST_ALL") != "1"


@contextlib.contextmanager
def warm_server() -> Iterator[Client | None]:
    """The client of a new server, which ends with the block; None where processes must be fresh."""
    if not can_be_warm():
        yield None
        return
    mine, its = socket.socketpair()
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import warm; warm._PATH[:] = sys.path[2:]; "
    code += f"warm.main({its.fileno()})"
    with subprocess.Popen(
        [sys.executable, "-c", code, " " * ROOM], pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=None if os.environ.get("RELIVE_TEST_WARM_LOG") else subprocess.DEVNULL,
    ) as process:  # fmt: skip
        its.close()
        client = Client(mine)
        try:
            yield client if client.is_ready() else None
        finally:
            mine.shutdown(socket.SHUT_RDWR)  # forks of this process may have the descriptor, so a close ends nothing
            mine.close()
            process.wait(20)
