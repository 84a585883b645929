"""The basis of every test: fresh names, nothing left behind in shared memory, and one thread for numerics."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

# Threads of numerics that wait by spinning take the cores from the test that is to compute: matrices here are small.
# Set before numpy or torch is imported. Processes of tests inherit it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # helpers import as naive.twin, contract.tools, ...

pytest.register_assert_rewrite(
    "contract.tools",
    "contract.writing",
    "contract.items",
    "contract.reading",
    "contract.steps",
    "contract.limits",
    "contract.changes",
    "contract.explicit",
    "contract.bad_input",
    "contract.bad_config",
    "naive.program",
    "naive.compare",
    "core.tools",
    "processes.tools",
    "tiered.tools",
)

SOAK = os.environ.get("RELIVE_SOAK") == "1"
_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Short and derandomized programmes; `RELIVE_SOAK=1` makes them long and random.

    Ctrl-C interrupts, also where the shell starts the tests in the background and ignores it for them. A lost terminal
    ends the processes that the tests start, also under nohup.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        import hypothesis
    except ImportError:
        return
    common = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck), "print_blob": True}
    hypothesis.settings.register_profile("short", max_examples=40, derandomize=True, database=None, **common)
    hypothesis.settings.register_profile("soak", max_examples=2000, database=None, **common)
    hypothesis.settings.load_profile("soak" if SOAK else "short")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses: the forms of a test that `make test` leaves out are marked as thorough."""
    from forms import mark_the_rest

    mark_the_rest(items)


@pytest.fixture
def shm_name() -> Iterator[Callable[[], str]]:
    """A maker of new names. Files that a failing test leaves under them are removed after the test."""
    with _new_names() as fresh:
        yield fresh


@pytest.fixture(scope="class")
def shm_name_of_class() -> Iterator[Callable[[], str]]:
    """The same, for tables that last as long as the tests of a class."""
    with _new_names() as fresh:
        yield fresh


@contextlib.contextmanager
def _new_names() -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def fresh() -> str:
        made.append(f"t{os.getpid()}n{next(_numbers)}x")
        return made[-1]

    try:
        yield fresh
    finally:
        _remove(made)


def _remove(made: list[str]) -> None:
    from processes.shm import shared_files

    for name in made:
        for path in shared_files(name):
            path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def warm_client() -> Iterator[Any]:
    """The client of a server of processes that have imported torch (tests/warm.py); None where there is none."""
    import warm

    with warm.warm_server() as client:
        yield client


@pytest.fixture(scope="module")
def processes_start_warm(warm_client: Any) -> Iterator[None]:
    """The processes of a module's tests are forks of that server."""
    import warm

    with warm.diverted(warm_client) if warm_client else contextlib.nullcontext():
        yield


@pytest.fixture
def profile_scale() -> int:
    """1 in the short run, more in the soak."""
    return 50 if SOAK else 1
