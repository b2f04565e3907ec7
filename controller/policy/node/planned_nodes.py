"""Planned nodes of an admission that still wait for a pod; operator and extender use the same function.

The planned node of a member is kept for it until a pod of the gang is bound there. A member that ended well
needs its node no more, for its workload does not start it again (a completed index of an Indexed Job stays
completed): the operator notes it in the admission, and from that note both free the node. One that failed
keeps its node: another pod comes in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


def remaining_nodes(nodes: tuple[str, ...], ended: Collection[int]) -> tuple[str, ...]:
    """Return the planned nodes, by member, less those of members (by index) that ended well."""
    return tuple(node for index, node in enumerate(nodes) if index not in ended) if ended else nodes


def still_open(nodes: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Of planned nodes, one entry per member, those that no pod has taken; ``taken``: one entry per pod."""
    pods = Counter(taken)
    found = []
    for node in nodes:
        if pods[node] > 0:
            pods[node] -= 1
        else:
            found.append(node)
    return found
