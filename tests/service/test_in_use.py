"""A server's word on a table that it may still use, for the program that closes the table."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec

import relive
from relive import errors
from relive.service import ServerOptions, connect, serve
from relive.service.server.sessions import CallSession
from service.gates import until


def test_a_table_is_in_use_until_a_call_that_close_gave_up_on_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, handle = threading.Event(), threading.Event(), CallSession.handle

    def slow(session: CallSession, header: Any, body: Any) -> None:
        if header["op"] == "check":
            begun.set()
            assert goes_on.wait(60.0)
        handle(session, header, body)

    monkeypatch.setattr(CallSession, "handle", slow)
    table = relive.Table(plain_spec(), 200)
    server = serve({"t": table}, "grpc://127.0.0.1:0", ServerOptions(close_timeout_s=0.0))
    with connect(server.address + "/t", timeout_s=60.0) as remote, ThreadPoolExecutor(1) as pool:
        try:
            check = pool.submit(remote.check)
            assert begun.wait(60.0)
            server.close()
            assert server.is_in_use("t")
        finally:
            goes_on.set()
            remote.close()
        with pytest.raises(errors.ReliveError):
            check.result(60.0)
        until(lambda: not server.is_in_use("t"))
    table.close()
