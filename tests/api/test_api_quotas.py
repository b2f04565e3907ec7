"""A pool's quotas: what of them is refused, by name, and what its status says of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from api_cluster import GROUP, install, refusal
from api_examples import POOL

from controller.api import convert
from controller.api.gpupool import QUOTA_NAMESPACES_MAX, QUOTAS_MAX, GPUPool
from controller.policy.types import Quota
from deploy.local.plane import Plane

A = {"namespaces": ["a", "b"], "guaranteed": 8, "limit": 16}
BAD: list[tuple[dict[str, Any], str, str]] = [
    (
        {"quotas": [A, {"namespaces": ["c", "b"]}]},
        "spec: quotas[1].namespaces: 'b' is in quotas[0] already, expected each namespace once",
        'spec.quotas: a namespace is in two of the entries [["a", "b"], ["c", "b"]], name each in one',
    ),
    (
        {"quotas": [{**A, "limit": 7}]},
        "spec: quotas[0].limit: 7 is less than the 8 guaranteed, expected at least as many, or none",
        "limit is 7, less than the 8 guaranteed: at least as many, or leave it out",
    ),
    (
        {"quotas": [A], "delegate": "None"},
        "spec: quotas: is not allowed with delegate None, only with Builtin: leave it out",
        "spec.quotas: is not allowed with delegate None, only with Builtin",
    ),
    (
        {"quotas": [A], "delegate": "Kueue", "kueue": {"localQueue": "q"}},
        "spec: quotas: is not allowed with delegate Kueue, only with Builtin: leave it out",
        "spec.quotas: is not allowed with delegate Kueue, only with Builtin",
    ),
    (
        {"quotas": [{"namespaces": ["*"]}]},
        "spec.quotas[0].namespaces[0]: is '*'",
        "spec.quotas[0].namespaces[0]",
    ),
    ({"quotas": [{"namespaces": []}]}, "spec.quotas[0].namespaces", "spec.quotas[0].namespaces"),
    ({"quotas": [{**A, "guaranteed": -1}]}, "spec.quotas[0].guaranteed: is -1", "spec.quotas[0].guaranteed"),
]


def pool(**spec: Any) -> dict[str, Any]:
    made = copy.deepcopy(POOL)
    made["spec"].update(spec)
    return made


@pytest.mark.parametrize(("spec", "said", "_"), BAD)
def test_bad_quotas_are_a_problem_in_words(spec: dict[str, Any], said: str, _: str) -> None:
    found = convert.parse_pool(pool(**spec))
    assert isinstance(found, tuple)
    assert found[0] == "InvalidSpec"
    assert found[1].startswith(said)


def test_the_brain_is_told_of_them() -> None:
    found = convert.parse_pool(pool(quotas=[A, {"namespaces": ["c"]}]))
    assert isinstance(found, GPUPool)
    assert convert.quotas(found) == (Quota(("a", "b"), 8, 16), Quota(("c",), 0, None))


def test_the_server_refuses_bad_quotas_by_name_and_takes_the_most_there_may_be(plane: Plane) -> None:
    install(plane)
    client, path = plane.client(), f"{GROUP}/gpupools?dryRun=All"
    for spec, _, said in BAD:
        assert said in refusal(client, "POST", path, pool(**spec))
    most = [
        {"namespaces": [f"{'n' * 58}{q:02d}{n:02d}" for n in range(QUOTA_NAMESPACES_MAX)]}
        for q in range(QUOTAS_MAX)
    ]
    assert refusal(client, "POST", path, pool(quotas=most)) == ""
    assert len(json.dumps(most)) < 100_000  # as often again in the status
