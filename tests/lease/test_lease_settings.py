"""What is set for the election, and what a wrong setting says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from controller.kube.connection import Connection
from controller.operator.main import candidate
from controller.operator.process.clock import ServerClock
from controller.operator.process.leader_election import Leadership, Term, Unopposed
from controller.operator.process.metrics import Metrics
from controller.operator.process.settings import Settings, SettingsError


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (
            {"EVALSTOP_LEASE_RENEW_SECONDS": "15"},
            "EVALSTOP_LEASE_RETRY_SECONDS < EVALSTOP_LEASE_RENEW_SECONDS < EVALSTOP_LEASE_SECONDS is needed: "
            "renewal deadline 15 s: expected less than the lease's 15 s",
        ),
        (
            {"EVALSTOP_LEASE_SECONDS": "5", "EVALSTOP_LEASE_RENEW_SECONDS": "2"},
            "renewal period 2 s: expected less than the deadline, 2 s",
        ),
        (
            {"EVALSTOP_LEASE_SECONDS": "1.5"},
            "EVALSTOP_LEASE_SECONDS='1.5': expected a whole number from 1 to 3600",
        ),
        ({"EVALSTOP_LEADER_ELECT": "no"}, "EVALSTOP_LEADER_ELECT='no': expected true or false"),
        ({"EVALSTOP_LEASE_NAME": ""}, "EVALSTOP_LEASE_NAME='': expected a text that is not empty"),
    ],
)
def test_wrong_settings_are_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as told:
        Settings.from_environ(environ)
    assert says in str(told.value)


def made(environ: dict[str, str]) -> Term:
    async def make() -> Term:
        connection = Connection("http://nowhere", "nowhere")
        term = candidate(Settings.from_environ(environ), connection, Metrics(), ServerClock(), environ)
        await term.release()
        return term

    return asyncio.run(make())


def test_the_lease_is_in_the_pods_own_namespace_and_the_holder_is_the_pod() -> None:
    environ = {"POD_NAMESPACE": "mine", "POD_NAME": "op-1", "POD_UID": "0815"}
    term = made(environ)
    assert isinstance(term, Leadership)
    assert term.role() == "standby: nobody holds Lease mine/evalstop-operator"
    assert term.identity == "op-1_0815"
    assert made(environ).identity == "op-1_0815", "the next container of the pod is the same candidate"  # type: ignore[union-attr]


def test_outside_a_pod_no_two_processes_have_one_name() -> None:
    names = {made({"EVALSTOP_INSTANCE": "here"}).identity for _ in range(5)}  # type: ignore[union-attr]
    assert len(names) == 5
    assert all(name.startswith("here_") for name in names)


def test_without_an_election_it_leads_and_numbers_nothing() -> None:
    term = made({"EVALSTOP_LEADER_ELECT": "false"})
    assert isinstance(term, Unopposed)
    assert (term.leads, term.epoch, term.problem()) == (True, None, None)
    term.check()


def test_the_manifests_give_the_pod_its_name_and_the_rights_to_its_lease(repository: Path) -> None:
    manifests = repository / "deploy" / "manifests"
    deployment = yaml.safe_load((manifests / "operator.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    fields = {
        e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"] if "valueFrom" in e
    }
    assert fields["POD_UID"] == "metadata.uid"
    assert fields["POD_NAMESPACE"] == "metadata.namespace"
    roles = [o for o in yaml.safe_load_all((manifests / "rbac.yaml").read_text()) if o["kind"] == "Role"]
    (leader,) = [role for role in roles if role["metadata"]["name"] == "evalstop-leader"]
    assert {verb for rule in leader["rules"] for verb in rule["verbs"]} == {"get", "create", "patch"}
    assert all(rule["resources"] == ["leases"] for rule in leader["rules"])
