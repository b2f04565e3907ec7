"""Follow a collection of the API server: all that is there, then each change, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from controller.kube.client import Api, Object
from controller.kube.listwatch import ListWatch
from controller.kube.resources import Resource


@dataclass(frozen=True)
class Change:
    """One step of a followed collection.

    ``kind`` LISTED carries the whole collection in ``items`` (first, and after each gap); CHANGED and DELETED
    carry one object in ``items``.
    """

    kind: str
    items: list[Object]


async def follow(
    api: Api, resource: Resource, namespace: str | None = None, fields: str = ""
) -> AsyncIterator[Change]:
    """Yield the changes of a collection in order. Refusals and lost connections are waited out and logged.

    ``fields``: a field selector. Labels do not select: a node is told of all its pods, whoever made them.
    """
    changes: asyncio.Queue[Change] = asyncio.Queue()

    def take(resource: Resource, item: Mapping[str, Any], deleted: bool) -> None:
        changes.put_nowait(Change("DELETED" if deleted else "CHANGED", [dict(item)]))

    def listed(resource: Resource, items: Iterable[Object], version: str) -> None:
        changes.put_nowait(Change("LISTED", list(items)))

    kind = replace(resource, selector="")
    watching = asyncio.create_task(
        ListWatch(api, kind, take, listed, namespace=namespace, fields=fields).run()
    )
    try:
        while True:
            yield await changes.get()
    finally:
        watching.cancel()
