"""The shell of the tests on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_shell import Shell, kubeconfig_in

from deploy.local.plane import Plane
from tests.support import cli_world as w
from tests.support.fresh_namespace import fresh_namespace


@pytest.fixture(scope="module")
def shell(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    w.install(plane)
    with fresh_namespace(plane, "cli") as namespace:
        pool = f"pool-{namespace[-6:]}"
        w.fill(plane, namespace, pool)
        kubeconfig = kubeconfig_in(tmp_path_factory.mktemp("cli"), plane.kubeconfig, namespace)
        yield Shell(plane, namespace, pool, kubeconfig)
        plane.client().delete(f"{w.GROUP}/gpupools/{pool}")
