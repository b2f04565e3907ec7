"""List, then watch from there: every change of a kind, in order, as soon as the API server tells of it.

Nothing is gathered and nothing is kept beside what the taker keeps: for a process that answers others by what
it knows, a tenth of a second counts, and for one that knows thousands of jobs, each object held twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from controller import log
from controller.kube.backoffs import AGAIN, JitteredBackoffs
from controller.kube.client import Api
from controller.kube.errors import ApiError, Gone, NotFound
from controller.kube.resources import Resource

_logger = log.get("evalstop.kube.listwatch")

# (resource, object, gone): one call per event. Objects are as the server sends them.
Take = Callable[[Resource, Mapping[str, Any], bool], None]
# (resource, objects, version): all there is, as of a LIST; of each object what `Keep` made of it.
Replace = Callable[[Resource, Iterable[Any], str], object]
Keep = Callable[[Resource, Mapping[str, Any]], Any]

_PAUSES = JitteredBackoffs(first=0.2, cap=15.0)  # between tries


class ListWatch:
    """Keeps one kind up to date for a taker. Level-triggered: after any gap it lists anew.

    ``last_answer`` grows by itself while all is well: the server sends a bookmark about once a minute.
    ``problem`` is why the last LIST or watch failed; None: it did not.

    Args:
        namespace: only this one; None: all.
        fields: a field selector: only objects that it selects.
        optional: that the API server does not serve the kind is nothing to complain of.
        keep: what ``replace`` is to get of each object; without it the object as the server sends it.
        relist: seconds after which all is listed anew even though nothing seems wrong.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        take: Take,
        replace: Replace,
        relist: float = 3600.0,
        namespace: str | None = None,
        fields: str = "",
        keep: Keep | None = None,
        optional: bool = False,
    ) -> None:
        self._api, self._resource, self._take, self._replace = api, resource, take, replace
        self._keep = keep or (lambda resource, obj: obj)
        self._relist = relist
        self._namespace, self._fields, self._optional = namespace, fields, optional
        self.listed = False
        self.problem: ApiError | None = None
        self.last_answer = time.monotonic()  # or event, a bookmark among them

    def __str__(self) -> str:
        return str(self._resource)

    async def run(self) -> None:
        """Follow the kind until cancelled; whatever the API server does, tries again."""
        pauses = iter(_PAUSES)
        while True:
            listed = None
            try:
                version = await self._list()
                listed = self.last_answer
                await self._follow(version)
                pauses = iter(_PAUSES)
            except Gone:
                # What is between is lost: list anew. A server that says so time after time is not run into
                # the ground by it.
                if listed is not None and self.last_answer > listed:
                    pauses = iter(_PAUSES)
                    continue
            except NotFound as error:
                self.problem = error
                if not self._optional:
                    _logger.error(
                        "the kind is not installed: kubectl apply -f crds/", resource=str(self._resource)
                    )
            except ApiError as error:
                self.problem = error
                _logger.warning("cannot list", resource=str(self._resource), error=str(error))
            await asyncio.sleep(next(pauses))

    async def _list(self) -> str:
        if self._optional and not self.listed:
            await self._api.discover(self._resource)  # a LIST would be forbidden, not unknown, without rights
        objects: list[Any] = []
        version = ""
        pages = self._api.pages(
            self._resource, self._namespace, labels=self._resource.selector, fields=self._fields
        )
        async for page, at in pages:
            objects += self._kept(page)
            version = at
        self._replace(self._resource, objects, version)
        self.listed, self.problem = True, None
        self.last_answer = time.monotonic()
        return version

    def _kept(self, page: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        for obj in page:
            try:
                yield self._keep(self._resource, obj)
            except Exception:  # one object is no reason to have none
                _logger.exception("an object is passed over", resource=str(self._resource))

    def _pass_on(self, obj: Mapping[str, Any], deleted: bool) -> None:
        try:
            self._take(self._resource, obj, deleted)
        except Exception:
            _logger.exception("an event is passed over", resource=str(self._resource))

    async def _follow(self, version: str) -> None:
        """Watch from ``version`` on, reconnecting where it stopped, until a LIST is due."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._relist * random.uniform(0.9, 1.1)
        pauses = iter(_PAUSES)
        while loop.time() < due:
            seconds = max(1, int(min(300.0, due - loop.time())))
            try:
                events = self._api.watch(
                    self._resource,
                    version,
                    labels=self._resource.selector,
                    fields=self._fields,
                    seconds=seconds,
                    namespace=self._namespace,
                )
                async for event in events:
                    if self.problem is not None:
                        self.problem, pauses = None, iter(_PAUSES)
                    self.last_answer = time.monotonic()
                    obj = event["object"]
                    version = obj["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._pass_on(obj, event["type"] == "DELETED")
            except (Gone, NotFound):
                raise
            except ApiError as error:
                self.problem = error
                _logger.info("the watch broke", resource=str(self._resource), error=str(error))
                await asyncio.sleep(next(pauses))
            else:
                await asyncio.sleep(AGAIN)
