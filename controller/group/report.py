"""Member 0's report to the operator (docs/understand/groups-wire.md, "The operator's routes")."""

from __future__ import annotations

from typing import Any

from controller.bounded import shown
from controller.group.coordination import Coordination
from controller.policy.sharing import coordinator as co

MOST_WHY = 400  # characters of a reason


def report(group: Coordination) -> dict[str, Any]:
    """Return the report, as JSON values."""
    state, now, account = group.state, group.clock.now(), group.account
    turn = state.turn
    return {
        "group": group.rules.group,
        "admission": state.admission,
        "start": state.start,
        "now": now,
        "opened": 0,
        "ready": all(link.connected for link in group.links.values()),
        "members": [_member(group, index, uid) for index, uid in enumerate(state.members)],
        "turn": None if turn is None else {
            "resident": turn.resident, "sequence": turn.token.sequence, "phase": turn.phase.value,
            "since": account.since, "began": account.began,
            "function": turn.function if turn.phase is co.Phase.CALLING else "",
        },
        "waiting": [
            {"resident": name, "since": account.records[name].asked or now} for name in state.waiting
        ],
        "loaded": state.loaded,
        "residents": [_resident(group, name, version, now) for name, version in state.versions],
        "leaving": list(group.kept.leaving),
        "gone": list(group.kept.gone),
        "lost": list(group.kept.lost),
        "vacant": account.charges.vacant(now),
        "calls": account.calls,
        "switches": account.switches,
        "expired": account.expired,
        "recent": [list(one) for one in account.recent],
    }  # fmt: skip


def _member(group: Coordination, index: int, uid: str) -> dict[str, Any]:
    link, supervisor = group.links.get(uid), group.supervisor
    return {
        "uid": uid, "index": index, "connected": link is None or link.connected,
        # What a member keeps for its residents; its own member 0 counts.
        "hostBytes": supervisor.memory.used() if link is None and supervisor is not None
        else sum(sum(sizes.values()) for sizes in group.regions.get(uid, {}).values()),
    }  # fmt: skip


def _resident(group: Coordination, name: str, version: int, now: int) -> dict[str, Any]:
    record, residency = group.account.records[name], group.kept.residents.get(name)
    return {
        "name": name,
        "job": residency.job if residency is not None else "",
        "kind": residency.kind if residency is not None else "",
        "version": version,
        "turns": [list(one) for one in record.turns],
        "loads": list(record.loads),
        "offloads": list(record.offloads),
        "charge": group.account.charges.charge(name, now),
        "released": record.released,
        "lost": record.lost,
        "longestWait": record.longest_wait,
        "lostInRow": record.in_row,
        "failing": record.failing,
        "whyLost": shown(record.why, MOST_WHY),
    }
