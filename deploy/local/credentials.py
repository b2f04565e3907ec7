"""Credentials of a plane: certificates, kubeconfigs and the configuration files that name them."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.local import components, kubeconfig, pki
from deploy.local.components import FIRST_SERVICE_IP, HOST, Files, Options
from deploy.local.errors import PlaneError
from deploy.local.versions import CONTROLLERS, SCHEDULER
from deploy.local.workfolder import WorkFolder

ADMIN = "kubernetes-admin"
ADMINS = "system:masters"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"  # how the API server introduces itself to node agents
_SERVICE = "kubernetes.default.svc"
APISERVER_NAMES = (
    HOST,
    "localhost",
    FIRST_SERVICE_IP,
    "kubernetes",
    "kubernetes.default",
    _SERVICE,
    f"{_SERVICE}.cluster.local",
)


class Credentials:
    """The identities of the plane in one work folder."""

    def __init__(self, folder: WorkFolder) -> None:
        self.folder = folder
        self.ca = folder.pki / "ca.crt"
        self.admin_kubeconfig = folder.kubeconfigs / "admin.kubeconfig"
        self.admin = pki.Pair(folder.pki / "admin.crt", folder.pki / "admin.key")

    def client(self, user: str, groups: Iterable[str] = ()) -> pki.Pair:
        """Return a client certificate by which the API server knows `user` as a member of `groups`."""
        wanted = list(groups)
        return self._authority().client(_slug(user, wanted), user, wanted)

    def server(self, name: str, addresses: Sequence[str], groups: Iterable[str] = ()) -> pki.Pair:
        """Return a serving certificate for `addresses` (DNS names, IP addresses) that the API server
        trusts."""
        wanted = list(groups)
        return self._authority().server("serving-" + _slug(name, wanted), name, addresses, wanted)

    def kubeconfig(self, url: str, user: str, groups: Iterable[str] = ()) -> Path:
        """Return a kubeconfig file by which `user` reaches the API server at `url`."""
        wanted = list(groups)
        path = self.folder.kubeconfigs / f"{_slug(user, wanted)}.kubeconfig"
        return kubeconfig.write(path, url, self.ca, user, self.client(user, wanted))

    def write(self, url: str, options: Options) -> Files:
        """Everything that the components' command lines name. Errors: PlaneError."""
        folder = self.folder
        try:
            ca = self._authority()
            etcd_ca = pki.Authority(folder.pki, "etcd-ca")
            token_keys = pki.token_keys(folder.pki)
        except (ValueError, OSError) as error:
            raise folder.unusable(f"its certificates cannot be used ({error})") from error
        admin = ca.client("admin", ADMIN, [ADMINS])
        kubeconfig.write(self.admin_kubeconfig, url, self.ca, ADMIN, admin)
        own = {}
        for name in (CONTROLLERS, SCHEDULER):
            path, user = folder.kubeconfigs / f"{name}.kubeconfig", f"system:{name}"
            own[name] = kubeconfig.write(path, url, self.ca, user, ca.client(name, user))
        authentication = folder.config / "authentication.yaml"
        authentication.write_text(components.AUTHENTICATION)
        scheduling = folder.config / "scheduler.yaml"
        try:
            scheduling.write_text(components.scheduler_config(options.scheduler_config, own[SCHEDULER]))
        except (ValueError, OSError) as error:
            raise PlaneError(str(error)) from error
        return Files(
            data=folder.data / "etcd",
            certs=folder.config / "certs",
            ca=ca.pair,
            etcd_ca=etcd_ca.pair.certificate,
            etcd_server=etcd_ca.peer("etcd-server", "etcd", [HOST, "localhost"]),
            etcd_client=etcd_ca.client("etcd-client", "kube-apiserver"),
            apiserver=ca.server("apiserver", "kube-apiserver", APISERVER_NAMES),
            kubelet_client=ca.client("kubelet-client", KUBELET_CLIENT, [ADMINS]),
            token_keys=token_keys,
            authentication=authentication,
            controllers=own[CONTROLLERS],
            scheduler=own[SCHEDULER],
            scheduler_config=scheduling,
        )

    def _authority(self) -> pki.Authority:
        return pki.Authority(self.folder.pki, "ca")


def _slug(user: str, groups: Sequence[str]) -> str:
    """Return a file name for an identity: readable, and different for different identities."""
    digest = hashlib.sha256("\0".join([user, *groups]).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', user)}-{digest}"
