"""Checks of one RLHFJob: what its conditions say, its pods, its trainer's metrics, its checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from controller import names
from controller.api.rlhfjob import Metric
from controller.api.rule_text import rule_and_modifiers
from controller.cli.cluster import CallerApi, operator_away
from controller.cli.doctor.findings import Finding, Level, note, ok, unknown, wrong
from controller.cli.doctor.pod_starts import starts
from controller.cli.doctor.pods import replaced, trainer_ended, trouble, unseen
from controller.cli.doctor.served import cure_of
from controller.cli.job_view import Reading
from controller.cli.remedies import cure, marks
from controller.kube.errors import ApiError, NotFound
from controller.kube.resources import CLAIMS, EVENTS, JOBS, NODES, PODS
from controller.metrics import MetricsError, member, members, metrics_port, parse
from controller.metrics.samples import DEFAULT_LIMITS
from controller.objects import controller_uid, is_terminal
from controller.policy.job import (
    ACCEPTED,
    ANY,
    ANY_MEMBER,
    ATTENTION,
    METRICS,
    SCALED,
    Gang,
    Member,
    ScrapeOutcome,
    ScrapeView,
    Speaker,
    SpeakerSearch,
    candidates,
    ended_early,
    first_asked,
    found_gone,
    is_eval,
    lives,
    no_eval,
    nodes_of,
    trains,
)
from controller.policy.stopping import MODIFIERS, RULES, noise
from controller.policy.types import EvalPoint, EvalScale
from controller.policy.wording import counted, unlabelled
from controller.workloads import scaled_down
from controller.workloads.pod_starts import is_starting
from controller.workloads.pods import unheard

Object = dict[str, Any]

CONTRACT = "docs/use/trainer-contract.md; a client for trainers: docs/use/trainers.md"
NODES_ASKED = 32  # of a gang
MEMBERS_ASKED = 32  # of a gang: each is a request through the API server
PROXY_REFUSES = "BadRequest"  # of a Status: the API server's own answer, a trainer gives none
EXPIRES = "ttlSecondsAfterFinished"  # named where a workload would be gone before its end was seen
_FINE_WHILE_FALSE = frozenset(
    {"Running", "Admitted", "QualityDeclining", "Demoted", "TerminationTarget", ATTENTION}
)


async def spec(job: Reading, now: float) -> AsyncIterator[Finding]:
    """Yield whether the operator has seen the newest spec, and what it says of it."""
    metadata = job.obj["metadata"]
    if job.problem:
        yield wrong(
            "status", f"this evalstop cannot read it: {job.problem}", "upgrade evalstop on this machine"
        )
        return
    if not job.status:
        yield wrong(
            "operator", "it has not looked at this job yet", "evalstop doctor: is the operator there?"
        )
        return
    seen, newest = int(job.status.get("observedGeneration") or 0), int(metadata.get("generation") or 0)
    if seen < newest:
        text = f"it has seen generation {seen} of the spec, the newest is {newest}"
        yield wrong("operator", text, "evalstop doctor: is the operator there, and does it lead?")
    for found in conditions(job, now):
        yield found
    for doubt in job.doubts:
        yield note("metric", doubt)


async def operator(api: CallerApi, job: Reading, now: float) -> AsyncIterator[Finding]:
    """Yield that no operator leads, or that its status is refused: whatever it says is of before."""
    if told := await operator_away(api, now, [job.obj]):
        yield wrong("operator", told.removesuffix("; see evalstop doctor"), cure_of(told, "evalstop doctor"))


def conditions(job: Reading, now: float) -> Iterator[Finding]:
    """Yield what its health says, and beside it what conditions tell that needs nobody."""
    messages = set()
    for one in marks(job, now):
        messages.add(one.message)
        text = f"{one.reason}: {one.message}"
        found = wrong if one.warning else note
        yield found(str(one.mark), text, cure(job, one.code, one.message, examining=True))
    for condition in job.record.conditions:
        if condition.status:
            if condition.type == ACCEPTED and EXPIRES in condition.message:
                messages.add(condition.message)
                yield note(condition.type, condition.message)
            elif condition.type == METRICS and job.page_notes:
                messages.add(condition.message)
                yield note(condition.type, job.page_notes)
            continue
        known = condition.type in _FINE_WHILE_FALSE or condition.message in messages
        if not known and (condition.type != METRICS or trains(job.record)):
            messages.add(condition.message)
            yield note(condition.type, f"{condition.reason}: {condition.message}")
    if not messages and (early := ended_early.complaint(job.record)):
        messages.add(early)
        yield note("end", early, f"kubectl logs{job.flags()} -l {names.LABEL_JOB}={job.name}")
    if not messages:
        yield ok("conditions", f"{job.state}, and none asks for anything")


async def nodes(api: CallerApi, job: Reading) -> AsyncIterator[Finding]:
    """Yield which of its nodes do not answer, and which take no new pods: there the run goes on, and comes
    back to none of them."""
    found, there = nodes_of(job.record.admission)
    for name in sorted(found)[:NODES_ASKED]:
        its = f"its node {name}" if there else f"{name}, the node planned for it,"
        try:
            node = await api.get(NODES, name)
        except NotFound:
            yield note("pods", f"{its} is gone", "kubectl get nodes")
        except ApiError:
            return  # not everybody may read them
        else:
            if there and (silent := not_ready(node)):
                text = (
                    f"{its} is not ready ({silent}): a pod there may have ended, whatever it is said to be, "
                    "and is replaced once the cluster knows that it has"
                )
                lost = f"if it is lost: kubectl delete node {name}"
                yield wrong("pods", text, f"kubectl describe node {name}; {lost}")
            elif (node.get("spec") or {}).get("unschedulable"):
                goes_on = "it goes on there; a pod that ends comes back elsewhere"
                text = f"{its} is cordoned: {goes_on if there else 'no pod of it gets there'}"
                yield note("pods", text, f"kubectl uncordon {name}")


def not_ready(node: Mapping[str, Any]) -> str:
    """Return why a node is not ready, in the cluster's words; "": it is."""
    for one in (node.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") != "True":
            return ": ".join(filter(None, (one.get("reason"), str(one.get("message") or "").rstrip("."))))
    return ""


async def gang(api: CallerApi, job: Reading, found: Sequence[Object]) -> AsyncIterator[Finding]:
    """Yield what a run that was whole lacks of its gang: pods that its workload asks for no more, or all."""
    running = job.record.admission is not None and job.record.admission.running_since is not None
    if not trains(job.record) or not running or job.record.decision is not None:
        return
    ref = (job.spec.get("workload") or {}).get("ref")
    name = str(ref["name"]) if ref else job.name
    replicas = int((job.spec.get("gang") or {}).get("replicas") or 1)
    try:
        workload = await _workload(api, job, ref)
    except ApiError:
        workload = None
    if workload is not None and (lack := scaled_down(workload, replicas)):
        text = f"Job {name}: {lack}: somebody scaled it, and it keeps its GPUs"
        yield wrong("pods", text, cure(job, SCALED, text, examining=True))
    elif not found and workload is not None and (there := await _unlabelled(api, job, workload)):
        text = unlabelled(there, name, names.LABEL_JOB, job.name)
        yield wrong("pods", text, cure(job, "PodsUnlabelled", text, examining=True))
    elif not found:
        text = (
            f"0 of {counted(replicas, 'pod')} are there, though it was admitted and ran: its Job makes none"
        )
        yield wrong("pods", text, f"kubectl describe job {name}{job.flags()}")


async def _unlabelled(api: CallerApi, job: Reading, workload: Object) -> list[str]:
    """Return the names of live pods of its workload that lack the label by which EvalStop finds them."""
    uid = (workload.get("metadata") or {}).get("uid")
    there, _ = await api.list(PODS, job.namespace, labels=f"{names.LABEL_JOB}!={job.name}")
    owned = (pod for pod in there if uid and controller_uid(pod) == uid and not is_terminal(pod))
    return sorted(str(pod["metadata"]["name"]) for pod in owned)


async def pods(api: CallerApi, job: Reading) -> AsyncIterator[Finding]:
    """Its pods and those of its access Jobs: what keeps any from running."""
    found, _ = await api.list(PODS, job.namespace, labels=f"{names.LABEL_JOB}={job.name}")
    over = [pod for pod in found if replaced(pod, found)]
    for former in over:
        name = former["metadata"]["name"]
        text = f"{trouble(former) or name}; another pod has taken its place"
        yield note("pods", text, f"kubectl logs {name}{job.flags()}")
    sick = [text for pod in found if pod not in over and (text := trouble(pod))]
    for text in sick:
        pod = text.partition(":")[0]
        yield wrong("pods", text, f"kubectl describe pod {pod}{job.flags()}; kubectl logs {pod}{job.flags()}")
    late = [one async for one in starts(api, job, found)]
    for finding in late:
        yield finding
    away = [one async for one in gang(api, job, found)]
    for finding in away:
        yield finding
    if not sick and not late and not away and not any(map(unseen, found)):
        begin = sum(1 for pod in found if is_starting(pod))
        still = f"; {begin} not started yet, the image may be on its way" if begin else ""
        done = sum(1 for pod in found if (pod.get("status") or {}).get("phase") == "Succeeded")
        ended = f"; {done} ended well" if done else ""
        yield ok("pods", f"{len(found) - len(over)}, nothing keeps any from running{ended}{still}")
    for text in filter(None, (trainer_ended(pod) or unseen(pod) for pod in found)):
        yield note("pods", text)
    for closed in [one async for one in nodes(api, job)]:
        yield closed
    refused, _ = await api.list(EVENTS, job.namespace, fields="reason=FailedCreate,involvedObject.kind=Job")
    for event in refused:
        owner = str((event.get("involvedObject") or {}).get("name", ""))
        if owner == job.name or owner.startswith(f"{job.name}-"):
            message = str(event.get("message", ""))
            quota = "quota" in message.lower()
            text = f"the cluster refuses pods of Job {owner}: {message}"
            remedy = (
                f"kubectl describe quota{job.flags()}"
                if quota
                else f"kubectl describe job {owner}{job.flags()}"
            )
            yield wrong("quota" if quota else "pods", text, remedy)
            return


async def metrics(api: CallerApi, job: Reading, now: float) -> AsyncIterator[Finding]:
    """Yield the trainer's page, read through the API server as the operator reads it from the pod."""
    decision = job.record.decision
    if job.record.admission is None or (decision is not None and decision.suspended_at is not None):
        yield note("metrics", f"it is {job.state}: there is no trainer to ask")
        return
    if job.mode == "Off":
        yield note("metrics", "mode Off: nobody reads them", f"evalstop mode {job.name}{job.flags()} Shadow")
    found, _ = await api.list(PODS, job.namespace, labels=f"{names.LABEL_JOB}={job.name}")
    ref = (job.spec.get("workload") or {}).get("ref")
    workload = await _workload(api, job, ref)
    theirs = members(found, workload, None if ref else str(job.obj["metadata"].get("uid")))
    pages = {one.pod: (one, pod) for pod in theirs for one in [member(pod)]}
    async for finding in _pages(api, job, pages, now):
        # In mode Off nothing is broken by it yet; it is once the mode is another.
        unread = job.mode == "Off" and finding.level is Level.WRONG
        yield replace(finding, level=Level.NOTE) if unread else finding


async def _pages(
    api: CallerApi, job: Reading, pods: Mapping[str, tuple[Member, Mapping[str, Any]]], now: float
) -> AsyncIterator[Finding]:
    """Yield who of these pods speaks for the job, found as the operator finds it, and what its page lacks."""
    asked = job.spec.get("scrape") or {}
    speaker = Speaker.parse(asked.get("speaker", ANY_MEMBER))
    there = candidates(speaker, [one for one, _ in pods.values()])
    if isinstance(there, ScrapeView):
        remedy = f"kubectl get pods{job.flags()} -l {names.LABEL_JOB}={job.name} -o wide --show-labels"
        yield wrong("metrics", f"{there.message}; its pods are those that its workload owns", remedy)
        return
    first = first_asked(job.record.lives, there)
    there = (first, *(m for m in there if m != first))[:MEMBERS_ASKED]
    if speaker != ANY or len(there) == 1:
        there = (first,)
    port, path = metrics_port(pods[first.pod][1], asked.get("port")), str(asked.get("path") or "/metrics")
    if port is None:
        yield wrong(
            "metrics",
            f"no container port is named {names.METRICS_PORT_NAME}, and spec.scrape.port is not set",
            f"set spec.scrape.port: kubectl edit rlhfjob {job.name}{job.flags()}",
        )
        return
    read: dict[str, bytes | ApiError] = {}
    for one in there:
        url = f"/api/v1/namespaces/{job.namespace}/pods/{one.name}:{port}/proxy{path}"
        try:
            read[one.pod] = await api.raw("GET", url)
        except ApiError as error:
            read[one.pod] = error
    chosen = first
    if len(there) > 1:
        view, chosen = _speaking(job, there, read)
        if view.outcome in (ScrapeOutcome.SEVERAL_SPEAKERS, ScrapeOutcome.NO_SPEAKER):
            yield wrong("metrics", f"{view.outcome}: {view.message}", cure(job, view.outcome, examining=True))
            return
        if view.outcome is ScrapeOutcome.OK:
            yield ok("speaker", f"{chosen.name} (index {chosen.index}), of {len(there)} that were asked")
    body = read[chosen.pod]
    if isinstance(body, ApiError):
        unasked = (body.status, body.reason) == (400, PROXY_REFUSES)
        away = await operator_away(api, now, [job.obj]) if unasked else ""
        yield _unread(job, pods[chosen.pod][1], port, path, body, away)
        return
    for found in examined(job, body):
        yield found


def _speaking(
    job: Reading, there: Sequence[Member], read: Mapping[str, bytes | ApiError]
) -> tuple[ScrapeView, Member]:
    """Return what the operator would make of these pages, and whose it would read."""
    admission = job.record.admission
    number = admission.number if admission is not None else job.record.attempt
    search = SpeakerSearch(Gang(str(job.obj["metadata"].get("uid")), number, 0))
    while (one := search.next_asked(there, there[0], 1.0, 0.0)) is not None:
        search.take(one, _view(job, one, read[one.pod]), 0.0)
    view = search.outcome(there, there[0], 0.0)
    return view, next((m for m in there if m.pod == view.pod), there[0])


def _view(job: Reading, one: Member, body: bytes | ApiError) -> ScrapeView:
    """Return a page as a scrape would give it."""
    if isinstance(body, ApiError):
        return ScrapeView(ScrapeOutcome.UNREACHABLE, body.message, pod=one.pod)
    try:
        return replace(parse(body, str(job.metric.get("name"))), pod=one.pod)
    except MetricsError as error:
        return ScrapeView(error.outcome, error.message, pod=one.pod)


async def _workload(api: CallerApi, job: Reading, ref: Mapping[str, Any] | None) -> Object | None:
    try:
        return await api.get(JOBS, str(ref["name"]) if ref else job.name, job.namespace)
    except NotFound:
        return None


def _unread(
    job: Reading, obj: Mapping[str, Any], port: int, path: str, error: ApiError, away: str
) -> Finding:
    """Return why there is no page to look at: the API server asks nobody, nobody answers, or not with the
    page. ``away``: why no operator reads it now; "": one does, as far as is known."""
    pod, address = obj["metadata"]["name"], (obj.get("status") or {}).get("podIP", "")
    if error.status == 403:
        text = f"may not be read through the API server: {error.message}"
        return unknown(
            "metrics", text, f"kubectl port-forward pod/{pod}{job.flags()} {port}, then look at {path}"
        )
    if (error.status, error.reason) == (400, PROXY_REFUSES):
        return _unasked(job, f"http://{address}:{port}{path}", error, away)
    if why := trouble(obj) or trainer_ended(obj):
        return note("metrics", f"there is no page to read: {why}")
    if unheard(obj):
        return note("metrics", f"there is no page to read: the node of pod {pod} is not ready")
    if error.status >= 500 or error.status == 0:
        return wrong(
            "metrics",
            f"{pod}:{port}{path} does not answer: {error.message}",
            f"does the trainer listen on 0.0.0.0:{port}? kubectl logs {pod}{job.flags()}",
        )
    return wrong(
        "metrics",
        f"{pod}:{port}{path} answers {error.status}: {error.message[:200]}",
        f"correct spec.scrape; {CONTRACT}",
    )


def _unasked(job: Reading, url: str, error: ApiError, away: str) -> Finding:
    """Return what the operator says of a page that the API server does not ask for: it reads pods by
    themselves. ``away``: why it reads none now.

    An API server passes nothing on to loopback addresses, which pods of a local control plane have.
    """
    why = f"the page cannot be looked at from here, for the API server does not ask {url}: {error.message}"
    read = job.record.condition(METRICS)
    if away or read is None or not read.status:
        return unknown("metrics", why, f"curl {url} on the machine of its node")
    newest = f", the newest at step {job.record.evals[-1].step}" if job.record.evals else ""
    return ok("metrics", f"the operator reads them: {counted(job.record.evals_seen, 'eval')}{newest}; {why}")


def examined(job: Reading, body: bytes) -> Iterator[Finding]:
    """Yield what a trainer's page lacks or has wrong, by the parser that the operator uses."""
    every = [str(m.get("name")) for m in job.spec.get("metrics") or ()]
    primary = str(job.metric.get("name"))
    if len(body) > DEFAULT_LIMITS.body_bytes:
        text = f"the page has {counted(len(body), 'byte')}, at most {DEFAULT_LIMITS.body_bytes} are read"
        yield wrong("metrics", text, f"export fewer series; {CONTRACT}")
        return
    try:
        view = parse(body, primary, others=[name for name in every if name != primary])
    except MetricsError as error:
        yield wrong(
            "metrics", f"{error.outcome}: {error.message}", f"the page is not taken as a whole; {CONTRACT}"
        )
        return
    refused = _not_read(job, view)
    if refused is not None:
        yield refused
        return
    if view.message:
        yield wrong("metrics", f"parts of the page count for nothing: {view.message}", CONTRACT)
    there = ", ".join(view.metrics_seen) or "none"
    missing = [name for name in every if name not in view.metrics_seen]
    for name in missing:
        role = "Primary" if name == primary else "further"
        yield wrong(
            "metrics",
            f"no {names.METRIC_EVAL_SCORE} with metric={name!r} ({role}); names there: {there}",
            f"correct spec.metrics, or have the trainer export it; {CONTRACT}",
        )
    if primary not in missing and not any(is_eval(p) for p in view.points):
        text = f"no eval of {primary!r} on the page counts: of no samples, or no number"
        yield wrong("metrics", text, cure(job, "NoNewEvals", examining=True))
    elif primary not in missing:
        newest = f", the newest at step {view.points[-1].step}" if view.points else ""
        yield ok("metrics", f"{counted(len(view.points), 'eval')} of {primary!r} on the page{newest}")
    yield from _gaps(job, view)


def _not_read(job: Reading, view: ScrapeView) -> Finding | None:
    """Return a finding if the operator uses nothing of this page; None: it uses it.

    The page may belong to another trainer, attempt or process.
    """
    refused = lives.refusal(job.record, str(job.obj["metadata"].get("uid")), view)
    if refused is None:
        return None
    reason, why = refused
    return wrong("metrics", f"nothing on the page counts: {reason}: {why}", cure(job, reason, examining=True))


def _gaps(job: Reading, view: ScrapeView) -> Iterator[Finding]:
    """Yield what the contract asks for and the page does not have, with what it costs."""
    for value, name, costs in (
        (
            view.checkpoint_step,
            names.METRIC_CHECKPOINT_STEP,
            "checkpoints are looked for before they are saved",
        ),
        (view.total_steps, names.METRIC_TOTAL_STEPS, "progress and GPU-hours saved are not known"),
        (view.request_served, names.METRIC_REQUEST_SERVED, "it cannot be asked for an eval or a checkpoint"),
    ):
        if value is None:
            yield note("metrics", f"{name} is not exported: {costs}", CONTRACT)
    if view.page is None:
        text = "rlhf_run_info is not exported: the page does not say whose it is, so Enforce stops nobody"
        finding = wrong if job.mode == "Enforce" else note
        yield finding("metrics", text, cure(job, "PageWithoutIdentity", examining=True))
    if view.points:
        yield from _noise(job, [p for p in view.points if p.attempt == view.points[-1].attempt])
    kinds: Mapping[str, Any] = {**RULES, **MODIFIERS}
    chosen = [next(iter(one)) for one in rule_and_modifiers(job.spec)]
    needs = {need for name in chosen if name in kinds for need in kinds[name].needs}
    if view.points and "proxy" in needs and all(p.proxy is None for p in view.points):
        text = f"{', '.join(chosen)} looks at the proxy reward, which no eval has: it tells nothing of a stop"
        yield wrong("metrics", text, f"export {names.METRIC_EVAL_PROXY}, or name a Proxy metric; {CONTRACT}")
    if view.points and "paired" in needs and all(p.paired is None for p in view.points):
        text = f"{', '.join(chosen)} looks at paired differences, which no eval has"
        yield note("metrics", text, f"export {names.METRIC_PAIRED_MEAN} and its companions; {CONTRACT}")


def _noise(job: Reading, points: Sequence[EvalPoint]) -> Iterator[Finding]:
    """Yield what the Primary's evals lack for their noise to be known, and whether they are evals at all."""
    scale = _scale(job)
    doubt = no_eval.suspicion(str(job.metric.get("name")), points, scale)
    if doubt is not None:
        yield wrong("metrics", doubt, CONTRACT)
    counted = [scale.known_of(p) for p in points]
    if all(noise.error(p) for p in counted):
        return
    lacks = [] if any(p.stderr for p in points) else [f"no {names.METRIC_EVAL_STDERR} above 0"]
    lacks += [] if all(p.prompts for p in counted) else ["no number of prompts"]
    lacks += [] if scale.range else ["no range of scores"]
    text = (
        f"the noise of an eval is not known ({', '.join(lacks)}), so it is estimated from the curve: falls "
        "within the first evals, and shallow ones, are not seen"
    )
    add = [] if scale.range else ["preset: Accuracy, if each prompt is right or wrong, else range"]
    if not all(p.prompts for p in counted):
        fits = no_eval.prompts_fitting(points)
        guess = f"prompts: {fits}, if it is so: all scores are multiples of 1/{fits}"
        add.append("prompts: how many an eval has" if fits is None else guess)
    yield note("metrics", text, f"add to the Primary of spec.metrics {'; '.join(add)}" if add else CONTRACT)


def _scale(job: Reading) -> EvalScale:
    try:
        return Metric.model_validate(job.metric).scale
    except ValidationError:  # the API server lets none in; of an older CRD it may be there
        return EvalScale()


async def checkpoints(api: CallerApi, job: Reading) -> AsyncIterator[Finding]:
    """Yield what is in safety, the volumes, and access Jobs that failed."""
    record = job.record
    gone = found_gone(record)
    for kept, what in ((record.secured, "secured"), *((k, "retained") for k in record.retained)):
        if kept is not None and kept in gone and what == "retained":
            text = f"step {kept.step} was retained, and a resume found it gone or changed: {kept.path}"
            yield wrong("checkpoints", text, f"evalstop resume {job.name}{job.flags()} --from latest")
        elif kept is not None:
            yield ok("checkpoints", f"step {kept.step} is {what}: {kept.path}")
    for kept in record.pinned:
        yield ok("checkpoints", f"step {kept.step} is pinned: {kept.path}")
    if record.best is not None and record.secured is None and not record.retained:
        counts = record.step_counts
        disagree = counts is not None and counts.disagree  # a mark says so, with its cure
        if job.mode == "Enforce" and not disagree:
            yield wrong(
                "checkpoints",
                f"none is in safety, the best eval is at step {record.best.step}: nothing is stopped",
                f"kubectl get jobs{job.flags()} -l {names.LABEL_JOB}={job.name}",
            )
        elif job.mode != "Enforce":
            yield note("checkpoints", f"mode {job.mode}: none is put in safety")
    if record.layout is not None:
        yield ok("checkpoints", f"layout {record.layout.name}, by {record.layout.by}")
    if (owner := record.file_owner) is not None:
        text = f"they are reached as user {owner.user}, group {owner.group}, whose {owner.by} is"
        yield ok("checkpoints", text)
    waited = record.access
    if waited is not None and waited.tries:
        text = (
            f"{waited.operation} of step {waited.step} failed {counted(waited.tries, 'time')} and is tried "
            "again"
        )
        yield wrong("checkpoints", text, "see the condition above; docs/use/checkpoints.md")
    for field in ("location", "retention"):
        claim = ((job.spec.get("checkpoints") or {}).get(field) or {}).get("volumeClaim")
        if claim:
            async for finding in _claim(api, job, field, str(claim["claimName"])):
                yield finding
    async for finding in _access(api, job):
        yield finding


async def _claim(api: CallerApi, job: Reading, field: str, name: str) -> AsyncIterator[Finding]:
    about = f"claim {name}"
    try:
        claim = await api.get(CLAIMS, name, job.namespace)
    except NotFound:
        text = f"spec.checkpoints.{field}: there is no such claim in {job.namespace}"
        yield wrong(
            about, text, f"make it: kubectl apply -f …{job.flags()}, as in examples/manifests/20-claims.yaml"
        )
        return
    phase = (claim.get("status") or {}).get("phase")
    modes = (claim.get("spec") or {}).get("accessModes") or []
    if claim["metadata"].get("deletionTimestamp"):
        text = (
            f"{field}: it is being deleted: no pod may mount it any more, and with the last one that has it "
            "mounted it is gone"
        )
        keep = '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
        volume = (claim.get("spec") or {}).get("volumeName") or "<volume>"
        yield wrong(about, text, f"keep its volume: kubectl patch pv {volume} -p '{keep}'")
    elif "ReadWriteOncePod" in modes:
        text = "ReadWriteOncePod: no access Job can mount it beside the trainer"
        yield wrong(about, text, "use a claim with access mode ReadWriteMany or ReadWriteOnce")
    elif phase == "Lost":
        yield wrong(about, "its volume is gone", f"kubectl describe pvc {name}{job.flags()}")
    elif phase != "Bound":
        text = f"{phase}: bound when its first pod is, or never (no such storage class?)"
        yield note(about, text, f"kubectl describe pvc {name}{job.flags()}")
    else:
        yield ok(about, f"{field}, {phase}, {', '.join(modes)}")


async def _access(api: CallerApi, job: Reading) -> AsyncIterator[Finding]:
    labels = f"{names.LABEL_JOB}={job.name},{names.LABEL_COMPONENT}=access"
    found, _ = await api.list(JOBS, job.namespace, labels=labels)
    for access in found:
        operation = (access["metadata"].get("labels") or {}).get(names.LABEL_OPERATION, "access")
        for condition in (access.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "Failed" and condition.get("status") == "True":
                name = access["metadata"]["name"]
                why = f"{condition.get('reason')}, {condition.get('message')}"
                text = f"the {operation} Job {name} failed: {why}"
                yield wrong("checkpoints", text, f"kubectl logs job/{name}{job.flags()}")
