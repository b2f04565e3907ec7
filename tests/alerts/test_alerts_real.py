"""A real Prometheus with the shipped rules scrapes a real operator, over TLS and with a token of its own; the
operator dies, and the alert fires."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_server import OF_A_LEADER, PrometheusServer

from controller.web.certificates import issue_server, make_authority
from deploy.grafana import dashboards
from deploy.local.plane import Plane
from tests.support.operator_rig import eventually, install
from tests.support.replicas import Operator

NAME = "evalstop-operator.evalstop-system.svc"
LEASE = {
    "EVALSTOP_LEASE_SECONDS": "5",
    "EVALSTOP_LEASE_RENEW_SECONDS": "4",
    "EVALSTOP_LEASE_RETRY_SECONDS": "0.5",
}


@pytest.fixture
def operator(plane: Plane, tmp_path: Path) -> Iterator[Operator]:
    now = datetime.now(UTC)
    authority = make_authority(now)
    pair = issue_server(authority, [NAME], now)
    files = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shown = {
        "EVALSTOP_METRICS_CERTIFICATE": str(tmp_path / "tls.crt"),
        "EVALSTOP_METRICS_KEY": str(tmp_path / "tls.key"),
    }
    found = Operator("watched", install(plane), tmp_path, LEASE | shown, 0.0)
    yield found
    found.close()


@pytest.fixture
def token(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """Of a ServiceAccount that may read metrics, as docs/operate/install.md binds it."""
    plane.kubectl("create", "serviceaccount", "prometheus-k8s", "-n", namespace)
    account = f"--serviceaccount={namespace}:prometheus-k8s"
    role = "--clusterrole=evalstop-metrics-reader"
    plane.kubectl("create", "clusterrolebinding", f"metrics-{namespace}", role, account)
    path = tmp_path / "token"
    path.write_text(plane.kubectl("create", "token", "prometheus-k8s", "-n", namespace))
    yield path
    plane.kubectl("delete", "clusterrolebinding", f"metrics-{namespace}")


def test_a_real_prometheus_fires_when_the_operator_dies(
    operator: Operator, token: Path, prometheus: Path, alerts: Path, tmp_path: Path
) -> None:
    async def story() -> None:
        await eventually(lambda: operator.says("leader"), what="the operator to lead")
        target = {
            "scheme": "https",
            "authorization": {"credentials_file": str(token)},
            "tls_config": {"ca_file": str(tmp_path / "ca.crt"), "server_name": NAME},
            "static_configs": [{"targets": [f"127.0.0.1:{operator.metrics_port}"]}],
        }
        server = PrometheusServer(prometheus, tmp_path, target, alerts)
        try:
            await eventually(scraped(server), what="a scrape")
            # Each rule tells of its last evaluation, which may have been before there was a leader.
            await eventually(quiet(server), what="every alert to be inactive")
            states = server.states()
            assert len(states) == 35
            assert set(states.values()) == {"inactive"}, states
            for dashboard in dashboards.DASHBOARDS:
                for panel in dashboard.panels:
                    for query, _ in panel.queries:
                        query = query.replace("$__rate_interval", "1m").replace("$__range", "1h")
                        assert server.ask("query", query=query) is not None, f"{panel.title}: {query}"
            for name in OF_A_LEADER:
                assert server.ask("query", query=name)["result"], f"{name}: a panel without data"
            running = server.ask("query", query='sum(evalstop_jobs{state="Running"})')["result"]
            assert len(running) == 1, "zero is told, too"
            operator.close()
            await eventually(fired(server), what="EvalStopNoLeader to fire")
        except BaseException:
            print(server.states())
            print(server.log.read_text()[-3000:])
            raise
        finally:
            server.stop()

    def scraped(server: PrometheusServer) -> Any:
        async def check() -> bool:
            found = server.ask("query", query="evalstop_leader == 1 and evalstop_leader offset 3s == 1")
            evaluated = server.states()
            return bool(found and found["result"]) and bool(evaluated)

        return check

    def quiet(server: PrometheusServer) -> Any:
        async def check() -> bool:
            return set(server.states().values()) == {"inactive"}

        return check

    def fired(server: PrometheusServer) -> Any:
        async def check() -> bool:
            return server.states().get("EvalStopNoLeader") == "firing"

        return check

    asyncio.run(story())
