"""A cluster that is there already in place of the local plane, by EVALSTOP_TEST_KUBECONFIG.

The tests on a control plane then run on it: kind (`make test-kind`), or any cluster that is for tests alone
and in which no operator runs. What takes a control plane apart, or runs pods as local processes, does not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.local import kubeconfig as kubeconfigs
from deploy.local.api import LocalApi
from deploy.local.pki import Pair
from deploy.local.plane import Plane
from deploy.local.report import silent
from deploy.local.status import Status

VARIABLE = "EVALSTOP_TEST_KUBECONFIG"
_SIGNED_WITHIN_S = 30.0


def given() -> Path | None:
    """The kubeconfig that the environment names; None: none, the local plane is used."""
    path = os.environ.get(VARIABLE, "")
    return Path(path).expanduser().absolute() if path else None


class GivenCluster(Plane):
    """What tests use of a `Plane`, on a cluster of somebody else's, whose authority signs identities."""

    def __init__(self, path: Path, work: Path, binaries: Mapping[str, Path]) -> None:
        if not path.is_file():
            pytest.exit(f"{VARIABLE}={path}: no such file", returncode=2)
        self.work, self.kubeconfig, self.report = work, path, silent
        self._binaries = dict(binaries)
        self._issued: dict[str, Pair] = {}
        self._url, self.ca, admin = kubeconfigs.embedded(path, work)
        self._api = LocalApi(self._url, self.ca, admin)

    def _file(self, name: str, data: str) -> Path:
        path = self.work / name
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(data))
        return path

    @property
    def url(self) -> str:
        return self._url

    @property
    def binaries(self) -> dict[str, Path]:
        return self._binaries

    @property
    def kubectl_environment(self) -> dict[str, str]:
        return {"KUBECACHEDIR": str(self.work / "kubectl"), "KUBERC": "off"}

    def status(self) -> Status:
        return Status(True, self._url, None, ())

    def client(self) -> LocalApi:
        return self._api

    def client_cert(self, user: str, groups: Iterable[str] = ()) -> Pair:
        """A certificate by which the cluster knows ``user`` as a member of ``groups``."""
        wanted = list(groups)
        name = "evalstop-test-" + hashlib.sha256("\0".join([user, *wanted]).encode()).hexdigest()[:12]
        if name not in self._issued:
            self._issued[name] = self._signed(name, user, wanted)
        return self._issued[name]

    def _signed(self, name: str, user: str, groups: list[str]) -> Pair:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        about = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        about += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(about))
        encoding = serialization.Encoding.PEM
        pem = request.sign(key, hashes.SHA256()).public_bytes(encoding)
        body: dict[str, Any] = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(pem).decode(),
                "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["digital signature", "client auth"],
                "expirationSeconds": 86400,
            },
        }
        self.kubectl("delete", "csr", name, "--ignore-not-found")
        self.kubectl("create", "-f", "-", stdin=json.dumps(body))
        self.kubectl("certificate", "approve", name)
        deadline = time.monotonic() + _SIGNED_WITHIN_S
        while not (signed := self.kubectl("get", "csr", name, "-o", "jsonpath={.status.certificate}")):
            assert time.monotonic() < deadline, f"the cluster did not sign {name} for {user}"
            time.sleep(0.2)
        self.kubectl("delete", "csr", name)
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Pair(
            self._file(f"{name}.crt", signed),
            self._file(f"{name}.key", base64.b64encode(private).decode()),
        )

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> Path:
        pair = self.client_cert(user, groups)
        return kubeconfigs.write(pair.certificate.with_suffix(".kubeconfig"), self._url, self.ca, user, pair)

    def refuse_a_second_operator(self) -> None:
        """End the session if an operator runs in the cluster: it would act on the tests' jobs."""
        found = json.loads(self.kubectl("get", "deployments", "-A", "-o", "json"))["items"]
        names = [d["metadata"]["name"] for d in found if d["spec"]["replicas"]]
        if "evalstop-operator" in names:
            pytest.exit(
                f"{VARIABLE}={self.kubeconfig}: an operator runs there and would act on the tests' jobs; "
                "take it away first (helm uninstall evalstop -n evalstop-system)",
                returncode=2,
            )

    def _own_only(self, *_: Any, **__: Any) -> Any:
        pytest.skip("needs a control plane of its own, to take apart")

    up = down = wipe = detach = stop = restart = start_process = log = server_cert = _own_only
