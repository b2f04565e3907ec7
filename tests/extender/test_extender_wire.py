"""The wire: exactly what kube-scheduler speaks, and what bad input gets. Over real mutual TLS."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from typing import Any

import pytest
from extender_rig import ExtenderThread, request
from hypothesis import given
from hypothesis import strategies as st

from controller.extender import wire
from controller.extender.metrics import Metrics
from controller.extender.requeueing import RefusedPods
from controller.extender.service import Service
from controller.extender.web import MOST_BYTES
from controller.objects import COMPLETION_INDEX
from controller.policy.node.ledger import Bound, Gang, GpuLedger
from deploy.local.scheduler import Certificates


def pod(job: str = "j", number: str | None = "1", index: str | None = "0", gpus: int = 8) -> dict[str, Any]:
    labels = {"evalstop.dev/job": job} | ({} if index is None else {COMPLETION_INDEX: index})
    annotations = {} if number is None else {"evalstop.dev/admission": number}
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    metadata = {"name": "p", "namespace": "t", "uid": "u", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container]}}


@pytest.fixture
def service() -> Service:
    """One gang, t/j, whose only member is planned on n1; a stranger's victim would be of gang t/k."""
    ledger = GpuLedger()
    for name in ("n1", "n2"):
        ledger.put_node(name, 8)
    ledger.put_job("t/j", 8, Gang("t/j", 1, ("n1",), 8))
    ledger.put_bound("k-0", Bound("t/k", 1, "n2", 8))
    made = Service(ledger, RefusedPods(), Metrics(), lambda: 0.0)
    made.ready = True
    return made


def test_filter_by_names(service: Service) -> None:
    """Every field by its Go name; a refusal that killing others would not mend is told as such."""
    answer = service.filter({"Pod": pod(), "Nodes": None, "NodeNames": ["n2", "n1"], "New": {"field": 1}})
    why = "evalstop: member 0 of t/j (admission 1) is planned on n1"
    assert answer == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": {"n2": why},
        "Error": "",
    }


def test_an_admission_not_seen_is_told_by_failed_nodes_and_never_by_error(service: Service) -> None:
    answer = service.filter({"Pod": pod(number="2"), "NodeNames": ["n1", "n2"]})
    assert answer["NodeNames"] == []
    assert set(answer["FailedNodes"]) == {"n1", "n2"}
    assert answer["FailedAndUnresolvableNodes"] is None
    assert answer["Error"] == ""


def test_filter_by_whole_nodes(service: Service) -> None:
    """nodeCacheCapable: false. The nodes go back as they came."""
    nodes = [{"metadata": {"name": name}, "spec": {"taints": []}} for name in ("n1", "n2")]
    answer = service.filter({"Pod": pod(), "Nodes": {"items": nodes}, "NodeNames": None})
    assert answer["Nodes"] == {"metadata": {}, "items": [nodes[0]]}
    assert answer["NodeNames"] is None


@pytest.mark.parametrize("message", [{"Nodes": None, "NodeNames": None}, {}, {"NodeNames": []}])
def test_null_and_empty_lists_of_nodes(service: Service, message: dict[str, Any]) -> None:
    """The list is always sent: null would read as an answer about whole nodes."""
    answer = service.filter({"Pod": pod(), **message})
    assert answer["NodeNames"] == []
    assert not answer["FailedNodes"]
    assert service.prioritize({"Pod": pod(), **message}) == []
    assert service.preempt({"Pod": pod(), "NodeNameToMetaVictims": None}) == {"NodeNameToMetaVictims": {}}


def test_unknown_nodes_and_pods_with_null_fields(service: Service) -> None:
    bare = {"metadata": {"name": "b", "labels": None, "annotations": None}, "spec": {"containers": None}}
    assert service.filter({"Pod": bare, "NodeNames": ["nowhere"]})["NodeNames"] == ["nowhere"]
    assert service.prioritize({"Pod": pod(), "NodeNames": ["nowhere", "n1"]})[0] == {
        "Host": "nowhere",
        "Score": 0,
    }
    assert service.filter({"Pod": {}, "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    assert service.filter({"Pod": pod(number="x"), "NodeNames": ["nowhere", "n1"]})["NodeNames"] == [
        "nowhere"
    ]


def test_prioritize_is_a_bare_array(service: Service) -> None:
    answer = service.prioritize({"Pod": pod(), "NodeNames": ["n2", "n1"]})
    assert answer == [{"Host": "n2", "Score": 6}, {"Host": "n1", "Score": 10}]
    assert service.prioritize({"Pod": pod(gpus=0), "NodeNames": ["n2", "n1"]}) == []  # all alike


@pytest.mark.parametrize("meta", [True, False])
def test_preempt_answers_by_uid_and_leaves_nodes_out(service: Service, meta: bool) -> None:
    """Neither gangs nor, for a member, any node but its own; a node without victims would be an error."""

    def victims(*uids: str) -> dict[str, Any]:
        pods = [{"UID": uid} if meta else {"metadata": {"uid": uid}} for uid in uids]
        return {"Pods": pods, "NumPDBViolations": 1}

    field = "NodeNameToMetaVictims" if meta else "NodeNameToVictims"
    candidates = {"n1": victims("x", "y"), "n2": victims("k-0"), "n3": victims("z"), "n4": victims()}
    answer = service.preempt({"Pod": pod(), field: candidates})
    assert answer == {
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}, {"UID": "y"}], "NumPDBViolations": 1}}
    }
    other = service.preempt({"Pod": pod(number=None), field: candidates})
    assert list(other["NodeNameToMetaVictims"]) == ["n3"]


def test_before_it_is_ready_it_lets_nobody_pass_and_nobody_die(service: Service) -> None:
    service.ready = False
    assert service.filter({"Pod": pod(number=None), "NodeNames": ["n1"]})["NodeNames"] == []
    candidates = {"n3": {"Pods": [{"UID": "z"}]}}
    asked = {"Pod": pod(number=None), "NodeNameToMetaVictims": candidates}
    assert service.preempt(asked) == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"NodeNames": ["n1"]}, "Pod: NoneType, expected the pod"),
        ({"Pod": [], "NodeNames": ["n1"]}, "Pod: list, expected the pod"),
        ({"Pod": {}, "NodeNames": "n1"}, "NodeNames: expected a list of names or null"),
        ({"Pod": {}, "NodeNames": ["n1", 7]}, "NodeNames: expected a list of names or null"),
        ({"Pod": {}, "Nodes": {"items": [{}]}}, "Nodes: expected a NodeList whose items have metadata.name"),
        ({"Pod": {}, "Nodes": {"items": 5}}, "Nodes: expected a NodeList"),
        ({"Pod": {"spec": {"containers": [7]}}, "NodeNames": ["n1"]}, "Pod: not a pod as the API server"),
    ],
)
def test_what_is_no_such_message_is_named(service: Service, message: dict[str, Any], said: str) -> None:
    with pytest.raises(wire.BadRequest) as refused:
        service.filter(message)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "candidates", [[], {"n1": {"Pods": [{}]}}, {"n1": {"Pods": [{"UID": "x"}], "NumPDBViolations": "q"}}]
)
def test_candidates_that_are_none_are_named(service: Service, candidates: Any) -> None:
    with pytest.raises(wire.BadRequest, match="NodeNameToMetaVictims"):
        service.preempt({"Pod": {}, "NodeNameToMetaVictims": candidates})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "Pod",
                    "NodeNames",
                    "Nodes",
                    "items",
                    "metadata",
                    "name",
                    "labels",
                    "spec",
                    "containers",
                    "resources",
                    "limits",
                    "requests",
                    "initContainers",
                    "annotations",
                    "NodeNameToMetaVictims",
                    "Pods",
                    "UID",
                    "nvidia.com/gpu",
                    "evalstop.dev/job",
                    "evalstop.dev/admission",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(["Pod", "NodeNames", "Nodes", "NodeNameToMetaVictims"]), json_values))
def test_any_json_object_is_answered_or_refused_in_words(message: dict[str, Any]) -> None:
    made = Service(GpuLedger(), RefusedPods(), Metrics(), lambda: 0.0)
    made.ready = True
    for verb in (made.filter, made.prioritize, made.preempt):
        with contextlib.suppress(wire.BadRequest):
            json.dumps(verb(message))


# -- over the network --------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("path", "method", "kind", "body", "status", "said"),
    [
        ("/filter", "GET", "application/json", b"", 405, "method GET: expected POST"),
        ("/filter", "PUT", "application/json", b"{}", 405, "method PUT: expected POST"),
        ("/bind", "POST", "application/json", b"{}", 404, "path /bind: expected one of /filter, /prioritize"),
        ("/filter", "POST", "text/plain", b"{}", 415, "Content-Type: text/plain, expected application/json"),
        ("/filter", "POST", "application/json", b"{", 400, "body: no JSON"),
        ("/filter", "POST", "application/json", b"[" * 100_000, 400, "body: no JSON"),
        ("/filter", "POST", "application/json", b"[]", 400, "body: list, expected an object"),
        ("/preempt", "POST", "application/json", b"{}", 400, "Pod: NoneType"),
        ("/filter", "POST", "application/json", b" " * (MOST_BYTES + 1), 413, "nodeCacheCapable: true"),
    ],
)
def test_bad_requests_get_a_status_and_a_sentence(
    extender: ExtenderThread,
    certificates: Certificates,
    path: str,
    method: str,
    kind: str,
    body: bytes,
    status: int,
    said: str,
) -> None:
    got, answer = request(certificates, extender.port, path, body, method, kind)
    assert got == status
    assert said in answer["Error"]


@pytest.mark.cluster
def test_ten_megabytes_are_answered(extender: ExtenderThread) -> None:
    names = [f"node-{i:07d}-{'x' * 50}" for i in range(140_000)]
    bare = {"metadata": {"name": "b", "namespace": "t"}, "spec": {"containers": []}}
    message = {"Pod": bare, "NodeNames": names}
    assert 9_000_000 < len(json.dumps(message)) < MOST_BYTES
    assert extender.ask("filter", message)["NodeNames"] == names


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["none", "of another authority"])
def test_without_a_certificate_of_its_authority_nobody_is_heard(
    extender: ExtenderThread, certificates: Certificates, tmp_path: Any, how: str
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if how != "none":
        other = Certificates(tmp_path).client
        context.load_cert_chain(other.certificate, other.key)
    connection = http.client.HTTPSConnection("127.0.0.1", extender.port, timeout=20, context=context)

    def ask() -> None:
        connection.request("POST", "/filter", b"{}", {"Content-Type": "application/json"})
        connection.getresponse()

    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        ask()


@pytest.mark.cluster
def test_health_and_metrics_are_for_everybody(extender: ExtenderThread) -> None:
    for path in ("/healthz", "/readyz"):
        connection = http.client.HTTPConnection("127.0.0.1", extender.extender.status_port, timeout=20)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"ok\n")
        connection.close()
    sample = 'evalstop_extender_requests_total{status="200",verb="filter"}'
    before = extender.metric(sample)
    extender.ask("filter", {"Pod": pod("nobody"), "NodeNames": ["n1"]})
    assert extender.metric(sample) == before + 1
    assert extender.metric('evalstop_extender_request_seconds_count{verb="filter"}') >= 1
    assert extender.metric("evalstop_extender_ready") == 1
