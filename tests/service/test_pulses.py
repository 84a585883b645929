"""Pulses of a server: often enough for the patience of each client, and no more often."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from relive.service.server import pipe as pipes  # noqa: E402


class Written:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def write_metadata(self, message: Any) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("patience_s", [1.0, 60.0])
def test_a_pulse_is_due_five_times_within_the_patience_of_the_client(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = [100.0], Written()
    monkeypatch.setattr(pipes.time, "monotonic", lambda: now[0])
    pipe: Any = pipes.Pipe(None, None, written, lambda count: None)
    pipe.patience_s = patience_s
    assert not pipe.is_due(), "the session has no message"
    pipe._is_busy, pipe._busy_since = True, now[0]
    for _ in range(1_000):
        now[0] += patience_s / 100
        if pipe.is_due():
            pipe.pulse()
    assert 45 <= len(written.messages) <= 50, "10 times the patience"
    pipe.rest()
    now[0] += 10 * patience_s
    assert not pipe.is_due()
