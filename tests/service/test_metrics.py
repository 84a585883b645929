"""Metrics of a server, as Prometheus reads them."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed here (extra `service`)")

from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive import errors
from relive.service import connect, serve
from relive.service.server import metrics as module
from service.doors import Stream, tokens_for
from service.gates import until


def test_a_label_has_no_text_of_a_client() -> None:
    with relive.Table(plain_spec(), 200) as table, serve({"pong": table}, "grpc://127.0.0.1:0") as server:
        port = server.serve_metrics()
        stream = Stream(f"{server.address}/pong", "write", None)
        stream.hears()
        for number, op in enumerate(["append", "x" * 1000, ["y"], None]):
            stream.say(seq=number, epoch=0, timeout_s=0.0, ops=[], op=op)
            stream.hears()
        stream.close()

        def lines() -> list[str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                told = answer.read().decode().splitlines()
            return [line for line in told if line.startswith("relive_call_seconds_count")]

        # A call is counted after its answer.
        until(lambda: lines() == ['relive_call_seconds_count{kind="write",op="write",table="pong"} 4.0'])


def test_metrics_of_tables_and_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_for(tmp_path / "tokens.toml", "*")
    with relive.Table(plain_spec(), 200, prioritized()) as table, table.writer() as writer:
        write_steps(writer, 0, 20)
        with serve({"pong": table}, "grpc://127.0.0.1:0", tokens=tmp_path / "tokens.toml") as server:
            port = server.serve_metrics()
            with pytest.raises(errors.InvalidConfig, match="one port"):
                server.serve_metrics()

            def read() -> dict[str, float]:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                    text = answer.read().decode()
                assert not any(token in text for token in tokens.values())
                lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
                return {name: float(value) for name, value in lines}

            with connect(f"{server.address}/pong", token=tokens["read"]) as remote:
                remote.sample(4)
                with pytest.raises(errors.AccessDenied):
                    remote.clear()
                told = read()
                assert (
                    told['relive_table_steps{table="pong"}'] == 20
                    and told['relive_table_fill_ratio{table="pong"}'] == 0.1
                )
                assert told['relive_table_stuck{table="pong"}'] == 0 and told["relive_refusals_total"] == 1
                assert told['relive_streams{client="read",role="read"}'] == 1
                assert told['relive_call_seconds_count{kind="call",op="sample",table="pong"}'] == 1

                def stuck(core: object, timeout_s: float) -> None:
                    raise errors.DeadlineExceeded("the lock", "", timeout_s, 4242)

                monkeypatch.setattr(module, "check_lock", stuck)
                told = read()
                assert told['relive_table_stuck{table="pong"}'] == 1 and 'relive_table_steps{table="pong"}' not in told
        with pytest.raises(OSError):
            read()


def test_a_closed_server_serves_no_metrics() -> None:
    """No close() would end them."""
    with relive.Table(plain_spec(), 200) as table:
        server = serve({"pong": table}, "grpc://127.0.0.1:0")
        server.close()
        with pytest.raises(errors.InvalidConfig, match="closed"):
            server.serve_metrics()
        assert server._metrics is None


def test_metrics_that_begin_while_the_server_closes_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ports, make = [], module.Metrics

    def made_while_it_closes(*arguments: Any) -> module.Metrics:
        made = make(*arguments)
        ports.append(made.port)
        server.close()
        return made

    monkeypatch.setattr(module, "Metrics", made_while_it_closes)
    with relive.Table(plain_spec(), 200) as table, serve({"pong": table}, "grpc://127.0.0.1:0") as server:
        with pytest.raises(errors.InvalidConfig, match="closed"):
            server.serve_metrics()
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=20)
