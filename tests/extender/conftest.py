"""The extender's tests: two kube-schedulers that ask one extender over a line which can be cut, one of them
passing over it when it fails, and a cluster of plain objects per test.

The schedulers leave with their module: the plane is shared, and other tests rely on nobody answering to
that name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from extender_rig import Cluster, ExtenderThread, Line

from controller import names
from controller.extender import scheduler_config
from deploy.local.plane import Plane
from deploy.local.scheduler import EXTENDER_USER, Certificates, Scheduler

OPEN = "evalstop-open"  # schedulerName of the process with ignorable: true
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def extender_kubeconfig(plane: Plane) -> Path:
    """CRDs and the extender's RBAC are applied; the kubeconfig of its own identity."""
    for path in ("crds", "deploy/manifests/namespace.yaml", "deploy/extender/rbac.yaml"):
        plane.kubectl("apply", "-f", str(ROOT / path))
    crds = ("rlhfjobs.evalstop.dev", "gpupools.evalstop.dev")
    plane.established(*crds)
    return plane.kubeconfig_for(EXTENDER_USER, ["system:serviceaccounts", "system:authenticated"])


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("extender-pki"))


@pytest.fixture(scope="module")
def extender(extender_kubeconfig: Path, certificates: Certificates) -> Iterator[ExtenderThread]:
    with ExtenderThread(extender_kubeconfig, certificates) as running:
        yield running


@pytest.fixture(scope="module")
def shared_line(extender: ExtenderThread) -> Iterator[Line]:
    line = Line(lambda: extender.port)
    yield line
    line.close()


@pytest.fixture
def line(shared_line: Line) -> Iterator[Line]:
    yield shared_line
    shared_line.set("up")


@pytest.fixture(scope="module")
def schedulers(plane: Plane, shared_line: Line, certificates: Certificates) -> Iterator[dict[str, Scheduler]]:
    """``closed`` and ``open``; the name of each process is its schedulerName."""
    url = f"https://127.0.0.1:{shared_line.port}"
    found = {"closed": names.SCHEDULER_NAME, "open": OPEN}
    started: dict[str, Scheduler] = {}
    for how, name in found.items():
        options = certificates.options(url, scheduler_name=name, ignorable=how == "open", timeout=0.5)
        started[how] = Scheduler(plane, scheduler_config.configuration(options), process=name).start()
    yield started
    for scheduler in started.values():
        scheduler.stop()


@pytest.fixture
def cluster(
    plane: Plane, namespace: str, schedulers: dict[str, Scheduler], extender: ExtenderThread
) -> Iterator[Cluster]:
    """Asks the closed scheduler unless a pod says otherwise."""
    pool, scheduler = f"x-{secrets.token_hex(3)}", schedulers["closed"].process
    made = Cluster(plane.client(), namespace, pool, scheduler, extender)
    yield made
    made.clear()
