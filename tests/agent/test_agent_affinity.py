"""Which node a pod wants: judged as kubelet does, by the labels the Node has now."""

from collections.abc import Iterator

import pytest
from agent_pods import Object, Pods, container

from deploy.local.agent.affinity import asks, mismatch
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane

LABEL = "evalstop.dev/gpu-pool"


def pod(*terms: Object, **selector: str) -> Object:
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {
        "spec": {"nodeSelector": selector, **({"affinity": {"nodeAffinity": node}} if terms else {})},
    }


def expression(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("wanted", "suits"),
    [
        (pod(zone="a"), True),
        (pod(zone="b"), False),
        (pod(other="a"), False),
        (pod(expression("zone", "In", "a", "b")), True),
        (pod(expression("zone", "In", "b")), False),
        (pod(expression("zone", "NotIn", "b")), True),
        (pod(expression("other", "NotIn", "b")), True),
        (pod(expression("zone", "NotIn", "a")), False),
        (pod(expression("zone", "Exists")), True),
        (pod(expression("other", "Exists")), False),
        (pod(expression("other", "DoesNotExist")), True),
        (pod(expression("zone", "DoesNotExist")), False),
        (pod(expression("cores", "Gt", "7")), True),
        (pod(expression("cores", "Gt", "8")), False),
        (pod(expression("cores", "Lt", "9")), True),
        (pod(expression("zone", "Lt", "9")), False),
        (pod(expression("other", "Lt", "9")), False),
        (pod(expression("zone", "In", "b"), expression("cores", "Exists")), True),  # one term is enough
        (pod({**expression("zone", "Exists"), "matchFields": []}), True),
        (pod({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), True),
        (pod({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}), False),
        (pod({}), False),  # a term of nothing holds nowhere
        (pod(expression("zone", "Exists"), zone="b"), False),  # both must hold
    ],
)
def test_selector_and_affinity(wanted: Object, suits: bool) -> None:
    assert asks(wanted)
    problem = mismatch(wanted, "n", {"zone": "a", "cores": "8"})
    assert (problem is None) == suits, problem


def test_a_pod_that_wants_no_node_is_asked_nothing() -> None:
    assert not asks({"spec": {"affinity": {"nodeAffinity": {}}}})
    assert mismatch({"spec": {}}, "n", {}) is None


@pytest.fixture
def labelled(plane: Plane, nodes: Nodes) -> Iterator[str]:
    """`node-1`, labelled by the administrator after its start."""
    plane.kubectl("label", "node", "node-1", f"{LABEL}=research")
    yield "node-1"
    plane.kubectl("label", "node", "node-1", f"{LABEL}-")


def test_a_label_set_after_the_start_counts(pods: Pods, labelled: str) -> None:
    pods.create("p", container("echo here"), nodeSelector={LABEL: "research"})
    assert pods.output("p").strip() == "here"
    node = (pods.get("p") or {})["spec"]["nodeName"]
    assert node == labelled


def test_a_label_taken_away_counts_too(pods: Pods, labelled: str, plane: Plane) -> None:
    plane.kubectl("label", "node", labelled, f"{LABEL}=production", "--overwrite")
    wanted = {"nodeSelector": {LABEL: "research"}, "nodeName": labelled}  # past the scheduler
    pods.create("p", container("true"), **wanted)
    refused = pods.wait_phase("p", "Failed")
    assert refused["status"]["reason"] == "NodeAffinity"
    assert LABEL in refused["status"]["message"]
