"""Credentials of a process of ours: the kubeconfig it is told to use, or its pod's service account."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from controller.kube import kubeconfig
from controller.kube.connection import SERVICE_ACCOUNT, Connection, NoCredentials, in_cluster


async def connect(
    environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
) -> Connection:
    """``KUBECONFIG`` if set, else the pod's service account, else ``~/.kube/config``.

    An explicit ``KUBECONFIG`` goes first so that a developer inside a pod can point elsewhere; in a
    Deployment it is not set.

    Raises:
        NoCredentials: none of the three is there, or it cannot be used.
    """
    path = _choose(environ, service_account)
    if path is None:
        return in_cluster(environ, service_account)
    try:
        return (await kubeconfig.caller([path])).connection
    except kubeconfig.BadKubeconfig as error:
        raise NoCredentials(str(error)) from error


def _choose(environ: Mapping[str, str], service_account: Path) -> Path | None:
    """Return the kubeconfig to read; None: the service account."""
    token, default = service_account / "token", Path("~/.kube/config").expanduser()
    if explicit := environ.get("KUBECONFIG", ""):
        path = Path(explicit).expanduser()
        if not path.is_file():
            raise NoCredentials(f"KUBECONFIG={explicit}: no such file; one kubeconfig file is expected")
        return path
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if host and environ.get("KUBERNETES_SERVICE_PORT", "") and token.is_file():
        return None
    if default.is_file():
        return default
    given = "exists" if token.is_file() else "does not exist"
    raise NoCredentials(
        f"no way to the API server: KUBECONFIG is not set; KUBERNETES_SERVICE_HOST is {host or 'not set'} "
        f"and the token file {token} {given}; {default} does not exist"
    )
