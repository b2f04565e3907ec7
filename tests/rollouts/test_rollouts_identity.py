"""Whose a projected token is, by a real API server's TokenReview."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.kube.client import Api
from controller.kube.connect import connect
from controller.steps.app import AUDIENCE, ReviewedTokens
from controller.web.reviews import Reviews, Unauthenticated
from deploy.local.plane import Plane

pytestmark = pytest.mark.cluster


@pytest.fixture
def pod(plane: Plane, namespace: str) -> dict[str, Any]:
    """Name and uid of a pod."""
    body = {
        "metadata": {"name": "member-0"},
        "spec": {"containers": [{"name": "t", "image": "none"}], "nodeName": "nowhere"},
    }
    made: dict[str, Any] = plane.client().post(f"/api/v1/namespaces/{namespace}/pods", body)["metadata"]
    return made


def token(plane: Plane, namespace: str, audience: str, pod: dict[str, Any] | None) -> str:
    bound = None
    if pod is not None:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
    body = {"spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound}}
    made = plane.client().post(f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", body)
    return str(made["status"]["token"])


def pod_of(plane: Plane, *tokens: str) -> list[str | None]:
    """Return the uid that each token names; None: it is nobody's."""

    async def ask() -> list[str | None]:
        calls = Api(await connect({"KUBECONFIG": str(plane.kubeconfig)}), 20.0)
        identity, found = ReviewedTokens(Reviews(calls, AUDIENCE)), list[str | None]()
        try:
            for one in tokens:
                try:
                    found.append(await identity.pod(one, "127.0.0.1"))
                except Unauthenticated:
                    found.append(None)
        finally:
            await calls.close()
        return found

    return asyncio.run(ask())


def test_only_a_token_for_the_step_api_that_is_bound_to_a_pod_names_one(
    plane: Plane, namespace: str, pod: dict[str, Any]
) -> None:
    right = token(plane, namespace, AUDIENCE, pod)
    head, body, signature = right.split(".")
    found = pod_of(
        plane,
        right,
        token(plane, namespace, AUDIENCE, None),  # bound to no pod
        token(plane, namespace, "https://kubernetes.default.svc", pod),  # of another audience
        f"{head}.{body}.{signature[:-4]}AAAA",  # forged
    )
    assert found == [pod["uid"], None, None, None]


def test_the_token_of_a_pod_that_is_gone_is_nobodys(
    plane: Plane, namespace: str, pod: dict[str, Any]
) -> None:
    before = token(plane, namespace, AUDIENCE, pod)
    plane.client().delete(f"/api/v1/namespaces/{namespace}/pods/{pod['name']}?gracePeriodSeconds=0")
    assert pod_of(plane, before) == [None]
