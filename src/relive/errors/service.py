"""Errors of the service: unreachable servers, messages, versions."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError, plain, shown

__all__ = ["BadMessage", "ServiceUnavailable", "StaleVersion", "Unacknowledged"]


@final
class ServiceUnavailable(ReliveError, ConnectionError):
    """A server is gone, hangs or cannot be reached. It is not known whether the server did the work of the call.

    Attributes:
        address: Address of the server.
        waited_s: Seconds that the call waited.
        reason: The reason in a line.
        is_there: The server is neither gone nor silent: bytes came from it until the deadline of the call.
    """

    def __init__(self, address: str, waited_s: float, reason: str = "", is_there: bool = False) -> None:
        self.address = address
        self.waited_s = waited_s
        self.reason = reason
        self.is_there = is_there
        way_out = "see that it is served there; this handle works again once it is"
        super().__init__(
            f"{address} gave no answer in {waited_s:.3g} s"
            + (f" ({reason})" if reason else "")
            + ("; its answer was on its way: give a larger timeout_s" if is_there else f"; {way_out}")
        )


@final
class Unacknowledged(ReliveError, RuntimeError):
    """The server did not confirm streamed steps. __cause__ is the error; reason is its sentence."""

    def __init__(self, num_calls: int, num_steps: int, reason: str) -> None:
        self.num_calls = num_calls
        self.num_steps = num_steps
        self.reason = reason
        super().__init__(
            f"{num_steps} steps of the last {num_calls} calls are not acknowledged and not sent again: {reason}"
        )


@final
class StaleVersion(ReliveError, ValueError):
    """The version of the parameters is not above the newest published one: versions never go back."""

    def __init__(self, version: int, newest: int) -> None:
        self.version = version
        self.newest = newest
        super().__init__(
            f"parameters of version {version}: expected a version above {newest}, the newest that is published; two"
            " publishers share one count, and one that starts again goes on from the count it left"
        )


@final
class BadMessage(ReliveError, ValueError):
    """A message is none of this version."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = plain(got)
        super().__init__(f"{what}: expected {expected}, got {shown(self.got)}; see that both sides run one version")
