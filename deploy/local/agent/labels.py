"""A node's labels as the API server has them: whoever may, changes them at any time after its start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import NODES

log = logging.getLogger(__name__)

_PATIENCE = 5.0  # s, for an answer; a pod's admission waits for it


class OwnLabels:
    """Reads the labels of one node under the node's own identity, which may read its own Node.

    Args:
        first: the labels it registers with, used until the API server has answered once.
    """

    def __init__(self, api: Api, name: str, first: Mapping[str, str]) -> None:
        self._api = api
        self._name = name
        self._last = first

    async def now(self) -> Mapping[str, str]:
        """Return the labels at this moment; those last read when the API server does not answer.

        Read, not watched: a pod is bound because of a label that was set just before, and a watch of nodes
        may tell of it later than the watch of pods tells of the pod.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                node = await self._api.get(NODES, self._name)
            self._last = node["metadata"].get("labels") or {}
        except (ApiError, TimeoutError) as error:
            log.warning("node %s: labels not read, the last known ones count: %s", self._name, error)
        return self._last
