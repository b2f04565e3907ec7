"""From the version before this one to this one: its objects are taken, and its jobs' memory reads."""

from __future__ import annotations

import copy

import pytest
from test_api_record import DESIRED

from controller.api.convert import record, status
from controller.api.crd import RESOURCES, Resource, root_schema
from controller.api.newer import refuse_newer_job
from tests.support import previous

# Rules that are new since then and refuse nothing that was stored, by what they begin with.
NEW_RULES: dict[str, list[str]] = {
    "rlhfjobs": [
        ".spec.modifiers: of another default",
        ".spec.stopRule: of another default",
        ".spec.modifiers[].divergence.window: is gone",
        ".spec.metrics[]: has the rule !(has(self.preset) && has(self.range))",
        # Of one that is stored and is not the gang's the operator has refused to make the workload.
        ".spec: has the rule !(has(self.workload.template) && has(self.workload.template.spec)",
        ".spec.metrics[]: has the rule self.role != 'Proxy' || !(has(self.preset)",
        ": has the rule !(has(oldSelf.status) && has(oldSelf.status.admission)) || (has(self.spec.rollout)",
        ".spec: has the rule !has(self.rollout) || has(self.workload.template)",
        ": has the rule !(has(oldSelf.status) && has(oldSelf.status.admission)) || (has(self.spec.sharing)",
        ".spec: has the rule !has(self.sharing) || has(self.workload.template)",
        ".spec: has the rule has(self.sharing) || self.gang.gpusPerReplica > 0",
    ],
    # A time for people: nothing goes on with it.
    "gpupools": [
        ".status.lastHandovers[].securedTime: is gone",
        ".spec: has the rule self.delegate == 'Builtin' || !has(self.sharing)",
    ],
}


STORED = [resource for resource in RESOURCES if resource.plural in previous.load()["schemas"]]


@pytest.mark.parametrize("resource", STORED, ids=lambda r: r.plural)
def test_nothing_that_was_stored_is_refused_or_forgotten_by_the_new_definition(resource: Resource) -> None:
    plural, model = resource.plural, resource.model
    found = list(previous.narrower(previous.load()["schemas"][plural], previous.bare(root_schema(model))))
    unexpected = [f for f in found if not f.startswith(tuple(NEW_RULES[plural]))]
    assert unexpected == []
    idle = [rule for rule in NEW_RULES[plural] if not any(f.startswith(rule) for f in found)]
    assert idle == [], "a rule named above is no longer new"


@pytest.mark.parametrize("name", ["queued", "running", "stopped"])
def test_a_status_of_the_previous_version_is_gone_on_with(name: str) -> None:
    stored = previous.load()["statuses"][name]
    refuse_newer_job(stored)
    again = status(record(stored), DESIRED, 0.0)
    again["printed"].pop("reason", None)  # for people alone: nothing reads it back
    assert {key: again.get(key) for key in stored} == stored


def test_what_narrows_is_seen() -> None:
    old = previous.load()["schemas"]["rlhfjobs"]
    new = copy.deepcopy(old)
    fields = new["properties"]["spec"]["properties"]
    del fields["mode"]
    fields["priority"]["maximum"] = 1
    fields["gang"]["required"] = [*fields["gang"]["required"], "colour"]
    fields["gang"]["properties"]["colour"] = {"type": "string"}
    assert sorted(previous.narrower(old, new)) == [
        ".spec.gang.colour: now required, and without a default",
        ".spec.mode: is gone",
        ".spec.priority: maximum is smaller",
    ]


def test_another_member_of_a_union_narrows_nothing() -> None:
    def one_of(*members: str) -> dict[str, object]:
        count = " + ".join(f"(has(self.{member}) ? 1 : 0)" for member in members)
        return {"type": "object", "x-kubernetes-validations": [{"rule": f"({count}) == 1"}]}

    assert list(previous.narrower(one_of("fifo", "las"), one_of("fifo", "srtf", "las"))) == []
    assert len(list(previous.narrower(one_of("fifo", "las"), one_of("fifo", "srtf")))) == 1
    assert len(list(previous.narrower({"type": "object"}, one_of("fifo", "srtf")))) == 1
