"""Change or delete an object only as it was read: what somebody has changed since is read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.errors import Conflict, NotFound
from controller.kube.resources import Resource

Object = Mapping[str, Any]


class Stale(Exception):
    """The object has changed since it was loaded. It has been read again; the pass must be made again."""


async def patch_as_read(
    api: Api,
    cache: Cache,
    resource: Resource,
    obj: Object,
    patch: Mapping[str, Any],
    *,
    any_version: bool = False,
    subresource: str = "",
    strict: bool = False,
) -> None:
    """Patch that very object, in the version that was read; the cache has the answer at once.

    Args:
        api: the client.
        cache: where the object was read from.
        resource: its kind.
        obj: the object as it was read.
        patch: a merge patch.
        any_version: it is enough that it is the same object, in whatever version.
        subresource: "status", or "".
        strict: fields that the server does not know are refused, not dropped.

    Raises:
        Stale: it has changed, or is gone.
        ApiError: the call failed.
    """
    metadata = obj["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace")
    try:
        answer = await api.merge_patch(
            resource,
            name,
            patch,
            namespace,
            subresource=subresource,
            uid=metadata["uid"],
            version=None if any_version else metadata["resourceVersion"],
            strict=strict,
        )
    except NotFound as error:
        cache.drop(resource, obj)
        raise Stale(f"{resource.kind} {name} is gone") from error
    except Conflict as error:
        await refresh(api, cache, resource, obj)
        raise Stale(f"{resource.kind} {name}: {error}") from error
    cache.put(resource, answer)


async def delete_as_read(api: Api, cache: Cache, resource: Resource, obj: Object) -> None:
    """Delete that very object, in the version that was read; one that is gone is fine.

    Raises:
        Stale: it has changed.
        ApiError: the call failed.
    """
    metadata = obj["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace")
    try:
        await api.delete(resource, name, namespace, metadata["uid"], metadata["resourceVersion"])
    except NotFound:
        cache.drop(resource, obj)
    except Conflict as error:  # a namesake is there by now, or the server was not sure
        await refresh(api, cache, resource, obj)
        raise Stale(f"{resource.kind} {name}: {error}") from error


async def refresh(api: Api, cache: Cache, resource: Resource, obj: Object) -> None:
    """Read an object anew: the watch may be behind, or have missed something."""
    metadata = obj["metadata"]
    try:
        found = await api.get(resource, metadata["name"], metadata.get("namespace"))
    except NotFound:
        cache.drop(resource, obj)
    else:
        cache.put(resource, found)
