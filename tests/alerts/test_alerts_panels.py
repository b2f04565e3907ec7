"""Each panel's query has data: a real Prometheus scrapes the registries of operator and extender themselves.

What is counted here is counted by the product's own collectors, each once with labels that it may have; only
the reasons for counting are missing.
"""

from __future__ import annotations

import asyncio
import http.server
import math
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_server import OF_A_LEADER, PrometheusServer
from unused_registries import registries, unused

from deploy.grafana import dashboards
from tests.support.operator_rig import eventually

# Of labels that a query selects by; any other value will do for the rest.
VALUES = {"verb": ("patch", "get"), "outcome": ("200", "500")}


class Registries:
    """The registries of an operator and an extender that have seen nothing yet."""

    def __init__(self, folder: Path) -> None:
        self._alive = unused(folder)
        self.all = registries(self._alive)

    def count(self) -> None:
        """Count once whatever is counted."""
        for registry in self.all:
            for collector in list(registry._collector_to_names):
                if not isinstance(collector, Counter | Gauge | Histogram):
                    continue  # read from the process itself
                labels = collector._labelnames
                for values in product(*(VALUES.get(name, ("x",)) for name in labels)):
                    one = collector.labels(*values) if labels else collector
                    if isinstance(one, Histogram):
                        one.observe(0.3)
                    else:
                        one.inc()

    def text(self) -> bytes:
        self.count()
        return b"".join(map(generate_latest, self.all))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[dict[str, Any]]:
    registries = Registries(tmp_path)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = registries.text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
    server.shutdown()
    server.server_close()


def test_each_panels_query_has_data(
    target: dict[str, Any], prometheus: Path, alerts: Path, tmp_path: Path
) -> None:
    server = PrometheusServer(prometheus, tmp_path, target, alerts)
    queries = [
        (f"{dashboard.title}: {panel.title}", query)
        for dashboard in dashboards.DASHBOARDS
        for panel in dashboard.panels
        for query, _ in panel.queries
        if not any(name in query for name in OF_A_LEADER)  # tests/alerts/test_alerts_real.py asks for these
    ]
    missing: list[str] = []

    async def all_have() -> bool:
        missing.clear()
        for panel, query in queries:
            asked = query.replace("$__rate_interval", "1m").replace("$__range", "1h")
            found = server.ask("query", query=asked)
            values = [float(one["value"][1]) for one in (found or {"result": []})["result"]]
            if not values or all(map(math.isnan, values)):
                missing.append(f"{panel}: {asked}")
        return not missing

    try:
        asyncio.run(eventually(all_have, what="data for each panel", every=1.0))
    finally:
        server.stop()
        print("\n".join(missing))
