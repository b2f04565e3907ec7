"""What the API server's audit log must and must not show of worker groups."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable

import pytest
from rollouts_groups import WORKERS

from deploy.local.plane import Plane
from tests.support.group_audit import OPERATOR, GroupAudit, Request, Step, in_order

_MEMBERS = f"system:serviceaccount:{WORKERS}:"


def of_members(requests: Iterable[Request]) -> list[Request]:
    """Return the requests of the pods of groups: by their service account, or by nobody the server knows."""
    return [one for one in requests if one.user.startswith(_MEMBERS) or one.user in ("", "system:anonymous")]


def turns_are_not_written(requests: Iterable[Request], namespace: str) -> None:
    """Hold what was written while jobs took turns against this: nothing of groups, and what turns change of
    a job (its residency's figures) with evals alone.

    Evals, progress and conditions come with scrapes, which may fail on a busy machine.
    """
    for one in requests:
        assert one.namespace != WORKERS or not one.writes(), one.what
        if one.namespace == namespace and one.writes("rlhfjobs/status"):
            assert one.status.keys() & {"evals", "progress", "conditions"}, f"{one.what}: {one.body}"
            assert "evals" in one.status or "residency" not in one.status, f"{one.what}: {one.body}"


def start_is_in_order(requests: Iterable[Request], group: str, job: str, namespace: str) -> None:
    """Hold a group's first start for a job against the order in which it is written."""
    start, mine = f"{group}-1", [one for one in requests if one.namespace in (WORKERS, namespace)]

    def of_group(field: str, text: str = "") -> Step:
        def fits(one: Request) -> bool:
            told = one.status.get(field)
            return one.writes("workergroups/status", group, OPERATOR) and bool(told) and text in str(told)

        return f"its status has {field} {text}", fits

    def made(resource: str, name: str, by: str) -> Step:
        return (
            f"{resource} {name} is made",
            lambda one: one.verb == "create" and one.writes(resource, name, by),
        )

    in_order(mine, [
        made("workergroups", group, OPERATOR),
        of_group("nodes"),
        made("configmaps", f"{group}-run", OPERATOR),
        made("jobs", start, OPERATOR),
        ("a pod is bound", lambda one: one.writes("pods/binding") and one.name.startswith(f"{start}-")),
        of_group("members"),
        of_group("readyTime"),
        of_group("residents", "'joined': True"),
        ("the job starts", lambda one: one.verb == "patch" and one.writes("jobs", job, OPERATOR)),
    ])  # fmt: skip
    # The residency is the job's, in the write that admits it, before the group has it.
    in_order(mine, [
        made("workergroups", group, OPERATOR),
        ("the job is admitted", lambda one: "admission" in one.status and one.writes("rlhfjobs/status", job)),
        of_group("residents"),
    ])  # fmt: skip
    admitted = next(one for one in mine if one.writes("rlhfjobs/status", job) and "admission" in one.status)
    assert admitted.status["residency"]["group"] == group


def end_is_in_order(requests: Iterable[Request], group: str, job: str, namespace: str) -> None:
    """Hold the end of a group after that of its last resident, a job, against the order in which it is
    written."""
    mine = [one for one in requests if one.namespace in (WORKERS, namespace)]
    written = [one for one in mine if one.writes("workergroups/status", group, OPERATOR)]
    in_order(mine, [
        ("the job is done", lambda one: one.writes("rlhfjobs/status", job) and "finished" in one.status),
        ("no resident", lambda one: one in written and one.status.get("residents", ()) is None),
        ("no residency", lambda one: one.writes("rlhfjobs/status", job) and _none(one, "residency")),
    ])  # fmt: skip
    in_order(mine, [
        ("no resident", lambda one: one in written and one.status.get("residents", ()) is None),
        ("it closes", lambda one: one in written and bool(one.status.get("closing"))),
        ("its Job goes", lambda one: one.verb == "delete" and one.writes("jobs", f"{group}-1", OPERATOR)),
        ("its pod goes", _pod_goes),
        ("it goes", lambda one: one.verb == "delete" and one.writes("workergroups", group, OPERATOR)),
    ])  # fmt: skip


def next_start_is_in_order(requests: Iterable[Request], group: str) -> None:
    """Hold a group's second start against the order in which it is written.

    A pod that has ended is in nobody's way, and may still be listed when the next Job is made.
    """
    mine = [one for one in requests if one.namespace == WORKERS]

    def numbered(one: Request) -> bool:
        return one.writes("workergroups/status", group, OPERATOR) and one.status.get("number") == 2

    made = "its next Job is made", lambda one: one.verb == "create" and one.writes("jobs", f"{group}-2")
    in_order(mine, [
        ("the first Job goes", lambda one: one.verb == "delete" and one.writes("jobs", f"{group}-1")),
        made,
    ])  # fmt: skip
    in_order(mine, [("its status has the next number", numbered), made])


def would_be_seen(plane: Plane, audit: GroupAudit) -> None:
    """Ask the API server as pods of groups could, and find that in the log."""
    mark, token = audit.mark(), plane.kubectl("-n", WORKERS, "create", "token", "default").strip()
    for headers, code in (
        ({"Authorization": f"Bearer {token}"}, 403),
        ({"Authorization": "Bearer of-another-audience"}, 401),
        ({}, 401),
    ):
        https = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
        asked = urllib.request.Request(f"{plane.url}/api/v1/namespaces/{WORKERS}/pods", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.build_opener(urllib.request.ProxyHandler({}), https).open(asked, timeout=30)
        assert refused.value.code == code
    end = time.monotonic() + 20.0
    while sorted(one.code for one in of_members(audit.since(mark))) != [401, 401, 403]:
        assert time.monotonic() < end, [one.what for one in audit.since(mark)]
        time.sleep(0.05)


def _pod_goes(one: Request) -> bool:
    """Return whether a node says that a group's pod is gone."""
    return one.namespace == WORKERS and one.verb == "delete" and one.writes("pods", user="system:node:")


def _none(one: Request, field: str) -> bool:
    return field in one.status and one.status[field] is None
