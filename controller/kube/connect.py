"""Credentials: one reading of kubeconfig or service account, used by the API client and by the watcher."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp.connector import Connection as Connection_
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_PERIOD = 60.0  # s: a projected token is rotated long before it expires, a minute late is early enough


class NoCredentials(Exception):
    """No usable kubeconfig or service account; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the API server. ``configuration`` refreshes its bearer token from the file by itself."""

    configuration: Configuration
    origin: str  # for logs: "kubeconfig /path" or "service account /path"
    read_token: Callable[[], str | None]  # the bearer token as it is now, without scheme


class Answer(aiohttp.ClientResponse):
    """An HTTP response that knows over which connection it came, also when that is already given back."""

    came_over = ""  # both ends' addresses

    async def start(self, connection: Connection_) -> aiohttp.ClientResponse:
        transport = connection.transport
        if transport is not None:
            ends = (transport.get_extra_info(end) for end in ("sockname", "peername"))
            self.came_over = " ".join(map(str, ends))
        return await super().start(connection)


async def connect(
    environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
) -> Connection:
    """``KUBECONFIG`` if set, else the pod's service account, else ``~/.kube/config``.

    An explicit ``KUBECONFIG`` goes first so that a developer inside a pod can point elsewhere; in a
    Deployment it is not set.

    Raises:
        NoCredentials: none of the three is there.
    """
    path = _choose(environ, service_account)
    if path is None:
        return _in_cluster(environ, service_account)
    configuration = _configuration()
    # The loader writes inline certificates to files: into a folder of our own that nobody else can read.
    folder = tempfile.mkdtemp(prefix="evalstop-kubeconfig-")
    await config.load_kube_config(  # type: ignore[no-untyped-call]
        config_file=str(path), client_configuration=configuration, temp_file_path=folder
    )

    def token() -> str | None:
        value = configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization")
        return value.split(" ", 1)[-1] if value else None

    return Connection(configuration, f"kubeconfig {path}", token)


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


def _in_cluster(environ: Mapping[str, str], folder: Path) -> Connection:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    configuration = _configuration()
    configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    configuration.ssl_ca_cert = str(folder / "ca.crt")
    read_at = float("-inf")

    def token() -> str:
        text = (folder / "token").read_text().strip()
        if not text:
            raise NoCredentials(f"{folder / 'token'} is empty; the kubelet writes the pod's token there")
        return text

    def refresh(target: Configuration) -> None:
        nonlocal read_at
        now = time.monotonic()
        if now - read_at >= TOKEN_PERIOD:
            target.api_key["BearerToken"] = f"Bearer {token()}"
            read_at = now

    refresh(configuration)
    configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]
    return Connection(configuration, f"service account {folder}", token)


def _configuration() -> Configuration:
    configuration = Configuration()
    configuration.proxy = None
    # No bound: each watch keeps its connection, and with a hundred of them nothing else would get one.
    configuration.connection_pool_maxsize = 0
    # The API server is named by address.
    configuration.client_session_kwargs = {"trust_env": False, "response_class": Answer}
    return configuration
