"""The extender as its own process under its own identity, and the manifests that install it."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from controller import names
from controller.extender.scheduler_config import write
from controller.web.certificates import LEAF_DAYS, Pem, issue_client, issue_server, make_authority
from deploy.local.api import LocalApi
from deploy.local.plane import Plane
from deploy.local.scheduler import EXTENDER_USER, Certificates, Extender
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_the_process_is_ready_tells_that_it_fails_open_and_ends_when_asked(
    plane: Plane, extender_kubeconfig: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    options = Certificates(tmp_path / "pki").options("https://127.0.0.1:1", ignorable=True)
    config.write_text(write(options))
    process = Extender(plane, process="extender-process", config=config).start()
    with urllib.request.urlopen(process.metrics, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    assert "evalstop_extender_ignorable 1.0" in lines
    assert "evalstop_extender_ready 1.0" in lines
    process.stop()
    (part,) = [p for p in plane.status().processes if p.name == "extender-process"]
    assert part.state != "running"
    assert '"code": 0' in plane.log("extender-process").read_text()


class Wire:
    """An extender process under certificates of this test's authority, and requests like kube-scheduler's."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self.folder = folder
        self._plane = plane
        self._process = Extender(plane, process="extender-certificates")
        self._ca = self._process.certificates.ca
        self._authority = Pem(self._ca.read_text(), self._ca.with_suffix(".key").read_text())
        self.serving = self._write("serving", issue_server(self._authority, ["127.0.0.1"], _days_ago(0)))
        client = issue_client(self._authority, names.SCHEDULER_NAME, _days_ago(0))
        self.client = self._write("client", client)
        self._clients = folder / "clients.crt"
        self._clients.write_text(self._authority.certificate)
        self._process.environment |= {
            "EVALSTOP_EXTENDER_CLIENT_CA": str(self._clients),
            "EVALSTOP_EXTENDER_CERTIFICATE": str(self.serving[0]),
            "EVALSTOP_EXTENDER_KEY": str(self.serving[1]),
        }

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._process.stop()

    def serve(self, issued: datetime.datetime) -> None:
        """Put another serving certificate, made at that time, where the extender looks for a renewed one."""
        self._write("serving", issue_server(self._authority, ["127.0.0.1"], issued))

    def serve_half(self, issued: datetime.datetime) -> str:
        """Another certificate beside the key of before. Returns its key."""
        pem = issue_server(self._authority, ["127.0.0.1"], issued)
        (self.folder / "serving.crt").write_text(pem.certificate)
        return pem.key

    def put_key(self, key: str) -> None:
        (self.folder / "serving.key").write_text(key)

    def log(self) -> str:
        return self._plane.log("extender-certificates").read_text()

    def client_named(self, name: str) -> tuple[Path, Path]:
        """A client certificate of the same authority that bears this name."""
        return self._write("named", issue_client(self._authority, name, _days_ago(0)))

    def replace_authority(self) -> None:
        """Have another authority vouch for clients from now on, as a leak of the first one's key asks for."""
        self._clients.write_text(make_authority(_days_ago(0)).certificate)

    def client_of(self, issued: datetime.datetime) -> tuple[Path, Path]:
        """A client certificate made at that time."""
        return self._write("aged", issue_client(self._authority, names.SCHEDULER_NAME, issued))

    def ask(self, client: tuple[Path, Path]) -> int:
        """The status of a request; a connection of its own. Raises OSError: one of the two is refused."""
        context = ssl.create_default_context(cafile=str(self._ca))
        context.load_cert_chain(*client)
        port = urlsplit(self._process.url).port
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        ) as connection:
            connection.request("POST", "/preempt", b"{}", {"Content-Type": "application/json"})
            return connection.getresponse().status

    def ends(self, certificate: str = "serving") -> float | None:
        """When a certificate ends (s), as the extender's metric has it; None: it says nothing of that one."""
        name = f'evalstop_extender_certificate_expiry_timestamp_seconds{{certificate="{certificate}"}} '
        with urllib.request.urlopen(self._process.metrics, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        found = [float(line.removeprefix(name)) for line in lines if line.startswith(name)]
        return found[0] if found else None

    def _write(self, name: str, pem: Pem) -> tuple[Path, Path]:
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        for file, text in zip(files, (pem.certificate, pem.key), strict=True):
            file.write_text(text)
        return files


def days_left(ends: float | None) -> float:
    assert ends is not None, "the metric says nothing"
    return (ends - time.time()) / 86400


def _days_ago(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)


@pytest.fixture
def wire(plane: Plane, extender_kubeconfig: Path, tmp_path: Path) -> Iterator[Wire]:
    made = Wire(plane, tmp_path)
    made.start()
    yield made
    made.stop()


def test_an_expired_certificate_is_refused_on_both_sides_and_the_metric_says_when_it_ended(
    wire: Wire,
) -> None:
    heard = 400  # past TLS: an empty message is no request of kube-scheduler's
    assert wire.ask(wire.client) == heard
    assert days_left(wire.ends()) > 364
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)) as refused:
        wire.ask(wire.client_of(_days_ago(LEAF_DAYS + 1)))
    assert not isinstance(refused.value, ssl.SSLCertVerificationError), "the server's was good"
    assert wire.ask(wire.client) == heard

    def answer() -> str:
        try:
            return str(wire.ask(wire.client))
        except ssl.SSLCertVerificationError as error:
            return error.verify_message

    wire.serve(_days_ago(LEAF_DAYS + 1))
    wait_until(lambda: answer() == "certificate has expired", "the expired certificate to be served")
    assert -1 - 600 / 86400 < days_left(wire.ends()) < -1, "it ended a day ago"
    wire.serve(_days_ago(0))
    wait_until(lambda: answer() == str(heard), "the renewed certificate to be served")
    assert days_left(wire.ends()) > 0

    # Files are renewed one after the other: until the key is there, too, the old pair serves.
    key = wire.serve_half(_days_ago(LEAF_DAYS + 1))
    wait_until(lambda: "cannot read the renewed certificate" in wire.log(), "the half to be seen")
    assert answer() == str(heard)
    wire.put_key(key)
    wait_until(lambda: answer() == "certificate has expired", "the whole pair to be served")


def test_a_certificate_of_the_authority_with_another_name_learns_nothing(wire: Wire) -> None:
    """Who holds what, and pods patched on demand: for kube-scheduler alone. What Helm's
    functions sign for servers is good for clients, too, and so may be what an issuer signs for others."""
    for name in ("evalstop-extender", "evalstop-metrics", "prometheus", "system:admin"):
        assert wire.ask(wire.client_named(name)) == 403
    assert wire.ends("client") is None, "none of them was heard"
    assert wire.ask(wire.client) == 400


def test_an_authority_that_is_replaced_vouches_for_nobody_any_more(wire: Wire) -> None:
    assert wire.ask(wire.client) == 400
    wire.replace_authority()

    def refused() -> bool:
        try:
            return not wire.ask(wire.client)
        except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
            return True

    wait_until(refused, "the authority before to count no more")


def test_the_metric_says_when_the_certificate_of_who_asks_ends(wire: Wire) -> None:
    """Nobody else sees it where a kube-scheduler has a copy in its own configuration."""
    assert wire.ends("client") is None, "nobody has asked yet"
    wire.ask(wire.client_of(_days_ago(LEAF_DAYS - 5)))
    assert 4.9 < days_left(wire.ends("client")) < 5
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        wire.ask(wire.client_of(_days_ago(LEAF_DAYS + 1)))
    assert 4.9 < days_left(wire.ends("client")) < 5, "whoever is refused has not asked"
    wire.ask(wire.client)
    assert days_left(wire.ends("client")) > 364


def test_its_identity_may_touch_an_object_of_its_own_and_nothing_else(
    plane: Plane, extender_kubeconfig: Path
) -> None:
    groups = ["system:serviceaccounts", "system:authenticated"]
    client = LocalApi(plane.url, plane.ca, plane.client_cert(EXTENDER_USER, groups))

    def may(verb: str, what: str, subresource: str = "", **more: str) -> bool:
        resource, _, group = what.partition(".")
        asked = {"verb": verb, "resource": resource, "group": group, "subresource": subresource, **more}
        review = client.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            },
        )
        return bool(review["status"]["allowed"])

    capacities, own = "csistoragecapacities.storage.k8s.io", {"namespace": names.NAMESPACE}
    assert may("patch", capacities, **own, name=names.WAKE_OBJECT)
    assert not may("patch", capacities, **own, name="theirs")
    assert not may("patch", capacities, namespace="default", name=names.WAKE_OBJECT)
    assert not may("patch", "pods", "status"), "a pod's address, labels and conditions are not its own"
    for resource in ("rlhfjobs.evalstop.dev", "gpupools.evalstop.dev", "nodes", "pods"):
        assert may("watch", resource)
        assert not any(may(verb, resource) for verb in ("create", "update", "patch", "delete"))
    assert not may("get", "secrets")


def test_the_manifests_are_accepted_and_grant_no_wildcard(
    kubectl: Callable[..., str], extender_kubeconfig: Path, repository: Path
) -> None:
    folder = repository / "deploy" / "extender"
    told = kubectl("apply", "--dry-run=server", "--validate=strict", "-k", str(folder))
    assert "deployment.apps/evalstop-extender" in told
    assert "deployment.apps/evalstop-scheduler" in told
    for path in folder.glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            for rule in document.get("rules", ()):
                granted = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert "*" not in granted
                assert "secrets" not in granted
