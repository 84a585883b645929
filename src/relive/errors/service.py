"""Errors of the service: unreachable servers, messages, versions."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from relive.errors.base import ReliveError, plain, shown

__all__ = [
    "AccessDenied",
    "BadMessage",
    "CannotListen",
    "Draining",
    "HandshakeFailed",
    "ServiceUnavailable",
    "StaleVersion",
    "Unacknowledged",
]


@final
class ServiceUnavailable(ReliveError, ConnectionError):
    """A server is gone, hangs or cannot be reached. It is not known whether the server did the work of the call.

    Attributes:
        address: Address of the server.
        waited_s: Seconds that the call waited.
        reason: The reason in a line.
        is_there: The server is neither gone nor silent: bytes came from it until the deadline of the call.
        unanswered: rows of a writer's call, or items of create_items, after the `stored` first ones, that were sent
            and may be stored. Else 0.
    """

    unanswered: int = 0

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
        self._without_rows = str(self)

    def tell_rows(self, keys: npt.NDArray[np.int64], num_rows: int, unanswered: int) -> None:
        """Notes what is known of the rows of a writer's call.

        Args:
            keys: int64[stored], the keys of the first rows, which are stored.
            num_rows: rows of the call.
            unanswered: rows after these that were sent.
        """
        self._tell(
            keys, f"{num_rows} rows", unanswered, "stored", "write them again; the lanes are cut", ", step by step"
        )

    def tell_items(self, keys: npt.NDArray[np.int64], num_items: int, unanswered: int) -> None:
        """Notes what is known of the items of create_items.

        Args:
            keys: int64[stored], the keys of the first items, which are made.
            num_items: items of the call.
            unanswered: items after these that were sent.
        """
        self._tell(keys, f"{num_items} items", unanswered, "made", "make them again")

    def _tell(
        self, keys: npt.NDArray[np.int64], all_of_them: str, unanswered: int, done: str, again: str, how: str = ""
    ) -> None:
        """Notes the numbers, and words them. all_of_them: the number of the call, and what it counts."""
        self.stored, self.keys, self.unanswered = len(keys), keys if len(keys) else None, unanswered
        facts = []
        if len(keys):
            facts.append(f"{done} the first {len(keys)} of {all_of_them}{how}, under the error's keys")
        if unanswered:
            rest = f"{all_of_them.split()[1]} after them" if len(keys) else all_of_them
            facts.append(f"may have {done} {unanswered} of the {rest}: look for them before you {again}")
        self.args = (f"{self._without_rows}; the server {', and '.join(facts)}",) if facts else (self._without_rows,)


@final
class CannotListen(ReliveError, OSError):
    """A server cannot listen on an address of this machine: the port is taken, or the host is not this machine's.

    Attributes:
        address: The address.
        reason: The reason in a line.
    """

    def __init__(self, address: str, reason: str = "") -> None:
        self.address = address
        self.reason = reason
        super().__init__(
            f"no server can listen on {address}"
            + (f" ({reason})" if reason else "")
            + "; take a free port (0 takes any) from 0 to 65535, and a host name or address of this machine"
        )


@final
class AccessDenied(ReliveError, PermissionError):
    """A server does not allow a call.

    Attributes:
        table: The table, if the client has a role for it. Else "": the server tells a stranger nothing.
        role: The role that the call needs, or 'one or another', if the client has another role for the table. Else "".
    """

    def __init__(self, table: str = "", role: str = "") -> None:
        self.table = table
        self.role = role
        super().__init__(
            f"table {table!r}: the call needs the role {role!r}, which this client does not have; ask for a token with"
            f" {' or '.join(f'--role {one}' for one in role.split(' or '))}"
            if role
            else "the server refused the request: expected a token or a certificate that allows it; give"
            " connect(token=), or --token-file to a command, or set RELIVE_TOKEN_FILE or RELIVE_TOKEN where the handle"
            " is opened"
        )


@final
class Draining(ReliveError, ConnectionError):
    """A server ends after the calls under way, and opens no stream. A handle waits for the server that comes after."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(f"{address} drains: it ends after the calls under way; connect to the server that comes after")


@final
class HandshakeFailed(ReliveError, ConnectionError):
    """Client and server do not agree on TLS. Another attempt would fail in the same way."""

    def __init__(self, address: str, reason: str, way_out: str) -> None:
        self.address = address
        self.reason = reason
        self.way_out = way_out
        super().__init__(f"{address}: no TLS connection ({reason}); {way_out}")


@final
class Unacknowledged(ReliveError, RuntimeError):
    """The server did not confirm streamed steps. __cause__ is the error; reason is its sentence."""

    def __init__(self, num_calls: int, num_steps: int, reason: str) -> None:
        self.num_calls = num_calls
        self.num_steps = num_steps
        self.reason = reason
        lost = f"{num_steps} steps of the last {num_calls} calls are not acknowledged and not sent again"
        super().__init__(f"{lost if num_calls else 'no step is lost, but the lanes of the writer are cut'}: {reason}")


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
