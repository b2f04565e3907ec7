"""GPUPools: what of a spec is refused, what the brain is told, and lists of a status that read back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from api_examples import JOB, POOL
from hypothesis import given
from hypothesis import strategies as st
from test_api_record import beyond

from controller import names
from controller.api import convert
from controller.api.codec import encode
from controller.api.crd import root_schema
from controller.api.gpupool import GPUPool
from controller.api.status import PoolStatus
from controller.policy.pool.handovers import Handover
from controller.policy.pool.reservations import NODES_MAX, RESERVATIONS_MAX
from controller.policy.types import Delegate, Problem, Reservation

ETCD_LIMIT = 1_500_000  # bytes of one object, as the API server is set up by default


def pool(**spec: Any) -> dict[str, Any]:
    made = copy.deepcopy(POOL)
    made["spec"].update(spec)
    return made


def parsed(**spec: Any) -> GPUPool:
    found = convert.parse_pool(pool(**spec))
    assert isinstance(found, GPUPool), found
    return found


def test_what_a_pool_is_by_default() -> None:
    spec = parsed().spec
    assert spec.delegate is Delegate.BUILTIN
    assert (spec.scheduler_name, spec.priority_class_name) == ("", names.PRIORITY_CLASS)
    assert spec.gang_timeout_seconds == 300
    assert convert.desired(JOB, parsed()).gang_timeout == 300.0
    assert convert.desired(JOB, parsed(gangTimeoutSeconds=7)).gang_timeout == 7.0


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"gangTimeoutSeconds": 0},
            "spec.gangTimeoutSeconds: is 0: expected 1 or more",
        ),
        (
            {"delegate": "Volcano"},
            "spec.delegate: is 'Volcano': expected 'Builtin', 'Kueue' or 'None'",
        ),
        ({"schedulerName": "Not a name"}, "spec.schedulerName: is 'Not a name'"),
        ({"priorityClassName": "-x"}, "spec.priorityClassName: is '-x'"),
        ({"queuePolicy": {"lottery": {}}}, "spec.queuePolicy"),
    ],
)
def test_a_bad_pool_is_a_problem_in_words(spec: dict[str, Any], said: str) -> None:
    found = convert.parse_pool(pool(**spec))
    assert isinstance(found, tuple)
    assert found[0] == "InvalidSpec"
    assert said in found[1]


def test_kueue_needs_a_queue_and_the_others_take_none() -> None:
    for spec in ({"delegate": "Kueue"}, {"delegate": "None", "kueue": {"localQueue": "team"}}):
        problem = convert.parse_pool(pool(**spec))
        assert isinstance(problem, Problem)
        assert problem.reason == "InvalidSpec"
        assert "kueue.localQueue is needed with delegate Kueue" in problem.message
        found = convert.desired(JOB, problem)
        assert found.problem is not None
        assert found.problem.reason == "PoolNotUsable"
    assert isinstance(convert.parse_pool(pool(delegate="None")), GPUPool)


def test_a_job_waits_in_its_pools_queue_or_in_the_one_that_its_template_names() -> None:
    found = convert.parse_pool(pool(delegate="Kueue", kueue={"localQueue": "team"}))
    assert isinstance(found, GPUPool)
    assert convert.desired(JOB, found).queue == "team"
    named = copy.deepcopy(JOB)
    named["spec"]["workload"]["template"].setdefault("metadata", {})["labels"] = {names.QUEUE_LABEL: "own"}
    assert convert.desired(named, found).queue == "own"
    builtin = convert.parse_pool(pool())
    assert isinstance(builtin, GPUPool)
    assert convert.desired(named, builtin).queue == ""


KEYS = st.from_regex(r"[a-z]{1,8}/[a-z]{1,8}", fullmatch=True)
TIMES = st.floats(1, 4e9)
MAYBE = st.none() | TIMES
HOLDS = st.builds(
    Reservation,
    KEYS,
    KEYS,
    st.lists(st.text("abc-1", max_size=9), max_size=4).map(tuple),
    TIMES,
    st.integers(0, 99),
)
HANDOVERS = st.builds(
    Handover,
    KEYS,
    st.text("abc", min_size=1),
    st.integers(0, 999),
    TIMES,
    MAYBE,
    MAYBE,
    MAYBE,
    st.none() | KEYS,
    MAYBE,
)


@given(st.lists(HOLDS, max_size=5).map(tuple), st.lists(HANDOVERS, max_size=5).map(tuple))
def test_holds_and_handovers_read_back_exactly(
    reservations: tuple[Reservation, ...], stops: tuple[Handover, ...]
) -> None:
    status = encode(PoolStatus(reservations=reservations, last_handovers=stops))
    status = json.loads(json.dumps(status, allow_nan=False))
    assert convert.reservations(status) == reservations
    assert convert.handovers(status) == stops
    schema = root_schema(GPUPool)["properties"]["status"]
    assert list(beyond(status, schema, "status")) == []


@pytest.mark.parametrize("read", [convert.reservations, convert.handovers])
def test_a_list_that_does_not_read_back_is_told_by_name(read: Any) -> None:
    field = "reservations" if read is convert.reservations else "lastHandovers"
    with pytest.raises(convert.StatusError, match=f"status.{field}"):
        read({field: [{"source": "a/b"}]})
    assert read(None) == ()


def test_the_largest_list_of_holds_fits_into_one_object() -> None:
    """With names as long as Kubernetes allows, and as many nodes as are announced."""
    each = NODES_MAX // RESERVATIONS_MAX
    node, key = "n" * 253, "n" * 63 + "/" + "j" * 40
    longest = tuple(
        Reservation(key, key, (node,) * each, 4e9 + 0.123456, 2**31 - 1) for _ in range(RESERVATIONS_MAX)
    )
    assert len(json.dumps(encode(PoolStatus(reservations=longest)))) < ETCD_LIMIT
    schema = root_schema(GPUPool)["properties"]["status"]["properties"]
    assert schema["reservations"]["maxItems"] == RESERVATIONS_MAX
