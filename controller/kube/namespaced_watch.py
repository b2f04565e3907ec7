"""A kind followed in some namespaces: a LIST and a watch in each, so that rights in these are enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.listwatch import Keep, ListWatch, Take
from controller.kube.resources import Resource

Object = Mapping[str, Any]


class ReplaceIn(Protocol):
    """All there is of a kind as of a LIST; with ``namespace`` all there is in that one."""

    def __call__(
        self, resource: Resource, objects: Iterable[Any], version: str, namespace: str = ""
    ) -> object: ...


class Spread:
    """One `ListWatch` of a kind for each of some namespaces, to be used like one."""

    def __init__(self, resource: Resource, parts: Sequence[ListWatch]) -> None:
        self._resource = resource
        self.parts = parts

    def __str__(self) -> str:
        return str(self._resource)

    @property
    def listed(self) -> bool:
        return all(part.listed for part in self.parts)

    @property
    def problem(self) -> ApiError | None:
        """Of one of them."""
        return next((part.problem for part in self.parts if part.problem is not None), None)

    @property
    def last_answer(self) -> float:
        """Of the one that has been silent for longest."""
        return min(part.last_answer for part in self.parts)

    async def run(self) -> None:
        """Follow all until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self.parts:
                group.create_task(part.run())


Follow = ListWatch | Spread


def follow(
    api: Api,
    resource: Resource,
    take: Take,
    replace: ReplaceIn,
    namespaces: Sequence[str],
    relist: float = 3600.0,
    keep: Keep | None = None,
    optional: bool = False,
) -> Follow:
    """Follow a kind: in these namespaces if it is in any, else, or without names, everywhere.

    Args:
        api: the client.
        resource: the kind.
        take: called for each event of the watch.
        replace: called with each LIST, and with its namespace if there are namespaces.
        namespaces: where to look; none: everywhere.
        relist: as `ListWatch`.
        keep: as `ListWatch`.
        optional: as `ListWatch`.
    """
    if not namespaces or not resource.namespaced:
        return ListWatch(api, resource, take, replace, relist, keep=keep, optional=optional)
    parts = (
        ListWatch(api, resource, take, partial(replace, namespace=n), relist, n, keep=keep, optional=optional)
        for n in namespaces
    )
    return Spread(resource, tuple(parts))


async def list_in(
    list_: Callable[..., Any], resource: Resource, namespaces: Sequence[str], **selectors: str
) -> list[dict[str, Any]]:
    """Return all objects of a kind that is in namespaces: of these alone, or of all. Raises like
    `Api.list`."""
    found: list[dict[str, Any]] = []
    for namespace in namespaces or (None,):
        objects, _ = await list_(resource, namespace, **selectors)
        found += objects
    return found
