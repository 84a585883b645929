"""Compiles the update of an agent in a process of its own, and keeps the compiled package on disk.

- A package is the update of an agent (`Agent.functional`), compiled ahead of time by torch's AOTInductor: a shared
  library that loads in milliseconds.
- It is in the cache folder of the user ($XDG_CACHE_HOME or ~/.cache, relive/updates) under a key of everything that
  it depends on: the code that it was made from, the agent's options and shapes, the processor, threads, torch.
- It is written under another name and renamed, so that a reader finds a whole package or none.
- The process that compiles has the lowest priority, needs g++, and takes one to a few minutes of a core. It ends with
  the process that asked for it, however that one ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.agents.agent import Spaces
from relive.agents.config import AgentConfig
from relive.agents.functional import source_files
from relive.core.forks import computed_once
from relive.train.learners.numerics import learner_numerics

_OTHER_COMPILES = 75  # exit status: another process compiles the same package
_LOOK_S = 1.0


def cache_folder() -> Path:
    """Returns the folder of the packages. Raises OSError if this user has no home directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(cache or Path.home() / ".cache") / "relive" / "updates"
    except RuntimeError:
        raise FileNotFoundError("this user has no home directory: set $XDG_CACHE_HOME") from None


def compiler() -> str | None:
    """Returns the C++ compiler that torch calls; None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def processor() -> str:
    """Returns the model and the features of the processor, for which the code is compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    told = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))


@final
@dataclass(frozen=True)
class PackageRequest:
    """The update of one agent for one machine.

    Attributes:
        agent: Options of the agent.
        spaces: Spaces of the environment.
        num_threads: Threads of the learner.
        steps: Names of the steps of the update (`Functional.steps`), a package each.
    """

    agent: AgentConfig
    spaces: Spaces
    num_threads: int
    steps: tuple[str, ...]

    @computed_once
    def key(self) -> str:
        """The key of everything that the packages depend on."""
        parts = [path.read_text(encoding="utf-8") for path in source_files()]
        action = self.spaces.action
        parts += [repr(self.agent), str(self.spaces.observation_shape), f"{action.shape} {getattr(action, 'n', '')}"]
        parts += [processor(), str(self.num_threads), torch.__version__]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def path(self, step: str) -> Path:
        """Returns the path of the package of one step."""
        return cache_folder() / f"{self.key}-{step}.pt2"

    @property
    def is_there(self) -> bool:
        """Whether all packages of the update are on disk. Raises OSError if the cache folder cannot be searched."""
        return all(self.path(step).exists() for step in self.steps)


def load_packages(request: PackageRequest) -> dict[str, Any]:
    """Loads the compiled steps by name: functions of a list of tensors. Raises the errors of torch if it cannot.

    It uses torch's internal loader, which takes milliseconds: torch._inductor, which wraps the loader, takes seconds to
    import, and a learner would wait for it. The key has the version of torch.
    """
    loader = torch._C._aoti.AOTIModelPackageLoader
    return {step: loader(str(request.path(step)), "model", True, 1, -1).run for step in request.steps}


@final
class Compiling:
    """A process that compiles the packages of a request. `stop` ends it together with the compilers that it started."""

    def __init__(self, request: PackageRequest) -> None:
        """Starts the process. Raises OSError if the cache folder cannot be written."""
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{request.key}.log"
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "relive.train.learners.compiled_updates", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # so Ctrl-C reaches the run alone, and killpg ends the compilers as well
            )
        assert self._process.stdin is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died at once: its status and its log say why

    @property
    def ended(self) -> bool:
        """Whether the process has ended, with or without packages."""
        return self._process.poll() is not None

    @property
    def problem(self) -> str | None:
        """The reason of a failure in a line; None while it runs, after a success, or if another process compiles."""
        if self._process.poll() in (None, 0, _OTHER_COMPILES):
            return None
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"

    def stop(self) -> None:
        """Ends the process at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


# ---- the process -----------------------------------------------------------------------------------------------------


@final
class _Blank:
    """A batch of zeros with the shapes of the agent's columns."""

    def __init__(self, request: PackageRequest) -> None:
        self._spaces, self.num_items = request.spaces, request.agent.batch_size

    def __getitem__(self, name: str) -> NDArray[Any]:
        rows = self.num_items
        if name in ("observation", "next_observation"):
            return np.zeros((rows, self._spaces.observation_size), np.float32)
        if name == "action":
            return np.zeros((rows, *self._spaces.action.shape), self._spaces.action.dtype)
        return np.zeros(rows, np.float32)

    def weights(self, beta: float) -> NDArray[np.float32]:
        return np.ones(self.num_items, np.float32)


def compile_packages(request: PackageRequest) -> None:
    """Compiles the packages of a request that are not on disk yet."""
    from torch.fx.experimental.proxy_tensor import make_fx

    agent = request.agent.make(request.spaces, seed=0, device="cpu")
    update = agent.functional()
    count = len(update.state)

    class Traced(torch.nn.Module):
        def __init__(self, graph: Any) -> None:
            super().__init__()
            self.graph = graph

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = self.graph(*tensors)
            for old, new in zip(tensors[:count], results[:count], strict=True):
                old.copy_(new)
            return tuple(results[count:])

    for step in request.steps:
        target = request.path(step)
        if target.exists():
            continue
        with torch.no_grad():
            arguments = (*update.state, *update.load(_Blank(request)))
            graph = make_fx(update.steps[step])(*arguments)
            exported = torch.export.export(Traced(graph), arguments, strict=False)
        made = target.with_name(f"new-{target.name}")  # only this process writes it, over the rest of a killed one
        torch._inductor.aoti_compile_and_package(exported, package_path=str(made))
        os.replace(made, target)


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended: a killed parent cannot do it."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    """usage: python -m relive.train.learners.compiled_updates PARENT < a pickled PackageRequest of that parent."""
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    request: PackageRequest = pickle.load(sys.stdin.buffer)
    os.nice(19)
    with open(cache_folder() / f"{request.key}.lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(_OTHER_COMPILES)
        with learner_numerics(request.num_threads):
            compile_packages(request)


if __name__ == "__main__":
    main()
