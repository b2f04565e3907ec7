"""The policy on the Jobs of rollout actors (`controller.workloads.actor_jobs`), as far as it is the same for
all: one pod, once, on the node of its entry, owned by its workload, with our sidecar before the engine.

What else is in them is the author's template: whoever writes one may create Jobs himself (`author`).
`variables.marks` in CEL are the labels of the Job, `variables.owners` its owner references (`accounts`).
"""

from __future__ import annotations

from controller import names
from controller.api.admission.base import Check

COMMAND = ("python", "-m", "controller.actor")
IS_ACTOR = (
    f"'{names.LABEL_COMPONENT}' in variables.marks && variables.marks['{names.LABEL_COMPONENT}'] == 'actor'"
)
_MADE = "request.operation != 'CREATE' || !variables.actor || "
_POD = "object.spec.template.spec"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SUBJECT = "the EvalStop operator's Jobs of rollout actors"


def actor_checks() -> tuple[Check, ...]:
    """For the policy on the operator's Jobs; its variable ``actor`` says whether one is such a Job."""
    command = ", ".join(f"'{word}'" for word in COMMAND)
    required = f"{_POD}.affinity.nodeAffinity.{_REQUIRED}"
    return (
        Check(
            f"!variables.actor || ('{names.LABEL_MANAGED_BY}' in variables.marks && "
            f"variables.marks['{names.LABEL_MANAGED_BY}'] == '{names.MANAGED_BY}' && "
            f"'{names.LABEL_JOB}' in variables.marks && '{names.LABEL_ACTOR}' in variables.marks && "
            f"variables.found.metadata.name.startsWith(variables.marks['{names.LABEL_JOB}'] + '-actor-'))",
            f"{_SUBJECT} say whose they are",
        ),
        Check(
            f"{_MADE}(variables.owners.size() == 1 && variables.owners.all(o, o.kind == 'Job' && "
            "o.apiVersion == 'batch/v1' && has(o.controller) && o.controller && "
            f"o.name == variables.marks['{names.LABEL_JOB}']))",
            f"{_SUBJECT} are made under their workload",
        ),
        Check(
            f"{_MADE}(object.spec.completions == 1 && object.spec.parallelism == 1 && "
            "object.spec.backoffLimit == 0)",
            f"{_SUBJECT} have one pod, once",
        ),
        Check(
            f"{_MADE}(has({_POD}.initContainers) && {_POD}.initContainers.size() > 0 && "
            f"has({_POD}.initContainers[0].command) && {_POD}.initContainers[0].command == [{command}])",
            f"{_SUBJECT} have the sidecar before all else",
        ),
        Check(
            f"{_MADE}(has({_POD}.affinity) && has({_POD}.affinity.nodeAffinity) && has({required}) && "
            f"{required}.nodeSelectorTerms.all(t, has(t.matchFields) && t.matchFields.exists(f, "
            "f.key == 'metadata.name' && f.operator == 'In' && f.values.size() == 1)))",
            f"{_SUBJECT} name their node",
        ),
    )
