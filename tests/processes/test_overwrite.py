"""SharedMemory(name, overwrite=True): a notebook's cell runs again; what another process uses is never taken away."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import children
from relive import errors
from relive.core.attached import attached_pids

pytestmark = needs_shared_memory

SPEC = relive.StepSpec({"x": relive.ArraySpec((), "float32")})


def make(name: str, overwrite: bool = True, capacity: int = 100) -> relive.Table:
    return relive.Table(SPEC, capacity, storage=relive.SharedMemory(name, overwrite=overwrite), max_lanes=4)


def fill(table: relive.Table, number: int) -> None:
    with table.writer() as writer:
        writer.extend(x=np.arange(number, dtype=np.float32), terminated=True)


def attach_and_wait(pipe: Any, name: str, read_only: bool) -> None:
    """A process with a handle: says its number, counts the steps when asked, leaves when told."""
    with relive.attach(name, read_only=read_only) as table:
        pipe.send(os.getpid())
        while pipe.recv() == "count":
            pipe.send(len(table))


def wait_only(pipe: Any) -> None:
    pipe.send(os.getpid())
    pipe.recv()


def test_the_same_cell_again(shm_name: Callable[[], str]) -> None:
    """The new table replaces the first one, which was still open. A call on the old handle says that it is closed."""
    name = shm_name()
    first = make(name)
    fill(first, 7)
    again = make(name, capacity=200)
    assert first.closed and not again.closed
    assert len(again) == 0 and again.capacity == 200
    fill(again, 3)
    with pytest.raises(errors.TableClosed):
        first.sample(1)
    with relive.attach(name) as third:
        assert len(third) == 3
    again.check()
    again.close()
    assert not shared_files(name)


def test_every_handle_of_this_process_is_closed(shm_name: Callable[[], str]) -> None:
    name, other = shm_name(), shm_name()
    with make(other) as stays:
        first = make(name)
        handles = [first, relive.attach(name), relive.attach(name, read_only=True), pickle.loads(pickle.dumps(first))]
        writer = first.writer()
        with make(name) as again:
            assert all(handle.closed for handle in handles) and writer.closed
            assert not stays.closed and not again.closed


def test_where_there_is_nothing(shm_name: Callable[[], str]) -> None:
    with make(shm_name()) as table:
        fill(table, 2)
        assert len(table) == 2


def test_a_leftover_of_a_killed_process(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    program = (
        "import os, relive\n"
        "spec = relive.StepSpec({'x': relive.ArraySpec((), 'float32')})\n"
        f"table = relive.Table(spec, 100, storage=relive.SharedMemory({name!r}), max_lanes=4)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60)
    assert shared_files(name)
    with make(name) as table:
        assert len(table) == 0


@pytest.mark.parametrize("read_only", [False, True])
def test_what_another_process_has_stays(shm_name: Callable[[], str], read_only: bool) -> None:
    """Refused by name and number, and nothing is changed, this process's own handles neither."""
    name = shm_name()
    mine = make(name)
    fill(mine, 5)
    with children() as start:
        child = start("spawn", attach_and_wait, name, read_only)
        pid = child.answer()
        with pytest.raises(errors.NameTaken) as caught:
            make(name)
        assert set(caught.value.pids) == {pid, os.getpid()}
        assert str(pid) in str(caught.value) and name in str(caught.value)
        assert not mine.closed and len(mine) == 5
        child.tell("count")
        assert child.answer() == 5
        mine.close()
        with pytest.raises(errors.NameTaken) as alone:
            make(name)
        assert alone.value.pids == (pid,)
        child.tell("leave")
        child.join()
    with make(name) as again:
        assert len(again) == 0


def test_a_forked_child_that_never_used_the_table_holds_nothing(shm_name: Callable[[], str]) -> None:
    """Worker processes of environments, forked after the table was made, outlive a cell."""
    name = shm_name()
    first = make(name)
    with children() as start:
        child = start("fork", wait_only)
        pid = child.answer()
        assert pid not in attached_pids(relive.SharedMemory(name).path)
        with make(name) as again:
            assert first.closed and len(again) == 0
        child.tell("leave")
        child.join()


def test_a_process_that_only_reads_the_file_holds_nothing(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    path = relive.SharedMemory(name).path
    with make(name):
        program = f"file = open({path!r}, 'rb'); print('open', flush=True); input()"
        line = [sys.executable, "-c", program]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "open\n"
            assert attached_pids(path) == (os.getpid(),)
            reader.communicate("\n", timeout=60)


def test_without_overwrite_the_way_out_is_told(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    with make(name) as first:
        with pytest.raises(errors.NameTaken) as caught:
            make(name, overwrite=False)
        assert caught.value.pids == (os.getpid(),)
        assert f"SharedMemory({name!r}, overwrite=True)" in str(caught.value)
        assert not first.closed


def test_who_cannot_be_removed_is_named(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    with make(name), pytest.raises(errors.InUse) as caught:
        relive.remove(name)
    assert caught.value.pids == (os.getpid(),) and "this process" in str(caught.value)


def test_two_threads_overwrite_at_once(shm_name: Callable[[], str]) -> None:
    """Each comes out with a table or with NameTaken; one table of the name is left, and it is sound."""
    name = shm_name()
    made: list[relive.Table] = []
    failed: list[BaseException] = []

    def run() -> None:
        for _ in range(10):
            try:
                made.append(make(name))
            except errors.NameTaken:
                pass
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    still_open = [table for table in made if not table.closed]
    assert len(still_open) == 1
    still_open[0].check()
    still_open[0].close()
    assert not shared_files(name)


def test_is_a_value_of_the_configuration(shm_name: Callable[[], str]) -> None:
    storage = relive.SharedMemory(shm_name(), overwrite=True)
    config = relive.TableConfig(SPEC, 100, storage=storage)
    assert pickle.loads(pickle.dumps(config)) == config and "overwrite=True" in repr(storage)
    assert relive.TableConfig.from_dict(config.to_dict()).storage == storage
    with pytest.raises(errors.InvalidConfig):
        relive.SharedMemory("x", overwrite="yes")  # type: ignore[arg-type]
    with relive.Table.from_config(config), relive.Table.from_config(config) as again:
        assert len(again) == 0
