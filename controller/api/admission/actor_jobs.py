"""The policy on the Jobs of rollout actors (`controller.workloads.actor_jobs`), as far as it is the same for
all: one pod, once, on the node of its entry, owned by its workload, with our sidecar before the engine.

What else is in them is the author's template: whoever writes one may create Jobs himself (`author`).
`variables.marks` in CEL are the labels of the Job, `variables.owners` its owner references (`accounts`).
"""

from __future__ import annotations

from controller import names
from controller.api.admission.base import Check

COMMAND = ("python", "-m", "controller.actor")
ENGINE_VOLUME = "evalstop-engine"  # the folder of the engine's socket (`controller.workloads.actor_jobs`)
IS_ACTOR = f"variables.marks[?'{names.LABEL_COMPONENT}'].orValue('') == 'actor'"
_MADE = "request.operation != 'CREATE' || !variables.actor || "
_POD = "object.spec.template.spec"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SUBJECT = "the EvalStop operator's Jobs of rollout actors"


def actor_checks() -> tuple[Check, ...]:
    """For the policy on the operator's Jobs; its variable ``actor`` says whether one is such a Job."""
    command = ", ".join(f"'{word}'" for word in COMMAND)
    terms = f"{_POD}.?affinity.?nodeAffinity.?{_REQUIRED}.?nodeSelectorTerms.orValue([])"
    job = f"variables.marks[?'{names.LABEL_JOB}'].orValue('')"
    return (
        Check(
            f"!variables.actor || ('{names.LABEL_ACTOR}' in variables.marks && "
            f"variables.found.metadata.name.startsWith({job} + '-actor-'))",
            f"{_SUBJECT} say whose they are",
        ),
        Check(
            f"{_MADE}(variables.owners.size() == 1 && variables.owners.all(o, o.kind == 'Job' && "
            f"o.apiVersion == 'batch/v1' && o.?controller.orValue(false) && o.name == {job}))",
            f"{_SUBJECT} are made under their workload",
        ),
        Check(
            f"{_MADE}(object.spec.completions == 1 && object.spec.parallelism == 1 && "
            "object.spec.backoffLimit == 0)",
            f"{_SUBJECT} have one pod, once",
        ),
        Check(
            # Of the author's volumes it has the one of weights, and that to read.
            f"{_MADE}({_POD}.?initContainers[?0].?command.orValue([]) == [{command}] && "
            f"{_POD}.?initContainers[?0].?volumeMounts.orValue([]).all(m, "
            f"m.name == '{ENGINE_VOLUME}' || m.?readOnly.orValue(false)))",
            f"{_SUBJECT} have the sidecar before all else, which writes to the engine's folder alone",
        ),
        Check(
            # The only field that can be named is the node's name, and of those one alone.
            f"{_MADE}({terms}.size() > 0 && {terms}.all(t, t.?matchFields.orValue([]).exists(f, "
            "f.operator == 'In')))",
            f"{_SUBJECT} name their node",
        ),
    )
