"""`relive doctor`: the parts of this machine that relive uses, and the actions that would make more of them usable."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from relive import ArraySpec, LocalMemory, SharedMemory, StepSpec, Table, __version__, list_tables
from relive.cli.commands import Commands, add_command, say
from relive.config.storage import Storage
from relive.errors import ReliveError
from relive.errors.base import bytes_text
from relive.errors.extras import install_command

__all__ = ["Finding", "add", "findings"]

_SHM = Path("/dev/shm")
_LITTLE_SHM = 1 << 30  # Docker gives 64 MiB
_FEW_FILES = 4096
_FLAGS = {"avx2", "bmi1", "bmi2", "fma", "f16c", "movbe"}  # of x86-64-v3; abm is named lzcnt elsewhere
# The package that shows whether an extra is usable, and the part of relive that needs it.
_EXTRAS = (
    ("gymnasium", "gymnasium", "record environments"),
    ("torch", "train", "relive train, batches of torch tensors"),
    ("pyarrow", "service", "relive serve, relive.connect"),
    ("ray", "ray", "relive fleet"),
    ("triton", "gpu", "draws and gathers on a GPU"),
)


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        name: the part of the machine.
        state: "ok", "note" (usable, with less), or "action" (relive does not work until the action is taken).
        text: the finding.
        action: the way to a better state; "" if there is none.
    """

    name: str
    state: str
    text: str
    action: str = ""


def add(commands: Commands) -> None:
    """Declares `doctor`."""
    add_command(commands, "doctor", _doctor)


def _doctor() -> int:
    """Report whether relive works on this machine, and which actions to take.

    The status is 1 if relive cannot work until an action is taken. Missing extras are notes.
    """
    worst = 0
    for one in findings():
        mark = {"ok": "ok    ", "note": "note  ", "action": "ACTION"}[one.state]
        say(f"{mark}  {one.name:<14} {one.text}")
        if one.action:
            say(f"{'':24}-> {one.action}")
        worst |= one.state == "action"
    return int(worst)


def findings() -> Iterator[Finding]:
    """Yields the report of this machine, line by line."""
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _versions,
        _processor,
        _memory,
        _shared_memory,
        _limits,
        _tables,
        _extras,
        _nixl,
        _gpu,
        _compiler,
    )
    for look in looks:
        try:
            yield from look()
        except (OSError, ValueError) as problem:  # a system that hides a file from this process
            yield Finding(look.__name__.strip("_").replace("_", " "), "note", f"cannot be read: {problem}")


def _versions() -> Iterator[Finding]:
    where = Path(__file__).resolve().parents[1]
    yield Finding("relive", "ok", f"{__version__} in {where}")
    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}, numpy {metadata.version('numpy')}")


def _processor() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{platform.machine()}, {cores} core{'s' if cores > 1 else ''} for this process"
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        most, period = quota.read_text().split()[:2]
        if most != "max" and int(most) < cores * int(period):
            text += f", of which the container may use {int(most) / int(period):.1f}"
    flags: set[str] = set()
    if platform.machine() == "x86_64" and Path("/proc/cpuinfo").is_file():
        line = next((one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("flags")), "")
        flags = set(line.partition(":")[2].split())
    if flags and not flags >= _FLAGS:
        action = "use a processor with x86-64-v3 (since about 2015), or build relive with another -march"
        yield Finding("processor", "action", f"{text}; lacks {', '.join(sorted(_FLAGS - flags))}", action)
    else:
        yield Finding("processor", "ok", text)


def _memory() -> Iterator[Finding]:
    info = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    total, free = (int(info[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    yield Finding("memory", "ok", f"{bytes_text(free)} of {bytes_text(total)} free")


def _shared_memory() -> Iterator[Finding]:
    if not _SHM.is_dir():
        yield Finding("/dev/shm", "note", "not there: SharedMemory has no place", "use LocalMemory() or File(path)")
    else:
        usage = shutil.disk_usage(_SHM)
        text = f"{bytes_text(usage.free)} of {bytes_text(usage.total)} free"
        if usage.free < _LITTLE_SHM:
            action = "docker run --shm-size=8g, or a memory-backed emptyDir; `relive ls` shows tables left behind"
            yield Finding("/dev/shm", "note", text, action)
        else:
            yield Finding("/dev/shm", "ok", text)
    storages: dict[str, Storage] = {
        "local table": LocalMemory(),
        "shared table": SharedMemory(f"doctor-{os.getpid()}"),
    }
    for name, storage in storages.items():
        try:
            with Table(StepSpec({"x": ArraySpec((), "float32")}), 1_000, storage=storage) as table:
                with table.writer() as writer:
                    writer.append(x=1.0, terminated=True)
                table.sample(4)
        except (ReliveError, OSError) as problem:
            yield Finding(name, "action", f"{type(problem).__name__}: {problem}", "the sentence names the way out")
        else:
            yield Finding(name, "ok", "a row was written and drawn")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,} (at most {hard:,})"
    few = soft < _FEW_FILES
    action = f"ulimit -n {min(hard, 65_536)}, before many actors or clients" if few and hard > soft else ""
    yield Finding("open files", "note" if few else "ok", text, action)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = locked == resource.RLIM_INFINITY
    text = "no limit" if unlimited else f"{bytes_text(locked)}: one-sided reads and GPUs register a whole table"
    yield Finding("locked memory", "ok" if unlimited else "note", text, "" if unlimited else "ulimit -l unlimited")


def _tables() -> Iterator[Finding]:
    unused = [row for row in list_tables() if not row.alive and not row.problem]
    if unused:
        size = bytes_text(sum(row.num_bytes for row in unused))
        text = f"{len(unused)} without a process take {size} of shared memory"
        yield Finding("tables", "note", text, "relive rm --all-unused, unless another start takes them over")


def _extras() -> Iterator[Finding]:
    for package, extra, purpose in _EXTRAS:
        try:
            yield Finding(package, "ok", f"{metadata.version(package)}: {purpose}")
        except metadata.PackageNotFoundError:
            yield Finding(package, "note", f"not installed: {purpose}", install_command(extra))


def _nixl() -> Iterator[Finding]:
    for package in ("nixl", "nixl-cu12", "nixl-cu13"):
        try:
            yield Finding("nixl", "ok", f"{package} {metadata.version(package)}: one-sided reads of other nodes")
            return
        except metadata.PackageNotFoundError:
            continue
    text = "not installed: shards of other nodes are read by messages"
    yield Finding("nixl", "note", text, "pip install --no-deps nixl-cu12")


def _gpu() -> Iterator[Finding]:
    devices = sorted(Path("/proc/driver/nvidia/gpus").glob("*")) if Path("/proc/driver/nvidia").is_dir() else []
    if importlib.util.find_spec("torch") is None:
        text = f"{len(devices)} by the driver; torch is needed to use one" if devices else "none"
        yield Finding("GPU", "note", text)
        return
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            name, memory = torch.cuda.get_device_name(number), torch.cuda.get_device_properties(number).total_memory
            yield Finding("GPU", "ok", f"cuda:{number}: {name}, {bytes_text(memory)}")
    elif devices:
        text = f"{len(devices)} by the driver, but torch {torch.__version__} cannot use one"
        yield Finding("GPU", "note", text, "install a torch built for CUDA, or update the driver")
    else:
        yield Finding("GPU", "note", "none: relive.gpu has no device, everything else works")


def _compiler() -> Iterator[Finding]:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found is None:
        action = "only to build from source: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora)"
        yield Finding("compiler", "note", "none", action)
    else:
        yield Finding("compiler", "ok", found)
