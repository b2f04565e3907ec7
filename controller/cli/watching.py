"""Changes of a kind, as they happen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from controller.cli.cluster import Cluster, listed
from controller.cli.failure import of_api
from controller.kube.errors import ApiError, Gone, Unavailable
from controller.kube.resources import Resource

Object = dict[str, Any]


async def follow(
    api: Cluster, resource: Resource, namespace: str | None, labels: str, version: str
) -> AsyncIterator[tuple[str, Object]]:
    """Changes after ``version``: (ADDED, MODIFIED or DELETED, the object). Ends only with an error.

    A watch that ends or breaks is taken up again; where the server has forgotten what came in between, the
    objects there are come again as ADDED.

    Raises:
        Failure: the server refuses, or cannot be reached for the list that follows a broken watch.
    """
    while True:
        try:
            async for event in api.watch(resource, version, labels=labels, namespace=namespace):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
        except (Gone, Unavailable):
            found, version = await listed(api, resource, namespace, labels)
            for obj in found:
                yield "ADDED", obj
        except ApiError as error:
            raise of_api(error, f"watch {resource.kind}s") from error
