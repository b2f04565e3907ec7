"""`evalstop queue POOL`: who waits in a pool, in which place and why, as the operator sees it now.

The operator serves this on its pod's loopback address; the command reaches it through
``kubectl port-forward``, with the rights of the kubeconfig in use, or by ``--url``. Who may not do that is
told what the RLHFJobs' statuses say: why each waits and since when, but not in which place.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags, output, say
from controller.cli.failure import Exit, Failure, command
from controller.cli.flags import Document
from controller.cli.table import Column, render
from controller.cli.terminal import terminal

if TYPE_CHECKING:
    from controller.cli.cluster import Cluster

ROOT = "/apis/evalstop.dev/v1alpha1/gpupools"
OPERATOR_PORT = 8081
OPERATOR_NAMESPACE = "evalstop-system"
PATIENCE = 20.0  # s for an answer
WAITING = ("Queued", "Unfit", "Preempting")

JobKey = Annotated[str, typer.Option("--job", help="Only this RLHFJob, as namespace/name.")]
Url = Annotated[
    str, typer.Option("--url", help="Where the operator's queue API is, instead of a port-forward.")
]
OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator's Deployment.")
]
Port = Annotated[int, typer.Option("--operator-port", help="The operator's EVALSTOP_QUEUE_PORT.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=5000, help="How many to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


@command
def queue(
    pool: flags.Pool,
    job: JobKey = "",
    url: Url = "",
    operator_namespace: OperatorNamespace = OPERATOR_NAMESPACE,
    operator_port: Port = OPERATOR_PORT,
    limit: Limit = 50,
    form: flags.Page = Document.TEXT,
    as_json: AsJson = False,
    kubeconfig: flags.Kubeconfig = "",
    context: flags.Context = "",
    timeout: flags.Timeout = 15.0,
) -> None:
    """Show who waits in a POOL, in which place, why, for how long, and what the policy ranks them by."""
    path = f"{ROOT}/{urllib.parse.quote(pool, safe='')}/queue"
    if job:
        namespace, slash, name = job.partition("/")
        if not (slash and namespace and name) or "/" in name:
            raise Failure(
                Exit.REFUSED,
                f"--job: {job!r} is not allowed, expected namespace/name",
                "give --job NAMESPACE/NAME",
            )
        path += f"/{urllib.parse.quote(namespace, safe='')}/{urllib.parse.quote(name, safe='')}"
    else:
        path += f"?limit={limit}"
    if url:
        answer = _get(url.rstrip("/") + path)
    else:
        from controller.cli.forward import forwarded, leader

        target = leader(operator_namespace, kubeconfig, context)
        try:
            with forwarded(operator_namespace, target, operator_port, kubeconfig, context) as base:
                answer = _get(base + path)
        except Failure as failure:
            if failure.code not in (Exit.FORBIDDEN, Exit.UNREACHABLE):
                raise
            answer = _by_status(failure, pool, job, limit, kubeconfig, context, timeout)
    if output.document(answer, Document.JSON if as_json else form):
        return
    if job:
        _show([answer])
    else:
        _show(answer["items"])
        shown = len(answer["items"])
        more = f", the first {shown} shown" if shown < answer["total"] else ""
        typer.echo(f"{answer['total']} waiting in pool {answer['pool']} ({answer['policy']}){more}")


def _get(url: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise Failure(
            Exit.REFUSED,
            f"--url: {url!r} is not allowed, expected http://… or https://…",
            "give --url http://HOST:PORT",
        )
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        code, reason = _reason(error)
        found = Exit.NOT_FOUND if code in ("PoolNotFound", "JobNotFound", "NotFound") else Exit.REFUSED
        raise Failure(found, reason, "evalstop pools and evalstop list -A say what there is") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise Failure(
            Exit.UNREACHABLE,
            f"no queue API at {url.partition(ROOT)[0]}: {why}",
            "evalstop doctor says whether the operator is there",
        ) from None


def _reason(error: urllib.error.HTTPError) -> tuple[str, str]:
    try:
        answer = json.load(error)
        return str(answer["reason"]), f"{answer['message']} ({answer['reason']})"
    except (ValueError, KeyError, TypeError):
        return "", f"HTTP {error.code} from {error.url}"


def _by_status(
    failure: Failure, pool: str, job: str, limit: int, kubeconfig: str, context: str, timeout: float
) -> Any:
    """What the RLHFJobs that the caller may read say of their waits; without places, which no status has.

    Raises:
        Failure: the one given, if no RLHFJob can be read either; or there is no such pool or job.
    """
    from controller.cli import cluster
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS, RLHFJOBS

    async def work(api: Cluster) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if job:
            found = [await cluster.job(api, job)]
        else:
            try:
                found, _ = await api.list(RLHFJOBS, None)
            except ApiError:
                found, _ = await cluster.listed(api, RLHFJOBS, api.namespace)
        try:
            return await api.get(GPUPOOLS, pool), found
        except ApiError as error:
            if error.status == 404:
                return await cluster.pool(api, pool), found
            return {}, found

    try:
        known, found = cluster.run(work, kubeconfig, context, timeout=timeout)
    except Failure as second:
        if second.code is Exit.NOT_FOUND:
            raise
        raise failure from None
    typer.echo(
        f"note: places in the queue are the operator's to tell, and it was not reached: {failure}", err=True
    )
    now = time.time()
    places = [_place(obj, now) for obj in found if (obj.get("spec") or {}).get("pool") == pool]
    if job:
        if not places:
            raise Failure(
                Exit.NOT_FOUND, f"{job} does not stand before GPUPool {pool!r}", "evalstop get shows its pool"
            )
        return places[0]
    waiting = [place for place in places if place["state"] in WAITING]
    waiting.sort(key=lambda place: -(place["waitedSeconds"] or 0.0))
    policy = next(iter((known.get("spec") or {}).get("queuePolicy") or {"unknown": {}}))
    return {"pool": pool, "policy": policy, "planned": None, "total": len(waiting), "items": waiting[:limit]}


def _place(obj: Mapping[str, Any], now: float) -> dict[str, Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = status.get("conditions") or []
    admitted: Mapping[str, Any] = next((c for c in conditions if c["type"] == "Admitted"), {})
    gang = spec.get("gang") or {}
    state = str(status.get("summary") or "New")
    since = status.get("queuedTime") or obj["metadata"]["creationTimestamp"]
    waits = state in WAITING
    return {
        "job": f"{obj['metadata']['namespace']}/{obj['metadata']['name']}",
        "state": state,
        "position": None,
        "reason": admitted.get("reason", "") if waits else "",
        "message": admitted.get("message", "") if waits else "",
        "waitedSeconds": max(0.0, now - say.seconds(since)) if waits else None,
        "overdue": False,
        "replicas": gang.get("replicas", 1),
        "gpus": gang.get("replicas", 1) * gang.get("gpusPerReplica", 0),
        "key": {"priority": spec.get("priority", 0)},
    }


def _show(items: list[Mapping[str, Any]]) -> None:
    columns = (
        Column("#", right=True),
        Column("JOB"),
        Column("GPUS", right=True, gives_way=2),
        Column("WAITED", right=True, gives_way=1),
        Column("REASON"),
        Column("RANKED BY", text=True, gives_way=3),
    )
    rows = []
    for item in items:
        reason = item["reason"] or item["state"]
        key = ", ".join(
            f"{name} {_value(name, value)}" for name, value in item["key"].items() if name != "submitted"
        )
        rows.append(
            [
                say.NOTHING if item["position"] is None else str(item["position"]),
                item["job"],
                str(item["gpus"]),
                say.NOTHING if item["waitedSeconds"] is None else say.span(item["waitedSeconds"]),
                reason + (", overdue" if item["overdue"] else ""),
                key,
            ]
        )
    output.lines(render(columns, rows, terminal()))
    if len(items) == 1 and items[0]["message"]:
        typer.echo(items[0]["message"])


def _value(name: str, value: Any) -> str:
    if name == "since" and value is not None:
        return say.moment(value)
    return "unknown" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
