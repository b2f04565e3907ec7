"""Whose a projected token is, by a real API server's TokenReview."""

from __future__ import annotations

import asyncio

import pytest
from kubernetes import client

from controller.kube.client import Api
from controller.kube.connect import connect
from controller.steps.app import AUDIENCE, ReviewedTokens
from controller.web.reviews import Reviews, Unauthenticated
from deploy.local.plane import Plane

pytestmark = pytest.mark.cluster


@pytest.fixture
def pod(api: client.ApiClient, namespace: str) -> client.V1Pod:
    body = {
        "metadata": {"name": "member-0"},
        "spec": {"containers": [{"name": "t", "image": "none"}], "nodeName": "nowhere"},
    }
    return client.CoreV1Api(api).create_namespaced_pod(namespace, body)


def token(api: client.ApiClient, namespace: str, audience: str, pod: client.V1Pod | None) -> str:
    bound = None
    if pod is not None:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid}
    body = {"spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound}}
    made = client.CoreV1Api(api).create_namespaced_service_account_token("default", namespace, body)
    return str(made.status.token)


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
    plane: Plane, api: client.ApiClient, namespace: str, pod: client.V1Pod
) -> None:
    right = token(api, namespace, AUDIENCE, pod)
    head, body, signature = right.split(".")
    found = pod_of(
        plane,
        right,
        token(api, namespace, AUDIENCE, None),  # bound to no pod
        token(api, namespace, "https://kubernetes.default.svc", pod),  # of another audience
        f"{head}.{body}.{signature[:-4]}AAAA",  # forged
    )
    assert found == [pod.metadata.uid, None, None, None]


def test_the_token_of_a_pod_that_is_gone_is_nobodys(
    plane: Plane, api: client.ApiClient, namespace: str, pod: client.V1Pod
) -> None:
    before = token(api, namespace, AUDIENCE, pod)
    client.CoreV1Api(api).delete_namespaced_pod(pod.metadata.name, namespace, grace_period_seconds=0)
    assert pod_of(plane, before) == [None]
