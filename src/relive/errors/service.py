"""Errors of the service: unreachable servers, messages, versions."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError, plain, shown

__all__ = ["BadMessage", "ServiceUnavailable", "StaleVersion", "Unacknowledged"]


@final
class ServiceUnavailable(ReliveError, ConnectionError):
    """A server that is gone, hangs or cannot be reached. Whether it did what this call asked for is unknown."""

    def __init__(self, address: str, waited_s: float, reason: str = "") -> None:
        self.address = address
        self.waited_s = waited_s
        self.reason = reason
        super().__init__(
            f"{address} gave no answer in {waited_s:.3g} s"
            + (f" ({reason})" if reason else "")
            + "; see that it is served there; this handle works again once it is"
        )


@final
class Unacknowledged(ReliveError, RuntimeError):
    """Streamed steps that the server did not confirm; __cause__ is the error, reason its sentence."""

    def __init__(self, num_calls: int, num_steps: int, reason: str) -> None:
        self.num_calls = num_calls
        self.num_steps = num_steps
        self.reason = reason
        super().__init__(
            f"{num_steps} steps of the last {num_calls} calls are not acknowledged and not sent again: {reason}"
        )


@final
class StaleVersion(ReliveError, ValueError):
    """Parameters of a version that is not above the newest one published: versions never go back."""

    def __init__(self, version: int, newest: int) -> None:
        self.version = version
        self.newest = newest
        super().__init__(
            f"parameters of version {version}: expected a version above {newest}, the newest that is published; two"
            " publishers share one count, and one that starts anew goes on from the count it left"
        )


@final
class BadMessage(ReliveError, ValueError):
    """What came over the wire is no message of this version."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = plain(got)
        super().__init__(f"{what}: expected {expected}, got {shown(self.got)}; see that both sides run one version")
