"""Pods that were refused every node they asked for: kube-scheduler parks them until an event it knows.

Remembered only to be woken at once; what is forgotten (here is a bound, and a restart forgets all) is found
again by the look at kube-scheduler's own words in the pods' status (`controller.extender.lookout`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from controller.policy.node import Asker, GpuLedger, Judgement, Refusal, judge

MOST = 10_000  # pods
MOST_NODES = 256  # nodes remembered of one pod: where GPUs are kept from it there are few


@dataclass(frozen=True, slots=True)
class Parked:
    """What a pod was told."""

    uid: str
    asker: Asker
    nodes: tuple[str, ...]  # refused to a pod that no plan places, at most `MOST_NODES`
    planned: tuple[str, ...]  # where its gang had a place for it


class Parking:
    """Parked pods by uid, oldest first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._pods: OrderedDict[str, Parked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pods)

    def answered(self, ledger: GpuLedger, uid: str, asker: Asker, judgement: Judgement) -> None:
        """Remember, or forget, a pod by the answer that it got."""
        self._pods.pop(uid, None)
        reason = judgement.reason
        # One that may go somewhere is not parked by us; one whose admission is over is deleted soon.
        if not uid or judgement.passed or reason in (None, Refusal.OVER):
            return
        unplanned = asker.gang is None or reason is Refusal.KEPT
        nodes = tuple(judgement.refused)[:MOST_NODES] if unplanned else ()
        self._pods[uid] = Parked(uid, asker, nodes, ledger.planned(asker))
        if len(self._pods) > self._most:
            self._pods.popitem(last=False)

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def take_hopeful(self, ledger: GpuLedger, now: float) -> list[Parked]:
        """Return pods that would be answered otherwise now; they are no longer parked here."""
        found = [pod for pod in self._pods.values() if _hope(ledger, pod, now)]
        for pod in found:
            del self._pods[pod.uid]
        return found


def _hope(ledger: GpuLedger, pod: Parked, now: float) -> bool:
    if pod.nodes:
        return bool(judge(ledger, pod.asker, pod.nodes, now).passed)
    # Whether its node is free is not ours to judge, and kube-scheduler hears of that by itself.
    planned = ledger.planned(pod.asker)
    return bool(planned) and planned != pod.planned
