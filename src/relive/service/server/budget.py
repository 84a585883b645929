"""Bounds the memory that requests make a server allocate: a request waits for its bytes before it gets them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import final

from relive.errors import DeadlineExceeded, InvalidConfig, ServiceUnavailable

__all__ = ["FREE_BYTES", "Budget"]

FREE_BYTES = 1 << 20  # smaller requests are not counted: all streams together cost less than one counted request
_LOOK_EVERY_S = 0.5


class _Waiter:
    """A request that waits."""

    def __init__(self, client: str, num_bytes: int) -> None:
        self.client = client
        self.num_bytes = num_bytes


@final
class Budget:
    """Bytes that requests share. Requests get them in the order of their arrival.

    A request that waits for the share of its own client does not delay the requests of other clients. `_changed`
    protects the counts and the queue.

    Args:
        what: The option that the errors name.
        total: Bytes of all clients together.
        per_client: Bytes of one client.
        owners: The objects that have the bytes, as the errors name them.
    """

    def __init__(self, what: str, total: int, per_client: int, owners: str = "other requests") -> None:
        self._what = what
        self._owners = owners
        self._total = total
        self._per_client = min(per_client, total)
        self._changed = threading.Condition()
        self._queue: list[_Waiter] = []
        self._used_by: dict[str, int] = {}
        self.used = 0
        self.peak = 0  # largest use since forget_peak()

    def take(self, client: str, num_bytes: int, timeout_s: float, gone: Callable[[], bool]) -> None:
        """Takes the bytes, which `give` returns. Fewer than FREE_BYTES are not counted.

        Raises:
            InvalidConfig: The request alone needs more than the budget.
            DeadlineExceeded: The bytes were not free until the deadline.
            ServiceUnavailable: The client gave up.

        Blocks: for at most timeout_s.
        """
        if num_bytes < FREE_BYTES:
            return
        if num_bytes > self._per_client:
            expected = f"a request of at most {self._per_client} bytes ({self._what})"
            raise InvalidConfig("memory of a request", expected, num_bytes)
        began, waiter = time.monotonic(), _Waiter(client, num_bytes)
        with self._changed:
            self._queue.append(waiter)
            try:
                while not self._may_go(waiter):
                    waited_s = time.monotonic() - began
                    if waited_s >= timeout_s:
                        raise self.late(client, num_bytes, waited_s)
                    if gone():
                        raise ServiceUnavailable("this server", waited_s, "the client is gone")
                    self._changed.wait(min(_LOOK_EVERY_S, timeout_s - waited_s))
                self.used += num_bytes
                self._used_by[client] = self._used_by.get(client, 0) + num_bytes
                self.peak = max(self.peak, self.used)
            finally:
                self._queue.remove(waiter)
                self._changed.notify_all()

    def _may_go(self, waiter: _Waiter) -> bool:
        for other in self._queue:
            fits = self._used_by.get(other.client, 0) + other.num_bytes <= self._per_client
            if other is waiter:
                return fits and self.used + other.num_bytes <= self._total
            if fits:
                return False  # an earlier request, which waits for the total alone
        return False

    def late(self, client: str, num_bytes: int, waited_s: float) -> DeadlineExceeded:
        """Returns the error of a request whose bytes were not free by its deadline."""
        needs = f"{num_bytes} bytes of {self._what}, which {self._owners} have"
        return DeadlineExceeded(needs, self._left(client), waited_s)

    def _left(self, client: str) -> int:
        return min(self._total - self.used, self._per_client - self._used_by.get(client, 0))

    def give(self, client: str, num_bytes: int) -> None:
        """Returns as many bytes as one call of `take` took."""
        if num_bytes < FREE_BYTES:
            return
        with self._changed:
            self.used -= num_bytes
            left = self._used_by[client] - num_bytes
            if left:
                self._used_by[client] = left
            else:
                del self._used_by[client]
            self._changed.notify_all()

    @property
    def largest(self) -> int:
        """Bytes of the largest request that is not refused."""
        return max(self._per_client, FREE_BYTES - 1)

    def used_by(self, client: str) -> int:
        """Returns the bytes that a client has now."""
        return self._used_by.get(client, 0)

    def forget_peak(self) -> int:
        """Returns the largest use since the last call."""
        with self._changed:
            peak, self.peak = self.peak, self.used
            return peak
