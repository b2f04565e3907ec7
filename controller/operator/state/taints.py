"""The pools' taints on their nodes: added, kept, and removed when a node leaves its pool."""

from __future__ import annotations

from collections.abc import Mapping

from controller import log
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.errors import Refused
from controller.kube.resources import GPUPOOLS, NODES
from controller.kube.versioned import Stale, patch_as_read
from controller.operator.state import nodes

_logger = log.get("evalstop.taints")


class Taints:
    """Keeps all nodes' taints right, also after a pool was deleted while the operator was down."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache
        self._refused: set[str] = set()

    def owners(self) -> Mapping[str, str]:
        """Node name -> pool name."""
        return nodes.assign(self._selectors(), self._cache.values(NODES))

    def claims(self) -> Mapping[str, tuple[str, ...]]:
        """Node name -> the pools that select it, its owner first; nodes that none selects are left out."""
        return nodes.claims(self._selectors(), self._cache.values(NODES))

    def owner_of(self, node: str) -> str | None:
        """Return the pool of one node; None: it is in none, or not there."""
        found = self._cache.get(NODES, node)
        return nodes.assign(self._selectors(), [found]).get(node) if found is not None else None

    def _selectors(self) -> list[tuple[str, dict[str, str]]]:
        """Of every pool that there is, oldest first: one whose spec has become unusable admits nobody, but
        its gangs run on, and its nodes stay closed to others."""
        oldest = sorted(
            self._cache.values(GPUPOOLS),
            key=lambda o: (o["metadata"].get("creationTimestamp", ""), o["metadata"]["name"]),
        )
        return [(pool["metadata"]["name"], nodes.selector_of(pool)) for pool in oldest]

    async def ensure(self) -> None:
        """Make every node's taint right. A node that may not be patched is told of once and passed over;
        its pods are counted as foreign all the same."""
        owners = self.owners()
        for node in list(self._cache.values(NODES)):
            name = node["metadata"]["name"]
            wanted = nodes.wanted_taints(node, owners.get(name))
            if wanted is None:
                self._refused.discard(name)
                continue
            try:
                await patch_as_read(self._api, self._cache, NODES, node, {"spec": {"taints": wanted or None}})
            except Stale:
                continue  # it was read again, which wakes the pools
            except Refused as error:
                if name not in self._refused:
                    self._refused.add(name)
                    _logger.error("node's taints cannot be changed", node=name, error=str(error))
            else:
                _logger.info("taint set", node=name, pool=owners.get(name))
