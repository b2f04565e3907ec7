"""The extender and the dashboard beside the operator, as processes of the plane, for the hostile to ask."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import Iterator

from controller import names
from deploy.local.plane import Plane
from deploy.local.ports import free_port
from deploy.local.scheduler import REPOSITORY, Extender
from tests.bench.tenants.plan import Object
from tests.support.waiting import wait_until

_DASHBOARD, _EXTENDER = "tenants-dashboard", "tenants-extender"


@contextlib.contextmanager
def services(plane: Plane) -> Iterator[Object]:
    """Where they are, and what a hostile pod has got hold of: a certificate of the extender's authority with
    another name."""
    plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "extender" / "rbac.yaml"))
    extender = Extender(plane, _EXTENDER).start()
    stolen = extender.certificates.client_named("prometheus")
    port, health = free_port(), free_port()
    environment = {
        "KUBECONFIG": str(plane.kubeconfig),
        "PYTHONPATH": str(REPOSITORY),
        "EVALSTOP_DASHBOARD_PORT": str(port),
        "EVALSTOP_DASHBOARD_STATUS_HOST": "127.0.0.1",
        "EVALSTOP_DASHBOARD_STATUS_PORT": str(health),
        "EVALSTOP_DASHBOARD_OPERATOR_NAMESPACE": names.NAMESPACE,
    }
    argv = [sys.executable, "-m", "controller.web.dashboard"]
    plane.start_process(_DASHBOARD, argv, environment, grace_s=10.0)
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), "the dashboard", 120.0, 0.2)
        yield {
            "dashboard": port,
            "extender": extender.url,
            "extenderCa": str(extender.certificates.ca),
            "stolen": [str(stolen.certificate), str(stolen.key)],
        }
    finally:
        plane.stop(_DASHBOARD)
        extender.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0):
            return True
    except OSError:
        return False
