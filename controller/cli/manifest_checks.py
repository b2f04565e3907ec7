"""Checks of one manifest: its fields, the API server's dry run, and what it needs of the cluster."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from controller import names, workloads
from controller.api import convert
from controller.api.crd import RESOURCES, root_schema
from controller.api.faults import CLOSE, NO_SUCH_FIELD, Fault
from controller.api.gpupool import GPUPool
from controller.checkpoints.access_jobs import access_problem
from controller.checkpoints.pod_security import refusal
from controller.checkpoints.run_as import run_as
from controller.cli import actor_checks, node_checks, pod_checks, pool_checks, queue_checks, room_checks
from controller.cli.cluster import CallerApi, near_namespaces
from controller.cli.doctor.findings import Finding, as_cure, gather, note, ok, unknown, wrong
from controller.cli.doctor.template import examined
from controller.cli.failure import of_api
from controller.kube.errors import AlreadyExists, ApiError, NotFound, Refused
from controller.kube.resources import GPUPOOLS, JOBS, PRIORITY_CLASSES, QUOTAS, RLHFJOBS, Resource
from controller.objects import amount
from controller.operator.reconcile.validation import scheduling_of
from controller.operator.state.claims import claims_of
from controller.operator.state.namespaces import enforced_level
from controller.policy.job import Cure, Desired, cure_of, doubted_directions, key_of, unable_by_spec
from controller.policy.stopping.cooldown import Cooldown, CooldownParams
from controller.policy.types import Mode, Problem
from controller.policy.wording import counted

Object = dict[str, Any]

KINDS = {resource.kind: resource for resource in (RLHFJOBS, GPUPOOLS)}
OPEN = "x-kubernetes-preserve-unknown-fields"


async def examine(
    api: CallerApi, manifest: Object, pools: Mapping[str, Object], *, all_: bool = False
) -> list[Finding]:
    """Return what is right and wrong with one manifest.

    Args:
        api: of the cluster that it is meant for.
        manifest: an RLHFJob or a GPUPool.
        pools: those that are applied with it, by name.
        all_: there are several, so each finding names its own.

    Raises:
        Failure: the caller may not ask, or the API server does not answer.
    """
    kind, name = str(manifest["kind"]), str(manifest["metadata"]["name"])
    about = f"{kind} {name}: " if all_ else ""
    resource = KINDS.get(kind)
    if resource is None:
        close = difflib.get_close_matches(kind, KINDS, 1, CLOSE)
        meant = f"did you mean {close[0]}?" if close else f"expected {' or '.join(KINDS)}"
        return [wrong(f"{about}kind", f"{kind} is no kind of {names.GROUP}; {meant}")]
    if resource.namespaced:
        manifest = {**manifest, "metadata": {"namespace": api.namespace, **manifest["metadata"]}}
    found = [wrong("field", text) for text in unknown_fields(manifest, _schema(kind))]
    own = convert.faults_of(manifest)
    found += await _server(api, resource, manifest, bool(found), own)
    if resource is RLHFJOBS:
        found += await _job(api, manifest, pools, own)
    elif own:
        found += [wrong("spec", one.sentence) for one in own if one.text != NO_SUCH_FIELD]
    elif isinstance(problem := convert.parse_pool(manifest), Problem):
        found.append(wrong("spec", problem.message))
    else:
        found += await gather("nodes", pool_checks.overlaps(api, manifest, pools))
    return [Finding(f.level, f"{about}{f.about}", f.text, f.cure) for f in _once(found)]


def _once(found: list[Finding]) -> list[Finding]:
    """Return the findings, what two checks say in the same words but once."""
    texts: set[str] = set()
    return [f for f in found if not (f.text in texts or texts.add(f.text))]  # type: ignore[func-returns-value]


def _schema(kind: str) -> Mapping[str, Any]:
    return root_schema(next(r.model for r in RESOURCES if r.kind == kind))


def unknown_fields(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield what is to be said of each field that the schema does not have, with the one that may be meant.

    Args:
        value: of an object, or a part of it.
        schema: OpenAPI, as a CRD has it; what it leaves open (a template, labels) is not looked at.
        path: of ``value``.
    """
    if isinstance(value, list):
        items = schema.get("items") or {}
        for place, one in enumerate(value):
            yield from unknown_fields(one, items, f"{path}[{place}]")
        return
    fields = schema.get("properties")
    if not isinstance(value, dict) or not fields or schema.get(OPEN):
        return
    for name, inside in value.items():
        where = f"{path}.{name}" if path else str(name)
        if name in fields:
            yield from unknown_fields(inside, fields[name], where)
        elif where not in ("apiVersion", "kind", "metadata", "status"):
            close = difflib.get_close_matches(str(name), fields, 1, CLOSE)
            there = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(fields))}"
            yield f"{where} is not known; {there}"


async def _server(
    api: CallerApi, resource: Resource, manifest: Object, misspelt: bool, known: tuple[Fault, ...]
) -> list[Finding]:
    """Return what the API server says to it: schema, rules, admission policies and webhooks.

    ``known``: faults that are told without it, in words of ours: each is told once.
    """
    about = "API server"
    try:
        try:
            await api.create(resource, manifest, dry_run=True, strict=not misspelt)
        except AlreadyExists:
            await api.apply(resource, manifest, dry_run=True, strict=not misspelt)
            return [ok(about, "it would be taken, as a change of the one that is there (dry run)")]
    except NotFound as error:
        if "namespaces" not in error.message:
            raise of_api(error, f"check the {resource.kind}") from error
        return [wrong(about, error.message, await _namespace_cure(api, manifest["metadata"]["namespace"]))]
    except Refused as error:
        if error.status == 403 and "cannot create" in error.message:
            raise of_api(error, f"check the {resource.kind}") from error
        return [wrong(about, text) for text in said_besides(error, known)]
    except ApiError as error:
        raise of_api(error, f"check the {resource.kind}") from error
    return [ok(about, "it would be taken (dry run)")]


NOT_CHECKED = "some validation rules were not checked"  # it looks at them once the rest is right


def said_besides(error: ApiError, known: tuple[Fault, ...]) -> list[str]:
    """Return what a refusal names, each fault once, without those that are known."""
    if not error.causes:
        return [error.message]
    fields, texts = {one.field for one in known}, [one.text for one in known]
    return [
        f"{field}: {message}"
        for field, message in error.causes
        if NOT_CHECKED not in message and field not in fields and not any(text in message for text in texts)
    ]


async def _namespace_cure(api: CallerApi, name: str) -> str:
    """Return what to do about a namespace that is not there: one of those that are may be meant."""
    make, close = f"kubectl create namespace {name}", await near_namespaces(api, name)
    return f"did you mean {close[0]}? else make it: {make}" if close else make


def _hint(text: str) -> Cure | None:
    """Return what helps against a fault that its own words do not say it of; None: they do."""
    if "exactly one of role Primary is needed" in text:
        return as_cure("leave role Primary to one metric; one that must not fall is role: Guardrail")
    return None


def _in_file(cure: Cure) -> Cure:
    """Return a cure of what a file says: the file is to be corrected, for its RLHFJob is not there yet."""
    return as_cure(cure.text) if " rlhfjob " in cure.command else cure


async def _job(
    api: CallerApi, manifest: Object, pools: Mapping[str, Object], faults: tuple[Fault, ...]
) -> list[Finding]:
    """Return what is found of an RLHFJob. ``faults``: those that its manifest has by itself."""
    found, pool = await _pool_of(api, manifest, pools)
    parsed = convert.parse_pool(pool) if pool is not None else None
    asked = convert.desired(manifest, parsed)
    if faults:
        found += [
            wrong("spec", one.sentence, _hint(one.text) or as_cure(cure_of("InvalidSpec").text))
            for one in faults
            if one.text != NO_SUCH_FIELD  # told as what is misspelt
        ]
    elif asked.problem is not None and not (found and asked.problem.reason == "PoolNotFound"):
        cure = cure_of(asked.problem.reason).filled(
            str(manifest["metadata"]["name"]),
            str(manifest["metadata"]["namespace"]),
            str(_inside(manifest, "spec").get("pool", "")),
            "",
        )
        found.append(wrong("spec", asked.problem.message, _in_file(cure)))
    elif pool is not None:
        actors = (manifest["spec"].get("rollout") or {}).get("actors") or {}
        found += await gather("gang", _room(api, pool, asked, int(actors.get("max", 0))))
        found += list(unserved(pool))
        if isinstance(parsed, GPUPool) and not asked.workload_ref:
            found += await gather("queue", queue_checks.queue(api, parsed, asked))
    found += [wrong("rule", p.message, as_cure(cure_of(p.reason).text)) for p in unable_by_spec(asked)]
    found += [note("rule", text) for text in modifier_notes(asked)]
    found += [note("metric", doubt) for doubt in doubted_directions(asked)]
    if asked.rollout is not None:
        found += await gather("actors", actor_checks.template(api, manifest, asked.rollout))
    workload = {} if isinstance(convert.parse_job(manifest), Problem) else manifest["spec"]["workload"]
    if isinstance(workload.get("template"), dict):
        model = parsed if isinstance(parsed, GPUPool) else None
        found += await gather("workload", _template(api, manifest, workload["template"], model, asked))
    elif isinstance(workload.get("ref"), dict):
        found += await gather("workload", _ref(api, manifest, pool, asked))
    return found


def modifier_notes(asked: Desired) -> Iterator[str]:
    """Yield what modifiers do that who wrote them may not have meant."""
    for name, count in Counter(one.name for one in asked.modifiers).items():
        if count > 1 and name != Cooldown.name:  # each of those is an event of its own
            often = counted(count, "time")
            yield f"spec.modifiers: {name} is there {often}, and each of them holds stops back"
    for place, one in enumerate(asked.modifiers):
        if one.name == Cooldown.name and not one.params.get("at_step"):
            evals = counted(int(one.params.get("evals", CooldownParams().evals)), "eval")
            yield (
                f"spec.modifiers[{place}].cooldown: without atStep it counts from the run's first eval, so a "
                f"run of {evals} or fewer is never stopped"
            )


def _inside(obj: Any, *path: str) -> Mapping[str, Any]:
    """Return the object at a path; an empty one where none is there, whatever a user wrote instead."""
    for name in path:
        obj = obj.get(name)
        if not isinstance(obj, dict):
            return {}
    found: Mapping[str, Any] = obj
    return found


async def _pool_of(
    api: CallerApi, manifest: Object, pools: Mapping[str, Object]
) -> tuple[list[Finding], Object | None]:
    name = str(_inside(manifest, "spec").get("pool") or "")
    if name in pools:
        return [], pools[name]
    try:
        pool = await api.get(GPUPOOLS, name) if name else None
    except NotFound:
        try:
            there = [str(one["metadata"]["name"]) for one in (await api.list(GPUPOOLS))[0]]
        except ApiError:
            there = []
        close = difflib.get_close_matches(name, there, 1, CLOSE)
        meant = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(there)) or 'none'}"
        return [wrong("spec", f"spec.pool: there is no GPUPool {name!r}; {meant}", "evalstop pools")], None
    except ApiError as error:
        if error.status == 403:
            return [unknown("pool", f"may not be looked at: {error.message}")], None
        raise of_api(error, f"read GPUPool {name!r}") from error
    return [], pool


def unserved(pool: Object) -> Iterator[Finding]:
    """Yield that nobody schedules the pool's pods, where the pool has found it out by others' pods."""
    for one in (pool.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodsScheduled" and one.get("status") == "False":
            yield wrong(
                "pool",
                f"{one.get('reason')}: {one.get('message')}",
                as_cure("whoever runs the pool mends it"),
            )


async def _room(api: CallerApi, pool: Object, asked: Desired, most_actors: int) -> AsyncIterator[Finding]:
    """Yield whether the pool could ever hold the job, alone there, if its nodes are known."""
    parsed = convert.parse_pool(pool)
    if isinstance(parsed, GPUPool) and (nodes := await room_checks.nodes_of(api, pool)) is not None:
        for one in room_checks.fits(parsed, asked, nodes, most_actors):
            yield one


async def _template(
    api: CallerApi, manifest: Object, template: Object, pool: GPUPool | None, asked: Desired
) -> AsyncIterator[Finding]:
    shape = workloads.template_shape_problem(manifest)
    if shape is not None:
        yield wrong("workload", shape.message)
        return
    scheduling = scheduling_of(pool)
    problem = workloads.template_problem(manifest, scheduling)
    taken = False
    if problem is not None:
        yield wrong("workload", problem.message)
    else:
        owned = {**manifest, "metadata": {"uid": "of-a-check", **manifest["metadata"]}}
        child = workloads.build_child(owned, scheduling)
        child["metadata"].pop("ownerReferences", None)  # its owner is not there yet
        for found in [one async for one in _dry_run(api, child)]:
            taken = found.level != "WRONG"
            yield found
        classes = [one async for one in _class(api, child)]
        for found in classes:
            yield found
        if taken:
            for found in [one async for one in pod_checks.pod(api, child, without_class=bool(classes))]:
                yield found
        for found in [one async for one in _quota(api, manifest)]:
            yield found
    pod = (template.get("spec") or {}).get("template") or {}
    for found in [one async for one in _store(api, manifest, pod)]:
        yield found
    if taken and pool is not None and asked.problem is None:
        path = "spec.workload.template.spec.template.spec"
        spec = pod.get("spec") or {}
        for found in await gather("nodes", node_checks.matching(api, pool, asked, spec, path)):
            yield found
    if taken:  # or its fields may be anything
        for found in examined(template):
            yield found


async def _dry_run(api: CallerApi, child: Object) -> AsyncIterator[Finding]:
    try:
        await api.create(JOBS, child, dry_run=True)
    except AlreadyExists:
        name, namespace = str(child["metadata"]["name"]), str(child["metadata"]["namespace"])
        owners = (await api.get(JOBS, name, namespace))["metadata"].get("ownerReferences") or ()
        if any((one.get("kind"), one.get("name")) == (RLHFJOBS.kind, name) for one in owners):
            yield ok("workload", "its Job is there")
        else:
            yield note("workload", f"there is a Job {name} of this name already, which is not its own")
        return
    except Refused as error:
        if error.status == 403 and "cannot create" in error.message:
            raise
        yield wrong("workload", f"spec.workload.template: {error.message}")
        return
    # A Job may be without an image, and none of its pods can be made.
    containers = child["spec"]["template"]["spec"].get("containers") or []
    for place, container in enumerate(containers):
        if not container.get("image"):
            where = f"spec.workload.template.spec.template.spec.containers[{place}].image"
            yield wrong("workload", f"{where}: a pod needs one")
            return
    yield ok("workload", "its Job would be taken (dry run)")


async def _class(api: CallerApi, child: Object) -> AsyncIterator[Finding]:
    name = workloads.priority_class_of(child)
    if not name:
        return
    try:
        await api.get(PRIORITY_CLASSES, name)
    except NotFound:
        cure = "kubectl apply -f deploy/manifests" if name == names.PRIORITY_CLASS else ""
        yield wrong("workload", f"priorityClassName: there is no PriorityClass {name!r}", cure)
    except Refused:
        return  # not everybody may read them; the operator looks again


async def _quota(api: CallerApi, manifest: Object) -> AsyncIterator[Finding]:
    """Yield each quota of the namespace that could never let in all pods of the gang."""
    gang, namespace = _inside(manifest, "spec", "gang"), str(manifest["metadata"]["namespace"])
    needed = int(gang.get("replicas") or 1) * int(gang.get("gpusPerReplica") or 0)
    try:
        listed, _ = await api.list(QUOTAS, namespace)
    except Refused:
        return  # not everybody may list them; the cluster looks at it again
    for one in listed:
        name = str(one["metadata"]["name"])
        most = amount(_inside(one, "spec", "hard").get(f"requests.{names.GPU_RESOURCE}"))
        if most is not None and most < needed:
            text = f"ResourceQuota {name!r} lets in {counted(most, 'GPU')}, the gang asks for {needed}"
            yield wrong("quota", text, f"kubectl describe quota {name} -n {namespace}")


async def _store(api: CallerApi, manifest: Object, pod: Object) -> AsyncIterator[Finding]:
    """Yield whether the checkpoints could be reached at all, and as whom."""
    problem = access_problem(manifest, pod, await claims_of(api, manifest))
    if problem is not None:
        cure = cure_of(problem.reason).filled(
            str(manifest["metadata"]["name"]), str(manifest["metadata"]["namespace"]), "", ""
        )
        yield wrong("checkpoints", problem.message, _in_file(cure))
        return
    trainer = pod.get("spec") or {}
    user = run_as(manifest, trainer, None)
    namespace = str(manifest["metadata"]["namespace"])
    message = user.problem(trainer) or refusal(namespace, await enforced_level(api, namespace), user, trainer)
    if message is not None:
        yield wrong("checkpoints", message)
    else:
        yield ok("checkpoints", "their claims are there, and may be reached as the pod's user")


async def _ref(
    api: CallerApi, manifest: Object, pool: Object | None, asked: Desired
) -> AsyncIterator[Finding]:
    ref = manifest["spec"]["workload"]["ref"]
    name, namespace = str(ref.get("name", "")), str(manifest["metadata"]["namespace"])
    try:
        child = await api.get(JOBS, name, namespace)
    except NotFound:
        text = f"spec.workload.ref: there is no Job {name!r} in namespace {namespace}"
        yield wrong("workload", text, f"kubectl get jobs -n {namespace}")
        return
    parsed = convert.parse_pool(pool) if pool is not None else None
    model = parsed if isinstance(parsed, GPUPool) else None
    scheduling = scheduling_of(model)
    watched = asked.mode is not Mode.ENFORCE
    problem = workloads.ref_problem(manifest, child, scheduling, watched=watched)
    if problem is not None:
        cure = cure_of(key_of(problem.reason, problem.message)).filled(
            str(manifest["metadata"]["name"]),
            namespace,
            str(manifest["spec"].get("pool", "")),
            "",
            problem.message,
        )
        yield wrong("workload", problem.message, _in_file(cure))
        return
    yield ok("workload", "its Job is there, with all that EvalStop needs")
    if model is not None:
        for one in await gather("queue", queue_checks.queue(api, model, asked, workloads.queue_of(child))):
            yield one
        if asked.problem is None:
            pod, path = _inside(child, "spec", "template", "spec"), f"Job {name}: spec.template.spec"
            for one in await gather("nodes", node_checks.matching(api, model, asked, pod, path)):
                yield one
    for one in examined(child):
        yield one
