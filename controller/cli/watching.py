"""Changes of a kind, as they happen; and ``--watch``, which prints them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from controller.cli import output
from controller.cli.cluster import CallerApi, listed
from controller.cli.failure import Exit, Failure, of_api
from controller.cli.flags import Format
from controller.frozen import dataclass
from controller.kube.cache import key_of
from controller.kube.errors import ApiError, Gone, Unavailable
from controller.kube.resources import Resource

Object = dict[str, Any]
Lines = Callable[[list[Object], bool], list[str]]

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # s before each try to list anew: an API server is restarted in less


@dataclass(frozen=True, slots=True)
class Watched:
    """A watch: objects of a kind, in a namespace or (None) all, that the selectors choose."""

    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""


async def show(api: CallerApi, watched: Sequence[Watched], form: Format, lines: Lines) -> None:
    """Print the objects that exist, then each object that changes, until an error ends it.

    As kubectl does: a document or a name for each object; one that is deleted is printed once more, as it was
    last. ``lines``: the text for objects, and whether they are the first; where the form asks for text.
    """

    def printed(found: list[Object], first: bool = False) -> None:
        if not output.objects(found, form, stream=True):
            output.lines(lines(found, first))

    async def goes_on(one: Watched, version: str, there: list[Object]) -> None:
        changes = follow(api, one.resource, one.namespace, one.labels, version, there, one.fields)
        async for _, obj in changes:
            printed([obj])

    begun = []
    for place, one in enumerate(watched):
        found, version = await listed(api, one.resource, one.namespace, one.labels, one.fields)
        printed(found, first=place == 0)
        begun.append(goes_on(one, version, found))
    await together(*begun)


async def together(*work: Awaitable[None]) -> None:
    """Run everything at once; the first failure ends the others and is raised alone, not as a group."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def follow(
    api: CallerApi,
    resource: Resource,
    namespace: str | None,
    labels: str,
    version: str,
    there: Iterable[Object],
    fields: str = "",
    silence: Callable[[str], None] = lambda why: None,
) -> AsyncIterator[tuple[str, Object]]:
    """Yield (ADDED, MODIFIED or DELETED, the object) for each change after ``version``, until an error.

    ``there``: the objects that existed at ``version``. ``silence``: told at once why nothing is heard any
    more, and "" as soon as something is.

    A watch that ends or breaks is taken up again; where the server has forgotten what came in between, a new
    list tells it: what is gone comes as DELETED, what is new or has changed as ADDED or MODIFIED.

    Raises:
        Failure: the server refuses, or cannot be reached for the list that follows a broken watch.
    """
    held = {key_of(obj): obj for obj in there}
    while True:
        received = False
        try:
            watch = api.watch(resource, version, labels=labels, fields=fields, namespace=namespace)
            async for event in watch:
                obj, received = event["object"], True
                version = obj["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                if event["type"] == "DELETED":
                    held.pop(key_of(obj), None)
                else:
                    held[key_of(obj)] = obj
                yield event["type"], obj
        except (Gone, Unavailable) as error:
            if isinstance(error, Unavailable):
                silence(of_api(error, f"watch {resource.kind}s").message)
            found, version = await _again(api, resource, namespace, labels, fields)
            silence("")
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
            if not received:  # a proxy that ends streams at once is not to be asked without end
                await asyncio.sleep(PAUSES[0])


async def _again(
    api: CallerApi, resource: Resource, namespace: str | None, labels: str, fields: str
) -> tuple[list[Object], str]:
    """List again after a watch broke; retry while the API server cannot be reached."""
    for pause in PAUSES[:-1]:
        await asyncio.sleep(pause)
        try:
            return await listed(api, resource, namespace, labels, fields)
        except Failure as failure:
            if failure.code is not Exit.UNREACHABLE:
                raise
    await asyncio.sleep(PAUSES[-1])
    return await listed(api, resource, namespace, labels, fields)


def _version(obj: Object) -> Any:
    return obj["metadata"]["resourceVersion"]
