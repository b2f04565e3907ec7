"""Changes of a kind, as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from controller.cli.cluster import Cluster, listed
from controller.cli.failure import Exit, Failure, of_api
from controller.kube.cache import key_of
from controller.kube.errors import ApiError, Gone, Unavailable
from controller.kube.resources import Resource

Object = dict[str, Any]

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # s before each try to list anew: an API server is restarted in less


async def follow(
    api: Cluster,
    resource: Resource,
    namespace: str | None,
    labels: str,
    version: str,
    there: Iterable[Object],
) -> AsyncIterator[tuple[str, Object]]:
    """Changes after ``version``, when the objects ``there`` were there: (ADDED, MODIFIED or DELETED, the
    object). Ends only with an error.

    A watch that ends or breaks is taken up again; where the server has forgotten what came in between, a new
    list tells it: what is gone comes as DELETED, what is new or has changed as ADDED or MODIFIED.

    Raises:
        Failure: the server refuses, or cannot be reached for the list that follows a broken watch.
    """
    held = {key_of(obj): obj for obj in there}
    while True:
        heard = False
        try:
            async for event in api.watch(resource, version, labels=labels, namespace=namespace):
                obj, heard = event["object"], True
                version = obj["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                if event["type"] == "DELETED":
                    held.pop(key_of(obj), None)
                else:
                    held[key_of(obj)] = obj
                yield event["type"], obj
        except (Gone, Unavailable):
            found, version = await _again(api, resource, namespace, labels)
            now = {key_of(obj): obj for obj in found}
            for key in held.keys() - now.keys():
                yield "DELETED", held[key]
            for key, obj in now.items():
                if key not in held:
                    yield "ADDED", obj
                elif _version(obj) != _version(held[key]):
                    yield "MODIFIED", obj
            held = now
        except ApiError as error:
            raise of_api(error, f"watch {resource.kind}s") from error
        else:
            if not heard:  # a proxy that ends streams at once is not to be asked without end
                await asyncio.sleep(PAUSES[0])


async def _again(
    api: Cluster, resource: Resource, namespace: str | None, labels: str
) -> tuple[list[Object], str]:
    """The list after a watch broke; an API server that is away for a moment is waited for."""
    for pause in PAUSES[:-1]:
        await asyncio.sleep(pause)
        try:
            return await listed(api, resource, namespace, labels)
        except Failure as failure:
            if failure.code is not Exit.UNREACHABLE:
                raise
    await asyncio.sleep(PAUSES[-1])
    return await listed(api, resource, namespace, labels)


def _version(obj: Object) -> Any:
    return obj["metadata"]["resourceVersion"]
