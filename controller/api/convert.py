"""Between the API's objects and the brain's values. Nothing is decided here.

`desired` reads a spec, `record` and `status` (controller/api/record.py) a job's memory. A spec that cannot be
carried out is no exception but a `Desired` with a problem: reason code, and a message that names field, value
and what would be right.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from controller import names
from controller.api import faults
from controller.api.codec import StatusError, decode_field
from controller.api.faults import Fault
from controller.api.fleet import precision_problem, stop_limits
from controller.api.gpupool import GANG_TIMEOUT_SECONDS, PREEMPT_GRACE_SECONDS, RECALL_SECONDS, GPUPool
from controller.api.record import field, is_whole, record, size, status
from controller.api.rlhfjob import RLHFJob, RLHFJobSpec, Role, Rollout, RolloutMode
from controller.api.sharing_terms import residency_terms, sharing_problem
from controller.api.status import PoolStatus
from controller.api.storage import Layout
from controller.policy.actor_types import Lending, Reserved, RolloutTerms
from controller.policy.job import Desired, Guardrail, ProxyMetric, ResumeRequest, RunState, Speaker
from controller.policy.params import ParamError
from controller.policy.pool import Handover
from controller.policy.queueing import MAX_WAIT, Srtf, make_policy
from controller.policy.rollout import Objective, RolloutSettings, WhenIdle
from controller.policy.stopping import MODIFIERS, RULES, make_rule
from controller.policy.stopping.guardrails import shared
from controller.policy.types import (
    DURATION_MISSING,
    Delegate,
    Mode,
    PolicySpec,
    Problem,
    Quota,
    Reservation,
    cap_mode,
)
from controller.policy.wording import did_you_mean, nearest

__all__ = [
    "StatusError",
    "desired",
    "field",
    "handovers",
    "is_whole",
    "lending",
    "mode_cap",
    "parse_job",
    "parse_pool",
    "policy",
    "queue_of",
    "quotas",
    "recalled",
    "record",
    "reservations",
    "rollout_settings",
    "scraping",
    "size",
    "status",
    "stop_limits",
]

_NO_RULE = PolicySpec("")


class Scraping(NamedTuple):
    """Terms by which a trainer's page is read.

    Attributes:
        metric: name of the Primary metric.
        others: of the other metrics.
        speaks: which pod is read.
        port: of the pod; None: the one that a container of it names for metrics.
        path: and query.
    """

    metric: str
    others: tuple[str, ...]
    speaks: Speaker
    port: int | None
    path: str


def parse_job(obj: Mapping[str, Any]) -> RLHFJob | Problem:
    """Return the RLHFJob as a model, or why it is none (``InvalidSpec``)."""
    try:
        return RLHFJob.model_validate({k: v for k, v in obj.items() if k != "status"})
    except ValidationError as error:
        return Problem("InvalidSpec", faults.sentence(error))


def faults_of(obj: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Return each fault for which an object of kind GPUPool, or else RLHFJob, is no such one."""
    model: type[GPUPool] | type[RLHFJob] = GPUPool if obj.get("kind") == "GPUPool" else RLHFJob
    try:
        model.model_validate({k: v for k, v in obj.items() if k != "status"})
    except ValidationError as error:
        return faults.faults(error)
    return ()


def parse_pool(obj: Mapping[str, Any]) -> GPUPool | Problem:
    """Return the GPUPool as a model, or why it is none (``InvalidSpec``)."""
    try:
        pool = GPUPool.model_validate({k: v for k, v in obj.items() if k != "status"})
        make_policy(policy(pool))
    except ValidationError as error:
        return Problem("InvalidSpec", faults.sentence(error))
    except ParamError as error:
        owner, _, name = error.field.partition(".")
        what = f"{error.value!r} is not allowed, expected {error.expected}"
        return Problem("InvalidSpec", f"spec.queuePolicy.{owner}.{to_camel(name)}: {what}")
    return pool


def parse_pool_without_policy(obj: Mapping[str, Any]) -> GPUPool | None:
    """Return the GPUPool as if it named no queue policy; None: more than that is wrong with it."""
    spec = {key: value for key, value in (obj.get("spec") or {}).items() if key != "queuePolicy"}
    pool = parse_pool({**obj, "spec": spec})
    return pool if isinstance(pool, GPUPool) else None


def policy(pool: GPUPool) -> PolicySpec:
    """Return the pool's queue policy in the brain's words, with the bound on waits that every policy
    takes."""
    chosen = pool.spec.queue_policy.chosen()
    return PolicySpec(chosen.name, {**chosen.params, MAX_WAIT: float(pool.spec.max_wait_seconds)})


def quotas(pool: GPUPool) -> tuple[Quota, ...]:
    """Return what of the pool namespaces are guaranteed, and may have at most."""
    return tuple(Quota(one.namespaces, one.guaranteed, one.limit) for one in pool.spec.quotas)


def mode_cap(obj: Mapping[str, Any]) -> Mode | None:
    """Return how far a GPUPool lets the operator go, whatever is wrong with the rest of its spec; None: it
    does not say."""
    try:
        return Mode(str((obj.get("spec") or {}).get("modeCap")))
    except ValueError:
        return None


def desired(
    obj: Mapping[str, Any],
    found: GPUPool | Problem | None,
    cap: Mode | None = None,
    pools: Collection[str] = (),
    job: RLHFJob | Problem | None = None,
) -> Desired:
    """Return what an RLHFJob asks for, within what its pool allows.

    Args:
        obj: the RLHFJob as the API server gives it.
        found: the pool it names, or what is wrong with that; None: there is none.
        cap: how far the pool let the operator go when that was last known, for one that is not usable now:
            what runs there is watched as before, in Shadow without a touch.
        pools: names of those there are, of which one may have been meant.
        job: what `parse_job` makes of it, where that is known.

    Never raises for what users wrote: see `Desired.problem`.
    """
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    identity: dict[str, Any] = {
        "key": f"{metadata.get('namespace', '')}/{metadata.get('name', '')}",
        "uid": metadata.get("uid", ""),
        "generation": metadata.get("generation", 0),
        "deleting": metadata.get("deletionTimestamp") is not None,
    }
    pool = found if isinstance(found, GPUPool) else None
    job = job or parse_job(obj)
    if not isinstance(job, RLHFJob):
        return Desired(
            **identity, metric="", replicas=0, gpus_per_replica=0, rule=_NO_RULE, mode=Mode.OFF, problem=job
        )
    spec = job.spec
    cap = (cap or Mode.ENFORCE) if pool is None else pool.spec.mode_cap
    problem = None
    rule = _NO_RULE
    modifiers: tuple[PolicySpec, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()
    try:
        rule, modifiers = spec.stop_rule.chosen(), tuple(m.chosen() for m in spec.modifiers)
        rule, guardrails = _share_budget(spec, rule)
        make_rule(rule, modifiers)
        for guardrail in guardrails:
            make_rule(guardrail.rule, modifiers)
    except ParamError as error:
        problem = Problem("InvalidStopRule", _explain_param(error))
    ref = spec.workload.ref
    problem = problem or _retention_problem(spec)
    problem = problem or _pool_problem(job, found, pools) or _policy_problem(spec, pool)
    problem = problem or _rollout_problem(spec, pool) or sharing_problem(spec, pool)
    wanted = Desired(
        **identity,
        metric=spec.primary.name,
        direction=spec.primary.direction,
        scale=spec.primary.scale,
        replicas=spec.gang.replicas,
        gpus_per_replica=spec.gang.gpus_per_replica,
        rule=rule,
        modifiers=modifiers,
        guardrails=guardrails,
        proxy=next((ProxyMetric(m.name, m.direction) for m in spec.metrics if m.role is Role.PROXY), None),
        mode=cap_mode(spec.mode, cap),
        capped_off=spec.mode is not Mode.OFF and cap is Mode.OFF,
        max_step_lag=spec.checkpoints.max_step_lag,
        layout="" if spec.checkpoints.layout is Layout.AUTO else str(spec.checkpoints.layout),
        pins=spec.checkpoints.pins,
        run_state=RunState(spec.run_state),
        resume=None
        if spec.resume is None
        else ResumeRequest(spec.resume.id, spec.resume.from_, spec.resume.step, spec.resume.for_evals or 0),
        workload_ref="" if ref is None else f"{ref.api_version} {ref.kind} {ref.name}",
        preempt_grace=float(PREEMPT_GRACE_SECONDS if pool is None else pool.spec.preemption.grace_seconds),
        expected_seconds=None
        if spec.expected_duration_seconds is None
        else float(spec.expected_duration_seconds),
        problem=problem,
        gang_timeout=float(GANG_TIMEOUT_SECONDS if pool is None else pool.spec.gang_timeout_seconds),
        queue=queue_of(obj, pool),
        retain=spec.checkpoints.retain,
        scrape_interval=float(
            max(spec.scrape.interval_seconds, 0 if pool is None else pool.spec.min_scrape_interval_seconds)
        ),
        first_eval=float(spec.scrape.first_eval_seconds),
        metric_index=spec.metrics.index(spec.primary),
        rollout=None if spec.rollout is None else _rollout_terms(spec.rollout, pool),
        sharing=None if spec.sharing is None else residency_terms(obj, spec.sharing),
    )
    if problem is None and pool is not None and wanted.mode is not Mode.OFF:
        wanted = replace(wanted, problem=precision_problem(wanted, pool))
    return wanted


def scraping(job: RLHFJob) -> Scraping:
    """Return how the trainer's page is read."""
    spec = job.spec
    others = tuple(m.name for m in spec.metrics if m.name != spec.primary.name)
    return Scraping(spec.primary.name, others, spec.scrape.speaks, spec.scrape.port, spec.scrape.path)


def lending(pool: GPUPool) -> Lending:
    """Return how a pool lends GPUs to rollout actors; what it keeps for whom is in its status
    (`recalled`)."""
    return Lending(pool.spec.lending.enabled, float(pool.spec.lending.recall_seconds))


def rollout_settings(spec: Rollout, *, shadow: bool = False) -> RolloutSettings:
    """Return what steps are planned by.

    ``shadow``: with mode Shadow the plan that is carried out: the static count, of which nobody leaves.
    """
    chosen, actors = spec.objective, spec.actors
    cheapest = chosen.cheapest_within
    found = RolloutSettings(
        min=actors.min,
        max=actors.max,
        static=actors.static,
        gpus_per_actor=spec.gpus_per_actor,
        dispatch=spec.dispatch.value,
        objective=(Objective.WEIGHTED if cheapest is None else Objective.CHEAPEST_WITHIN).value,
        when_idle=spec.when_idle.value,
    )
    if cheapest is not None:
        found = replace(found, within=cheapest.percent / 100.0)
    if chosen.weighted is not None:
        found = replace(found, time_weight=chosen.weighted.time_percent / 100.0)
    if shadow:
        static = actors.static
        found = replace(found, min=static, max=static, static=static, when_idle=WhenIdle.KEEP.value)
    return found


def _rollout_terms(spec: Rollout, pool: GPUPool | None) -> RolloutTerms:
    shadow = spec.mode is RolloutMode.SHADOW
    return RolloutTerms(
        base=spec.actors.static if shadow else spec.actors.min,
        gpus=spec.gpus_per_actor,
        shadow=shadow,
        keeps=spec.when_idle is WhenIdle.KEEP,
        recall_seconds=float(RECALL_SECONDS if pool is None else pool.spec.lending.recall_seconds),
        bind_seconds=float(GANG_TIMEOUT_SECONDS if pool is None else pool.spec.gang_timeout_seconds),
    )


def queue_of(obj: Mapping[str, Any], pool: GPUPool | None) -> str:
    """Return the queue outside in which an RLHFJob's workload is to wait; "": it waits in its pool's own."""
    if pool is None or pool.spec.kueue is None:
        return ""
    found: Any = obj.get("spec")
    for name in ("workload", "template", "metadata", "labels", names.QUEUE_LABEL):
        found = found.get(name) if isinstance(found, Mapping) else None  # no schema has looked at a template
    return found if isinstance(found, str) and found else pool.spec.kueue.local_queue


def _share_budget(spec: RLHFJobSpec, rule: PolicySpec) -> tuple[PolicySpec, tuple[Guardrail, ...]]:
    """Return the Primary metric's rule and the guardrails, each at its share of the false-alarm budget."""
    found = [m for m in spec.metrics if m.role is Role.GUARDRAIL]
    judged = 1 + len(found)
    return shared(rule, judged, RULES), tuple(
        Guardrail(
            m.name,
            shared(rule if m.stop_rule is None else m.stop_rule.chosen(), judged, RULES),
            m.direction,
            m.scale,
            spec.metrics.index(m),
        )
        for m in found
    )


def reservations(status: Mapping[str, Any] | None) -> tuple[Reservation, ...]:
    """Return the reservations in a GPUPool's status.

    Raises:
        StatusError: one does not read back.
    """
    found: tuple[Reservation, ...] = decode_field(PoolStatus, status, "reservations")
    return found


def recalled(status: Mapping[str, Any] | None) -> tuple[Reserved, ...]:
    """Return what a GPUPool's status keeps of recalled GPUs, like `reservations`."""
    found: tuple[Reserved, ...] = decode_field(PoolStatus, status, "recalled")
    return found


def handovers(status: Mapping[str, Any] | None) -> tuple[Handover, ...]:
    """Return the handovers in a GPUPool's status, like `reservations`."""
    found: tuple[Handover, ...] = decode_field(PoolStatus, status, "last_handovers")
    return found


def _pool_problem(job: RLHFJob, pool: GPUPool | Problem | None, pools: Collection[str]) -> Problem | None:
    spec, namespace = job.spec, job.metadata.namespace
    if pool is None:
        close = nearest(spec.pool, pools)
        question = f"; {did_you_mean(close)}" if close else ""
        return Problem("PoolNotFound", f"spec.pool: there is no GPUPool {spec.pool!r}{question}")
    if isinstance(pool, Problem):
        return Problem("PoolNotUsable", f"spec.pool: GPUPool {spec.pool!r} admits nobody: {pool.message}")
    ceiling = pool.ceiling(namespace)
    if ceiling is None:
        allowed = ", ".join(entry.name for entry in pool.spec.allowed_namespaces[:8])
        return Problem(
            "NamespaceNotAllowed",
            f"spec.pool: GPUPool {spec.pool!r} does not allow namespace {namespace!r}, only: {allowed}",
        )
    if spec.priority > ceiling:
        return Problem(
            "PriorityTooHigh",
            f"spec.priority: {spec.priority} is above the ceiling of GPUPool {spec.pool!r} for namespace "
            f"{namespace!r}, at most {ceiling}",
        )
    return None


def _policy_problem(spec: RLHFJobSpec, pool: GPUPool | None) -> Problem | None:
    """Return the one input of a queue policy that nobody but the user has."""
    if pool is None or policy(pool).name != Srtf.name or spec.expected_duration_seconds is not None:
        return None
    return Problem(
        DURATION_MISSING,
        f"spec.expectedDurationSeconds: not set, and GPUPool {spec.pool!r} queues by {Srtf.name}, which goes "
        "by it: state how many seconds the run is expected to take, or use a pool with srtfEst, which "
        "estimates it",
    )


def _rollout_problem(spec: RLHFJobSpec, pool: GPUPool | None) -> Problem | None:
    """Return why a pool gives no actors."""
    if spec.rollout is None or pool is None or pool.spec.delegate is Delegate.BUILTIN:
        return None
    return Problem(
        "RolloutNotDelegated",
        f"spec.rollout: is not allowed in GPUPool {spec.pool!r}, whose delegate is {pool.spec.delegate}, "
        "which knows no actors that come and go: use a pool with delegate Builtin, or leave rollout out",
    )


def _retention_problem(spec: RLHFJobSpec) -> Problem | None:
    """Trainer pods that mount the retention claim could overwrite what is kept in it."""
    claim = spec.checkpoints.retention.volume_claim
    if claim is None or spec.workload.template is None:
        return None
    if claim.claim_name in _claims(spec.workload.template.model_dump()):
        return Problem(
            "RetentionReachable",
            f"spec.checkpoints.retention.volumeClaim.claimName: {claim.claim_name!r} is mounted by pods of "
            "spec.workload.template: keep checkpoints on a claim that trainers do not mount",
        )
    return None


def _claims(node: Any) -> set[str]:
    """Return names of the claims that any pod template in a manifest mounts, whatever the kind."""
    if isinstance(node, Mapping):
        found = set().union(*(_claims(v) for v in node.values())) if node else set()
        source = node.get("persistentVolumeClaim")
        if isinstance(source, Mapping) and isinstance(source.get("claimName"), str):
            found.add(source["claimName"])
        return found
    if isinstance(node, list | tuple):
        return set().union(*(_claims(v) for v in node)) if node else set()
    return set()


def _explain_param(error: ParamError) -> str:
    """Return the same for what a rule itself refuses, with the names that users write."""
    owner, _, name = error.field.partition(".")
    where = "spec.modifiers" if owner in MODIFIERS else "spec.stopRule"
    field = ".".join(filter(None, (where, owner, to_camel(name))))
    return f"{field}: {error.value!r} is not allowed, expected {error.expected}"
