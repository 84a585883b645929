"""Lets the hosts of a run meet before the run makes anything, and waits for the transfers between them.

torch.distributed carries the bytes. torchrun starts one process a host and gives it its number.

Protocol, the same on every host:

  M1  All hosts join the process group that torchrun names. torch waits for the others in C++, where no signal is heard.
      So another thread makes this call, and the main thread looks for signals meanwhile.
  M2  All hosts exchange their options, and every host compares those of all hosts with those of the first one. If an
      option differs that must be equal, all hosts raise the same HostsDiffer.
  M3  Only then a host makes its run directory, its table and its processes. So a host that ends while it waits, or a
      host with other options, leaves nothing.
  M4  A host that waits for a transfer looks for signals and for its deadline in between. If a connection ends or the
      deadline passes, it raises HostGone.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, final

import torch
import torch.distributed as dist

from relive.agents.agent import Spaces
from relive.errors import InvalidConfig
from relive.train.config import TrainConfig
from relive.train.errors import HostGone, HostsDiffer
from relive.train.settings import flat
from relive.train.watching.joint_saves import JointSaves, newest_common

# Options that say how a host works, and not what the run computes. All other options are equal on all hosts.
MAY_DIFFER = (
    "acting.*",
    "environment.num_envs_per_actor",
    "limits.checkpoint_period_s",
    "logging.*",
    "profile",
    "serving.*",
    "threads",
    "tuned",
    "update",
)
_HOW = "torchrun --nnodes N --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT --no-python relive train"
_JOIN_S = 300.0  # the longest wait for all hosts
_LEAVE_S = 5.0  # the longest wait of a process that ends for its connections
_LOOK_S = 0.05  # between two looks for signals, while another thread waits
_SHORTEST_S, _LONGEST_S = 0.00002, 0.0002  # pauses between two looks at a transfer; gloo's threads need the core


@final
@dataclass(frozen=True)
class HostOptions:
    """Options of a group of hosts.

    Attributes:
        count: Hosts.
        device: torch's device of their agents.
        deadline_s: Longest silence of a host.
    """

    count: int
    device: str
    deadline_s: float = 900.0


def host_number(count: int) -> int:
    """Returns the number of this host among `count` hosts, as torchrun gave it; 0: the first, or the only one.

    Raises:
        InvalidConfig: torchrun did not start this process, or started another number of hosts.
    """
    if count == 1:
        return 0
    if dist.is_initialized():
        number, told = dist.get_rank(), dist.get_world_size()
    else:
        try:
            number, told = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError):
            raise InvalidConfig(f"topology hosts({count})", f"a run on each host by: {_HOW}", "no RANK") from None
    if told != count:
        raise InvalidConfig("hosts of the topology", f"the {told} that torchrun starts (WORLD_SIZE)", count)
    return number


def number_told() -> int:
    """Returns the number of a host that this process was given, for whatever run; 0: that of the first, or none."""
    if dist.is_initialized():
        return dist.get_rank()
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else 0


def starts_hosts(config: TrainConfig) -> bool:
    """Whether this process starts the other hosts of the run on a cluster: it was given no number of a host."""
    on_cluster = config.cluster.kind is not None and config.topology.num_hosts > 1
    return on_cluster and "RANK" not in os.environ and not dist.is_initialized()


def equal_options(config: TrainConfig, spaces: Spaces, device: str) -> dict[str, object]:
    """Returns {path: value} of the options that are equal on all hosts of a run, and of the spaces of its environment.

    Args:
        config: The options of this host.
        spaces: The spaces of its environment.
        device: torch's device; hosts agree on its kind only.
    """
    values = flat(config.to_tree())
    first = ("agent.name", "environment.env_id")  # the defaults of other options follow from these
    paths = (*first, *(path for path in values if not any(fnmatchcase(path, one) for one in MAY_DIFFER)))
    told = {path: values[path] for path in paths}
    found = f"{spaces.observation} and {spaces.action}"
    return {**told, "device": torch.device(device).type, "spaces of environment.env_id": found}


@contextlib.contextmanager
def meeting(
    config: TrainConfig, spaces: Spaces, device: str, stopping: Callable[[], bool], resume: bool = False
) -> Iterator[HostMeeting | None]:
    """Lets this host meet the other hosts of the run, and leaves them at the end of the block.

    Args:
        config: The options of this host.
        spaces: The spaces of its environment.
        device: torch's device.
        stopping: Whether a signal asked the run to end.
        resume: Whether this host was told to go on with a run. A host that is new was told so, too.

    Yields:
        The meeting; None if the run has one host.

    Raises:
        HostsDiffer: A host has other options.
        HostGone: A host did not come, or ended.
        KeyboardInterrupt: A signal asked the run to end before all hosts had come.
    """
    if config.topology.num_hosts == 1:
        yield None
        return
    # The other hosts wait while the first one evaluates.
    deadline_s = max(HostOptions.deadline_s, config.evaluation_s + HostOptions.deadline_s / 2)
    met = HostMeeting(HostOptions(config.topology.num_hosts, device, deadline_s), stopping)
    try:
        met.compare({"resume": resume, **equal_options(config, spaces, device)}, stopping)
        yield met
    except BaseException:
        met.leave(is_failed=True)
        raise
    met.leave(is_failed=False)


def _never() -> bool:
    return False


@final
class HostMeeting:
    """The connection of one host to the others.

    It makes groups of torch.distributed: gloo, and NCCL for CUDA devices. A process that is in no process group joins
    the one that torchrun names, and stays in it for later runs: a process that leaves it cannot come back.

    Attributes:
        number: Number of this host.
        count: Hosts.
        device: torch's device of the tensors that travel.
        group: The group of the hosts, for collectives of such tensors.
        saves: The words about saves between this host and the others.
    """

    def __init__(self, options: HostOptions, stopping: Callable[[], bool] = _never) -> None:
        """Joins the other hosts: rule M1.

        Args:
            options: The options of the group.
            stopping: Whether a signal asked the run to end.

        Raises:
            HostGone: A host did not come, or ended.
            InvalidConfig: torch still waits for hosts at another address, after a signal ended that wait.
            KeyboardInterrupt: A signal asked the run to end.

        Blocks:
            Until all hosts have come, at most five minutes, or the deadline if that is shorter.
        """
        self.number, self.count = host_number(options.count), options.count
        self.saves = JointSaves(is_first=self.number == 0)
        self.device = torch.device(options.device if options.device.startswith("cuda") else "cpu")
        self._deadline_s = options.deadline_s
        self._join(stopping)
        self._words: Any = self._made("gloo", stopping)
        self.group = self._made("nccl", stopping) if self.device.type == "cuda" else self._words

    def compare(self, options: Mapping[str, object], stopping: Callable[[], bool] = _never) -> None:
        """Compares options with those of the other hosts: rule M2. Blocks until all hosts are at this call.

        Args:
            options: {path: value} of this host; JSON can hold the values.
            stopping: Whether a signal asked the run to end.

        Raises:
            HostsDiffer: An option differs; the same error on all hosts.
            HostGone: A host is gone.
            KeyboardInterrupt: A signal asked the run to end.
        """
        first, *others = map(json.loads, self._gathered(json.dumps(options).encode(), stopping))
        for number, theirs in enumerate(others, 1):
            for path in {**first, **theirs}:
                expected, got = first.get(path, "no such option"), theirs.get(path, "no such option")
                if expected != got:
                    raise HostsDiffer(path, expected, got, number)

    def common_save(self, names: Sequence[str], stopping: Callable[[], bool] = _never) -> str | None:
        """Returns the name of the newest save that all hosts have; None: there is none.

        Blocks until all hosts are at this call. The errors are those of `compare`, without HostsDiffer.

        Args:
            names: The names of the saves of this host, the newest first.
            stopping: Whether a signal asked the run to end.
        """
        return newest_common([json.loads(one) for one in self._gathered(json.dumps(list(names)).encode(), stopping)])

    def done(self, work: Any, stopping: Callable[[], bool] = _never) -> None:
        """Waits for a transfer: rule M4. Raises HostGone, and KeyboardInterrupt if `stopping` says so."""
        began_s, pause_s = time.monotonic(), _SHORTEST_S
        try:
            while not work.is_completed():
                waited_s = time.monotonic() - began_s
                if waited_s >= self._deadline_s:
                    raise HostGone(self.number, waited_s, "another host says nothing")
                if stopping():
                    raise KeyboardInterrupt
                time.sleep(pause_s)
                pause_s = min(2.0 * pause_s, _LONGEST_S)
            work.wait()
        except RuntimeError as problem:  # of torch: a connection has ended
            raise HostGone(self.number, time.monotonic() - began_s, _line(problem)) from None

    def leave(self, *, is_failed: bool) -> None:
        """Leaves the groups, without a word to the other hosts, which find their connections closed: rule M4.

        torch closes the connections of a group with the last reference to it, and this object may live on in a cycle.
        torch first waits for a transfer under way, until its deadline. If there may be one, another thread drops the
        references. Python aborts if it ends while torch closes connections in a thread, so the end of the process waits
        for this thread.

        Args:
            is_failed: An error ended the run, so that a transfer may be under way.
        """
        groups = {self._words, self.group} - {None}
        self._words = self.group = None
        _destroy(groups)
        if is_failed:
            atexit.register(_Apart(groups.clear).wait, _LEAVE_S)
        else:
            groups.clear()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _join(self, stopping: Callable[[], bool]) -> None:
        """Joins the process group that torchrun names, unless this process is in one."""
        global _joining
        if dist.is_initialized():
            return
        where = _meeting_place()
        check_place(where)
        if _joining is None:
            atexit.register(_leave_process_group)
            timeout = datetime.timedelta(seconds=min(_JOIN_S, self._deadline_s))
            call = _Apart(lambda: dist.init_process_group("gloo", timeout=timeout))
            _joining = _Joining(where, call, call.began_s + timeout.total_seconds())
        self._result(_joining.call, stopping)

    def _made(self, backend: str, stopping: Callable[[], bool]) -> Any:
        timeout = datetime.timedelta(seconds=self._deadline_s)
        return self._result(_Apart(lambda: dist.new_group(backend=backend, timeout=timeout)), stopping)

    def _result(self, call: _Apart, stopping: Callable[[], bool]) -> Any:
        """Waits for a call of torch. Raises HostGone, and KeyboardInterrupt if `stopping` says so."""
        try:
            return call.result(stopping)
        except (RuntimeError, ValueError) as problem:
            raise HostGone(self.number, time.monotonic() - call.began_s, _line(problem)) from None

    def _gathered(self, mine: bytes, stopping: Callable[[], bool]) -> list[bytes]:
        """Returns the bytes that each host gave, by its number."""
        sizes = [int(size) for size in self._all(torch.tensor([len(mine)]), stopping)]
        padded = torch.frombuffer(bytearray(mine.ljust(max(sizes), b"\0")), dtype=torch.uint8)
        heard = self._all(padded, stopping)
        return [one.numpy().tobytes()[:size] for one, size in zip(heard, sizes, strict=True)]

    def _all(self, mine: torch.Tensor, stopping: Callable[[], bool]) -> list[torch.Tensor]:
        heard = [torch.empty_like(mine) for _ in range(self.count)]
        self.done(dist.all_gather(heard, mine, group=self._words, async_op=True), stopping)
        return heard


@final
class _Apart:
    """A call on a thread of its own, because Python runs the handlers of signals between instructions of the main one.

    The thread cannot be ended. It is a daemon, so that the process ends without it.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.began_s = time.monotonic()
        self._call, self._over = call, threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="relive-meeting", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the call has returned or raised."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> None:
        """Waits for the end of the thread."""
        self._thread.join(timeout_s)

    def result(self, stopping: Callable[[], bool]) -> Any:
        """Waits for the result, or raises the error of the call. Raises KeyboardInterrupt if `stopping` says so."""
        while not self._over.wait(_LOOK_S):
            if stopping():
                raise KeyboardInterrupt
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # raised by `result`
            self._error = error
        self._over.set()


@final
@dataclass(frozen=True)
class _Joining:
    """A call with which this process joins the other hosts, and where they meet."""

    where: str
    call: _Apart
    ends_s: float  # on time.monotonic(), when torch gives up


_joining: _Joining | None = None  # the last one; after a signal has ended a meeting, torch goes on joining


def check_place(where: str) -> None:
    """Raises InvalidConfig if torch still waits for hosts at another place, after a signal ended that meeting."""
    global _joining
    if _joining is not None and _joining.call.is_over:
        _joining = None
    if _joining is not None and _joining.where != where:
        ways = f"or a wait of {max(1, math.ceil(_joining.ends_s - time.monotonic()))} s, or a new process"
        expected = f"{_joining.where}, where torch still waits for other hosts; {ways}"
        raise InvalidConfig("meeting of the hosts", expected, where)


def _meeting_place() -> str:
    """Returns where torch joins the other hosts, and as which host."""
    number, count, address, port = (
        os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    )
    return f"{address}:{port}, as host {number} of {count}"


def _destroy(groups: set[Any]) -> None:
    for group in groups:
        with contextlib.suppress(RuntimeError):  # a host is gone
            dist.destroy_process_group(group)


def _leave_process_group() -> None:
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the process ends anyway
        dist.destroy_process_group()


def _line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:200]
