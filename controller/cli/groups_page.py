"""Worker groups as text: all in a table, one on a page of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from controller.cli import formatting
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal
from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.policy.job import Cure

Object = Mapping[str, Any]

TABLE = (
    Column("NAME"),
    Column("STATE", style=lambda s: {"Ready": "green", "NotReady": "red", "NoAnswer": "red"}.get(s, "")),
    Column("POOL", gives_way=4),
    Column("FAMILY", gives_way=3),
    Column("GPUS", right=True, gives_way=2),
    Column("RESIDENTS", right=True),
    Column("TURN OF", name=True),
    Column("FUNCTION", gives_way=1),
    Column("HELD", right=True, gives_way=1),
    Column("WAITING", right=True),
    Column("HOST MEMORY", right=True, gives_way=5),
)
RESIDENTS = (
    Column("RESIDENT", name=True),
    Column("STATE"),
    Column("STEP", right=True, gives_way=6),
    Column("TURNS", right=True, gives_way=3),
    Column("LOST", right=True, gives_way=4),
    Column("DUTY", right=True),
    Column("HELD", right=True, gives_way=5),
    Column("SWITCH", right=True, gives_way=5),
    Column("LONGEST WAIT", right=True, gives_way=2),
    Column("STATE SIZE", right=True, gives_way=7),
    Column("CHARGED", right=True, gives_way=1),
    Column("SLOWER", right=True),
    Column("ALLOWED", right=True, gives_way=1),
)
MEMBERS = (
    Column("MEMBER", right=True),
    Column("NODE", name=True),
    Column("CONNECTED"),
    Column("HOST MEMORY", right=True),
)
TURNS = (
    Column("TURN OF", name=True),
    Column("ENDED", right=True),
    Column("SWITCH", right=True),
    Column("HELD", right=True),
    Column("COUNTED"),
)
SHOWN_TURNS = 8


def state(one: Object) -> list[Any]:
    """Return what of a group is more than the time that passed."""
    fields = ("name", "state", "reason", "overdue", "start", "loaded", "lost", "problem")
    turn = one["turn"] or {}
    return [
        *(one[name] for name in fields),
        [turn.get(name) for name in ("job", "phase", "function", "sequence")],
        [wait["job"] for wait in one["waiting"]],
        [(who["job"], who["state"], who["turns"], who["slowdown"]) for who in one["residents"]],
    ]


def table(found: Sequence[Object], now: float, screen: Terminal) -> list[str]:
    """Return groups in a table."""
    return render(TABLE, [_row(one, now) for one in found], screen)


def _row(one: Object, now: float) -> list[str]:
    turn, known = one["turn"], one["reported"] is not None
    waiting = one["waiting"]
    most = one["mostResidents"]
    return [
        one["name"],
        one["state"],
        one["pool"],
        one["family"],
        str(one["gpus"] or formatting.NOTHING),
        str(len(one["residents"])) + (f"/{most}" if most else ""),
        (turn["job"] if turn else "nobody") if known else "?",
        (turn["function"] or turn["phase"]) if turn else formatting.NOTHING,
        _seconds(_held(one, now)) if turn else formatting.NOTHING,
        _waits(waiting, one, now) if known else "?",
        _memory(one),
    ]


def _held(one: Object, now: float) -> float:
    return float(one["turn"]["seconds"]) + _lasts(one, now)


def _age(one: Object, now: float) -> float:
    """Return how old (s) the report is."""
    return max(0.0, now - one["reported"]) if one["reported"] is not None else 0.0


def _lasts(one: Object, now: float) -> float:
    """Return for how long (s) a turn or wait of the report is taken to have gone on since; nobody knows that
    of a group that does not answer."""
    return _age(one, now) if one["unanswered"] is None else 0.0


def _waits(waiting: Sequence[Object], one: Object, now: float) -> str:
    if not waiting:
        return "0"
    longest = max(float(wait["seconds"]) for wait in waiting) + _lasts(one, now)
    return f"{len(waiting)} ({_seconds(longest)})"


def _memory(one: Object) -> str:
    """Return what the fullest member keeps, and the most that it may."""
    used = [member["hostBytes"] for member in one["members"] if member["hostBytes"] is not None]
    most = one["hostBytes"]
    if not used:
        return formatting.NOTHING
    return formatting.size(max(used)) + (f" of {formatting.size(most)}" if most else "")


def page(one: Object, now: float, screen: Terminal) -> list[str]:
    """Return everything that there is to say about one group, as lines. ``now``: s since the epoch."""
    from controller.cli.why import facts, wrapped

    lines = [*wrapped(headline(one, now), screen, style="bold"), "", *facts(tuple(_facts(one, now)), screen)]
    if one["residents"]:
        rows = [_resident(who) for who in one["residents"]]
        lines += ["", *render(RESIDENTS, rows, screen)]
    if one["members"]:
        members = [_member(member, one["hostBytes"]) for member in one["members"]]
        lines += ["", *render(MEMBERS, members, screen)]
    if one["recent"]:
        turns = [_turn(turn, now) for turn in reversed(one["recent"][-SHOWN_TURNS:])]
        lines += ["", *render(TURNS, turns, screen)]
    return lines


def headline(one: Object, now: float) -> str:
    """Return in one sentence whose turn it is, and who waits."""
    text = f"{one['name']}: {one['state']}"
    if one["reason"]:
        text += f" ({one['reason']}" + (f": {one['message']})" if one["message"] else ")")
    if one["unanswered"] is not None:
        text += f", silent for {_seconds(max(0.0, now - one['unanswered']))}"
    if one["reported"] is None:
        return f"{text}; whose turn it is is not known here"
    if one["unanswered"] is not None:
        text += f"; as reported {_seconds(_age(one, now))} ago"
    turn = one["turn"]
    if turn is None:
        text += ", nobody has the turn"
    else:
        doing = turn["function"] or _PHASES.get(turn["phase"], turn["phase"])
        text += f", {turn['job']} has the turn for {_seconds(_held(one, now))} ({doing})"
    waits = [
        f"{wait['job']} for {_seconds(wait['seconds'] + _lasts(one, now))}" for wait in one["waiting"]
    ]  # fmt: skip
    return f"{text}; {'waiting: ' + ', '.join(waits) if waits else 'nobody waits'}"


_PHASES = {
    "Loading": "its state is loaded",
    "Held": "between two calls",
    "Calling": "a call",
    "Writing": "its state is written",
    "Recording": "its new version is recorded",
}


def remedy(one: Object) -> Cure | None:
    """Return what to do about a group that is not Ready; None: nothing, or nothing is known."""
    from controller.policy.group_types import GROUPS_NAMESPACE
    from controller.policy.job import GROUP_CURES

    found = GROUP_CURES.get(one["reason"])
    return None if found is None else found.filled(one["name"], GROUPS_NAMESPACE, one["pool"], "")


def _facts(one: Object, now: float) -> Iterator[tuple[str, str]]:
    members = len(one["members"])
    yield "pool", f"{one['pool']}, family {one['family']}"
    if members:
        yield "workers", f"{counted(members, 'member')}, {counted(one['gpus'], 'GPU')}; start {one['start']}"
    if one["overdue"]:
        yield "closed", f"takes nobody now: {one['overdue']} is overdue and waits for GPUs of it"
    if (memory := _memory(one)) != formatting.NOTHING:
        yield "memory", f"{memory} of host memory on the fullest member"
    if one["loaded"] and one["turn"] is None:
        yield "loaded", f"the state of {one['loaded']} is still on the devices"
    if one["calls"] is not None:
        calls, switches = counted(one["calls"], "call"), counted(one["switches"], "switch")
        lost = counted(one["lost"], "turn")
        vacant = formatting.gpu_hours(one["vacantGPUSeconds"])
        yield "so far", f"{calls}, {switches}, {lost} lost; {vacant} without residents"
    for who in one["residents"]:
        if who["lostInRow"] and who["whyLost"]:
            often = counted(who["lostInRow"], "turn")
            yield "lost", f"{often} of {who['job']} since one counted, the newest: {who['whyLost']}"
    if one["reported"] is not None:
        yield "reported", f"{_seconds(_age(one, now))} ago"
    if (cure := remedy(one)) is not None:
        yield "do", cure.line
    if one["problem"]:
        yield "trouble" if one["reported"] is not None else "turns", one["problem"]


def _resident(who: Object) -> list[str]:
    slower, allowed = who["slowdown"], who["maxSlowdown"]
    return [
        who["job"],
        "Measured" if who["profiled"] is False and who["state"] == "Joined" else who["state"],
        _or_nothing(who["step"]),
        _or_nothing(who["turns"]),
        _or_nothing(who["lost"]),
        formatting.NOTHING if who["duty"] is None else f"{who['duty']:.2f}",
        _seconds(who["heldSeconds"]),
        _seconds(who["switchSeconds"]),
        _seconds(who["longestWaitSeconds"]),
        formatting.size(who["stateBytes"] or None),
        formatting.NOTHING
        if who["chargedGPUSeconds"] is None
        else formatting.gpu_hours(who["chargedGPUSeconds"]),
        formatting.NOTHING if slower is None else f"{slower:.2f} x",
        formatting.NOTHING if allowed is None else f"{allowed:.2f} x",
    ]


def _member(member: Object, most: int | None) -> list[str]:
    connected = {True: "yes", False: "no", None: "?"}[member["connected"]]
    used = formatting.size(member["hostBytes"])
    return [
        str(member["index"]),
        member["node"] or formatting.NOTHING,
        connected,
        used + (f" of {formatting.size(most)}" if most and member["hostBytes"] is not None else ""),
    ]


def _turn(turn: Object, now: float) -> list[str]:
    return [
        turn["job"],
        f"{formatting.span(max(0.0, now - turn['ended']))} ago",
        _seconds(turn["granted"] - turn["began"]),
        _seconds(turn["ended"] - turn["granted"]),
        "yes" if turn["counted"] else "lost",
    ]


def _or_nothing(value: Any) -> str:
    return formatting.NOTHING if value is None else str(value)


def _seconds(length: float | None) -> str:
    if length is None:
        return formatting.NOTHING
    return f"{length:.1f}s" if length < 60.0 else formatting.span(length)
