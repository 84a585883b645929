"""Metrics of a server for Prometheus: its tables, its clients, and how long calls take. Needs prometheus-client.

The values of tables and clients are read when Prometheus asks, so a server without metrics pays nothing for them. No
label contains a token: a client is named as in the file of the tokens, or by its host.
"""

from __future__ import annotations

import contextlib
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from typing import Any, final

from relive.core.locked import check_lock
from relive.core.roles import ROLES
from relive.errors import DeadlineExceeded, MissingPackage, ReliveError
from relive.errors.extras import install_command
from relive.service.server.guard import Guard
from relive.service.server.hosting import Hosted, Memory

try:
    from prometheus_client import CollectorRegistry, Histogram, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as problem:
    raise MissingPackage("metrics of a server", "prometheus-client", install_command("service")) from problem

__all__ = ["Metrics"]

_LOCK_S = 0.2
_BUCKETS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_COUNTED = ("appended", "evicted", "deleted", "cut_lanes", "sampler_waits", "writer_waits")


@final
class Metrics:
    """Answers Prometheus over HTTP until close().

    Args:
        hosted: The served tables.
        guard: The streams, and the refusals.
        memory: The bytes in flight.
        port: Port to listen on; 0: a free port.
        host: Host to listen on.

    Raises:
        OSError: The port cannot be bound.
    """

    def __init__(self, hosted: Mapping[str, Hosted], guard: Guard, memory: Memory, port: int, host: str) -> None:
        self._hosted = hosted
        self._guard = guard
        self._memory = memory
        registry = CollectorRegistry()
        registry.register(self)
        self._seconds = Histogram(
            "relive_call_seconds", "Time of a call", ("table", "kind", "op"), registry=registry, buckets=_BUCKETS
        )
        self._server, self._thread = start_http_server(port, host, registry)
        self.port: int = self._server.server_port

    def observe(self, table: str, kind: str, op: str, seconds: float) -> None:
        """Notes how long a call took. Its waits for the limiter count."""
        self._seconds.labels(table, kind, op).observe(seconds)

    def close(self) -> None:
        """Ends the HTTP server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of this moment. Prometheus's registry calls it."""
        yield from self._of_tables()
        yield from self._of_clients()

    def _of_tables(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"relive_table_{name}", text, labels=("table",))
            for name, text in (
                ("steps", "Live steps"),
                ("capacity_steps", "Capacity in steps"),
                ("fill_ratio", "Live steps / capacity"),
                ("bytes", "Committed memory"),
                ("lanes", "Open lanes"),
                ("stuck", "1 if the table's lock does not become free"),
            )
        }
        counters = {
            name: CounterMetricFamily(f"relive_table_{name}", f"Counter {name!r} of table.stats()", labels=("table",))
            for name in _COUNTED
        }
        waits = CounterMetricFamily("relive_table_wait_seconds", "Time in waits", labels=("table", "of"))
        for name, one in list(self._hosted.items()):
            stuck = _is_stuck(one)
            gauges["stuck"].add_metric([name], float(stuck))
            if stuck:
                continue  # its numbers would wait for the lock
            with contextlib.suppress(ReliveError):
                stats = one.table.stats()
                shown = {
                    "steps": stats.num_steps,
                    "capacity_steps": stats.capacity,
                    "fill_ratio": stats.num_steps / stats.capacity,
                    "bytes": stats.num_bytes,
                    "lanes": stats.num_lanes,
                }
                for metric, value in shown.items():
                    gauges[metric].add_metric([name], value)
                for metric, counter in counters.items():
                    counter.add_metric([name], getattr(stats, metric))
                waits.add_metric([name, "samplers"], stats.sampler_wait_s)
                waits.add_metric([name, "writers"], stats.writer_wait_s)
        yield from (*gauges.values(), *counters.values(), waits)

    def _of_clients(self) -> Iterator[Metric]:
        streams = GaugeMetricFamily("relive_streams", "Open streams", labels=("client", "role"))
        inflight = GaugeMetricFamily(
            "relive_inflight_bytes", "Bytes of answers under way and of draws in flight", labels=("client",)
        )
        refusals = CounterMetricFamily("relive_refusals", "Calls and streams that were refused")
        permits = self._guard.permits()
        counted = Counts((one.client, role) for one in permits for role in ROLES if role in one.roles())
        for labels, number in counted.items():
            streams.add_metric(list(labels), number)
        for client in {one.client for one in permits}:
            inflight.add_metric([client], self._memory.inflight.used_by(client) + self._memory.draws.used_by(client))
        refusals.add_metric([], self._guard.num_refusals)
        yield from (streams, inflight, refusals)


def _is_stuck(hosted: Hosted) -> bool:
    core: Any = hosted.table.core
    try:
        check_lock(core, _LOCK_S)
    except DeadlineExceeded:
        return True
    except ReliveError:
        return False
    return False
