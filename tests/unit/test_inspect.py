"""`relive inspect`: the view of a table while it is in use, its text, and the page that a browser gets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive.cli.entry import run
from relive.cli.inspecting.terminal import Screen, bar, sparkline
from relive.cli.inspecting.view import Looker
from relive.cli.inspecting.web import _handler, make_server

pytestmark = needs_shared_memory
SPEC = relive.StepSpec({"x": relive.ArraySpec((), "float32"), "reward": relive.ArraySpec((), "float32")})


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"inspect-{tmp_path.name}"


@contextmanager
def filled(name: str, index: relive.Index) -> Iterator[relive.Table]:
    """A shared table of 100 steps."""
    with relive.Table(SPEC, 1_000, index, storage=relive.SharedMemory(name), seed=0) as table:
        with table.writer() as writer:
            writer.extend(x=np.arange(100), reward=np.ones(100), truncated=True)
        yield table


def test_a_view_says_what_is_there_and_changes_nothing(name: str) -> None:
    with filled(name, relive.Index(sampler=relive.Prioritized(0.6))) as table:
        batch = table.sample(64)
        table.update_priorities(batch.item_keys, np.full(64, 4.0))
        before = table.stats()
        with relive.attach(name, read_only=True) as looked:
            looker = Looker(looked, name)
            looker.look()
            view = looker.look()
        after = table.stats()
        assert (view.num_steps, view.capacity, view.appended) == (100, 1_000, 100)
        index = view.indexes[0]
        assert index.num_items == 100 and index.reuse == pytest.approx(0.64)
        assert index.priorities is not None and index.priorities.high == pytest.approx(4.0, rel=0.01)
        assert index.priorities.low == pytest.approx(1.0, rel=0.01)
        assert sum(index.priorities.shares) == pytest.approx(1.0)
        assert (after.indexes["default"].sampled, after.num_participants) == (64, before.num_participants)


def test_rates_are_those_since_the_view_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.0])
    monkeypatch.setattr("relive.cli.inspecting.view.time.monotonic", lambda: next(times))
    with filled(name, relive.Index()) as table, relive.attach(name, read_only=True) as looked:
        looker = Looker(looked, name)
        assert looker.look().steps_per_s == 0
        with table.writer() as writer:
            writer.extend(x=np.arange(50), reward=np.ones(50), truncated=True)
        table.sample(30)
        view = looker.look()
        assert view.steps_per_s == 25 and view.indexes[0].draws_per_s == 15


def test_the_side_that_waits_is_named(name: str) -> None:
    limiter = relive.MinSize(500)
    with filled(name, relive.Index(limiter=limiter)) as table, relive.attach(name) as other:
        waiting = threading.Thread(target=lambda: other.sample(8, timeout_s=60.0))
        waiting.start()
        with relive.attach(name, read_only=True) as looked:
            looker = Looker(looked, name)
            while not any("1 waiting" in one for one in looker.look().indexes[0].waits):
                pass
            text = Screen().text(looker.look())
        assert "readers wait for writers: the index has fewer items than its min_size" in text
        table.set_limiter(relive.MinSize(1))
        waiting.join(60)
        assert not waiting.is_alive()


def test_a_table_without_an_item_has_a_view(name: str) -> None:
    with relive.Table(SPEC, 100, storage=relive.SharedMemory(name)), relive.attach(name, read_only=True) as looked:
        view = Looker(looked, name).look()
        assert view.num_steps == 0 and view.indexes[0].priorities is None
        assert "0 of 100 steps" in Screen().text(view)


def test_pictures_of_text() -> None:
    assert bar(0.5).count("█") == bar(0.5).count("·") and set(bar(2.0)) == {"█"}
    assert sparkline([0, 1, 2]) == " ▄█" and sparkline([0, 0]) == "  "


def get(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_browser_of_this_machine_gets_the_page_and_the_view(name: str) -> None:
    with filled(name, relive.Index()), relive.attach(name, read_only=True) as looked:
        with make_server(Looker(looked, name), 0) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                status, page = get(server.server_port, "/")
                assert (
                    status == 200
                    and b"view.json" in page
                    and b"http://" not in page.replace(b"http://www.w3.org/", b"")
                )
                status, body = get(server.server_port, "/view.json")
                view = json.loads(body)
                assert status == 200 and view["num_steps"] == 100 and view["indexes"][0]["name"] == "default"
                assert get(server.server_port, "/etc")[0] == 404
                for host in ("127.0.0.1", "localhost", "[::1]", "localhost:80"):  # port 80 is left out of the header
                    assert get(server.server_port, "/view.json", host)[0] == 200
                for host in ("elsewhere.example:80", "elsewhere.example", "127.0.0.1:x", "[::1", "", ":80"):
                    assert get(server.server_port, "/view.json", host)[0] == 403
                looked.close()
                status, body = get(server.server_port, "/view.json")
                assert status == 503 and "closed" in json.loads(body)["error"]
            finally:
                server.shutdown()
                thread.join()


def test_a_browser_that_went_away_makes_no_error() -> None:
    handler = _handler(b"page", lambda: b"{}")
    for path in ("/", "/view.json", "/other"):
        browser, server = socket.socketpair()
        with server:
            browser.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            browser.close()
            handler(server, ("127.0.0.1", 0), None)  # type: ignore[arg-type]


def test_the_command_shows_tables_and_saves(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.cli.inspect.time.sleep", lambda _: None)
    with filled(name, relive.Index()) as table:
        assert run(["inspect", name]) == 0  # a pipe gets one view
        assert "100 of 1,000 steps" in capsys.readouterr().out
        table.save(tmp_path / "save")
    assert run(["inspect", str(tmp_path / "save")]) == 0
    out = capsys.readouterr().out
    assert "100 of 1,000 steps" in out and "relive.load" in out


def test_a_view_without_an_end_ends_at_ctrl_c(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("relive.cli.inspect.time.sleep", sleep)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with filled(name, relive.Index()), pytest.raises(KeyboardInterrupt):
        run(["inspect", name, "--every", "inf"])
    assert 0 < waits[0] < 1e9, "a time that sleep() takes"
    assert "Ctrl-C ends this view" in capsys.readouterr().out


def test_targets_that_are_none_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(relive.errors.NoSuchTable):
        run(["inspect", name])
    with pytest.raises(relive.errors.NoSuchTable):
        run(["inspect", str(tmp_path / "none" / "x")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(relive.errors.NoSuchSave):
        run(["inspect", str(tmp_path / "empty")])
    for arguments in (["--web", "70000"], ["--web", "x"], ["--once", "--web", "0"], ["--every", "0"]):
        with pytest.raises(SystemExit) as end:
            run(["inspect", name, *arguments])
        assert end.value.code == 2


def test_a_served_table_is_shown_without_draws(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = pytest.importorskip("relive.service", reason="a server needs pyarrow (extra service)")
    monkeypatch.setattr("relive.cli.inspect.time.sleep", lambda _: None)
    with filled(name, relive.Index(sampler=relive.Prioritized(0.6))) as table:
        with service.serve({"pong": table}, "grpc://127.0.0.1:0") as server:
            assert run(["inspect", f"{server.address}/pong", "--once"]) == 0
        assert table.stats().indexes["default"].sampled == 0
    out = capsys.readouterr().out
    assert "100 of 1,000 steps" in out and "priority  " not in out
