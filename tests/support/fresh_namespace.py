"""A namespace for one test."""

import contextlib
import re
import secrets
import time
from collections.abc import Iterator

from controller.kube.errors import ApiError, NotFound
from deploy.local.api import LocalApi
from deploy.local.plane import Plane
from tests.support import given_cluster

# Of these an operator, a controller or a node does something later, while other tests run.
AT_WORK = (
    "/apis/evalstop.dev/v1alpha1/{}/rlhfjobs",
    "/apis/apps/v1/{}/deployments",
    "/apis/batch/v1/{}/jobs",
    "/api/v1/{}/pods",
    "/apis/resource.k8s.io/v1/{}/resourceclaims",
    "/api/v1/{}/persistentvolumeclaims",
)
_SECONDS = 60.0


@contextlib.contextmanager
def fresh_namespace(plane: Plane, test: str, deleted: bool = False) -> Iterator[str]:
    """A namespace named after a test, in which pods can be created.

    In the end what is at work in it is taken away, without waiting. The namespace itself goes with the local
    plane: to delete one the controller asks about every kind, several times where pods were on nodes that are
    gone, which costs more than most tests. On a cluster that stays, or with ``deleted``, it is deleted.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", test.lower())[:40].strip("-")
    name = f"{readable}-{secrets.token_hex(3)}"
    admin = plane.client()
    admin.post("/api/v1/namespaces", {"metadata": {"name": name}})
    deadline = time.monotonic() + 20
    while not admin.succeeds(f"/api/v1/namespaces/{name}/serviceaccounts/default"):
        assert time.monotonic() < deadline, f"namespace {name} got no service account within 20 s"
        time.sleep(0.02)
    yield name
    if deleted or given_cluster.given() is not None:
        admin.delete(f"/api/v1/namespaces/{name}")
    else:
        _empty(admin, name)


def _empty(admin: LocalApi, namespace: str) -> None:
    for path in AT_WORK:
        where = path.format(f"namespaces/{namespace}")
        with contextlib.suppress(NotFound):  # not every plane knows our kinds
            admin.delete(f"{where}?propagationPolicy=Background&gracePeriodSeconds=0", _SECONDS)
    where = AT_WORK[0].format(f"namespaces/{namespace}")
    with contextlib.suppress(NotFound):
        for job in admin.get(where, _SECONDS)["items"]:  # those that an operator owes something
            path = f"{where}/{job['metadata']['name']}"
            with contextlib.suppress(ApiError):
                admin.patch(path, {"metadata": {"finalizers": None}}, _SECONDS)
