"""Explains the death of a process by a signal: finds its core dump and prints a native backtrace of every thread.

`allow` raises the limit of core dumps for a process that was just started. The processes that it starts inherit the
limit. `Watch` notes the time at which a step began. Its `report` moves each core dump of the step to build/cores and
prints its backtraces with gdb. Where there is no core dump, or no gdb, the report says so and says why.

Steps run at the same time in one folder. The report therefore names the test that started the process: a process
inherits pytest's variable PYTEST_CURRENT_TEST, and its core dump has it.
"""

from __future__ import annotations

import mmap
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORES = ROOT / "build" / "cores"
SYSTEM = Path("/proc/sys/kernel")
TIME_LIMIT_S = 180
NUM_FRAMES = 40  # of each thread
KEPT = 4  # core dumps in build/cores, the newest: each has the memory of a process in it
DUMPING = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP", "SIGXCPU", "SIGXFSZ"}
# Names the function of a frame in gdb's output. The thread that died comes first there.
FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(\S+) ?\(", re.MULTILINE)
TEST = re.compile(rb"\0PYTEST_CURRENT_TEST=([ -~]+)\0")
HANDLER = (
    "<signal handler called>"  # Python's and pytest's handlers raise the signal a second time, in a frame of theirs
)


def allow(pid: int) -> None:
    """Lets a process and the processes that it starts write core dumps, as far as its hard limit allows."""
    if not hasattr(resource, "prlimit"):
        return
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
        resource.prlimit(pid, resource.RLIMIT_CORE, (hard, hard))
    except OSError:
        return  # the process has ended, or belongs to another user


def signal_name(status: int) -> str:
    """The signal that ended a process with this exit status, or an empty string. A shell adds 128 to its number."""
    number = -status if status < 0 else status - 128
    try:
        return signal.Signals(number).name if status < 0 or status > 128 else ""
    except ValueError:
        return ""


def core_pattern() -> str:
    """The file name that the kernel gives to a core dump, with `%p` for a process id; a pipe begins with `|`."""
    try:
        pattern = (SYSTEM / "core_pattern").read_text().strip()
        adds_pid = (SYSTEM / "core_uses_pid").read_text().strip() != "0"
    except OSError:
        return ""
    if adds_pid and "%p" not in pattern and not pattern.startswith("|"):
        pattern += ".%p"
    return pattern


def as_glob(pattern: str) -> str:
    """The pattern with a star for each of the kernel's `%` words."""
    return re.sub(r"%(.)", lambda word: "%" if word[1] == "%" else "*", pattern)


class Watch:
    """The core dumps that appear while a step runs. Made before the step starts."""

    def __init__(self, folder: Path = ROOT) -> None:
        """folder: the working directory of the step, to which a relative core pattern refers."""
        self._folder, self._pattern = folder, core_pattern()
        self._since_s = time.time() - 1.0  # clocks of file systems are coarse
        self.tests: list[str] = []  # those that started the processes of the reported core dumps

    def _found(self) -> list[Path]:
        if not self._pattern or self._pattern.startswith("|"):
            return []
        pattern = Path(as_glob(self._pattern))
        # ctest runs each programme in the folder of its build. An absolute pattern stays what it is after the slash.
        folders = {folder / pattern.parent for folder in (self._folder, *ROOT.glob("build/cpp-*"))}
        found = [path for folder in folders for path in folder.glob(pattern.name) if path.is_file()]
        return sorted(path for path in found if path.stat().st_mtime >= self._since_s and _is_core(path))

    def report(self, status: int) -> tuple[str, str]:
        """Returns the text for the log, and in a few words the function in which the step's process died.

        Both are empty if no process of the step left a core dump and the step itself did not die by a signal.

        Args:
            status: exit status of the step.
        """
        name, found = signal_name(status), self._found()
        if not found:
            return (f"--- {name}, no backtrace: {self._why_none(name)}\n", "") if name else ("", "")
        pieces, place = [], ""
        for path in found:
            kept = _keep(path)
            text, test = backtrace(kept), test_of(kept)
            self.tests.append(test or "outside of a test")
            pieces.append(f"--- core dump {kept}, {self.tests[-1]}\n{text}\n")
            place = place or (place_of_death(text) if name else "")
        return "".join(pieces), place

    def _why_none(self, name: str) -> str:
        if name not in DUMPING:
            return "this signal makes no core dump"
        if self._pattern.startswith("|"):
            return f"the kernel hands core dumps to a program (kernel.core_pattern is {self._pattern!r})"
        if not self._pattern:
            return "this system does not say where core dumps go (/proc/sys/kernel/core_pattern)"
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        if hard == 0:
            return "the hard limit of core dumps is 0 (ulimit -H -c)"
        return f"no core dump {as_glob(self._pattern)!r} in {self._folder} (limit {hard}, AddressSanitizer writes none)"


def _keep(path: Path) -> Path:
    """Moves a core dump to build/cores, which keeps the newest few, and gives its new path."""
    CORES.mkdir(parents=True, exist_ok=True)
    kept = CORES / f"{time.strftime('%H%M%S')}-{path.name}"
    shutil.move(path, kept)
    for old in sorted(CORES.iterdir(), key=lambda one: one.stat().st_mtime)[:-KEPT]:
        old.unlink()
    return kept


def _is_core(path: Path) -> bool:
    """Whether the file is a core dump: an ELF file of type 4. A pattern such as `core` is also a common name."""
    try:
        with path.open("rb") as file:
            head = file.read(18)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and int.from_bytes(head[16:18], "little" if head[5] == 1 else "big") == 4


def test_of(core: Path) -> str:
    """The test during which the process of a core dump was started, or an empty string."""
    with core.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        found = TEST.search(whole)
        return found[1].decode().removesuffix(" (call)") if found else ""


def place_of_death(text: str) -> str:
    """The function in which the first thread of a backtrace got its signal, or an empty string."""
    first = re.split(r"\n\s*\n", text[max(0, text.find("\nThread 1 ")) :].lstrip())[0]
    frame = FRAME.search(first, max(0, first.find(HANDLER)))
    return frame[1] if frame else ""


def _gdb(*arguments: str) -> str:
    """The output of one run of gdb."""
    settings = ("debuginfod enabled off", "auto-load off", "pagination off", "width 0")
    command = ["gdb", "-batch", "-nx", *(word for text in settings for word in ("-iex", f"set {text}")), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"gdb was not done after {TIME_LIMIT_S} s"
    return done.stdout if "#0" in done.stdout or "AT_" in done.stdout else done.stdout + done.stderr


def backtrace(core: Path) -> str:
    """A native backtrace of every thread of a core dump, the thread that died first; or why there is none."""
    if shutil.which("gdb") is None:
        return f"no backtrace: gdb is not installed (then: gdb -batch -ex 'thread apply all bt' PROGRAM {core})"
    program = re.search(r'AT_EXECFN.*"(.+)"', _gdb("-c", str(core), "-ex", "info auxv"))
    named = [str(Path(program[1]).resolve())] if program else []
    wanted = [f"thread apply all -ascending bt {NUM_FRAMES}"]
    for helper in [Path(f"{one}-gdb.py") for one in named]:  # CPython's own: the frames of Python in each thread
        if helper.exists():
            wanted += [f"source {helper}", "echo \\nFrames of Python\\n", "thread apply all -ascending py-bt"]
    return _gdb(*(word for text in wanted for word in ("-ex", text)), *named, str(core)).strip()
