"""A person's own way to the API server: the kubeconfig and context that kubectl would use."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import kube_config
from kubernetes.aio.config.config_exception import ConfigException

from controller.kube.connect import SERVICE_ACCOUNT, Connection, NoCredentials, connect


class BadKubeconfig(Exception):
    """The kubeconfig cannot be used; the message names the file and what is wrong with it."""


class NoContext(BadKubeconfig):
    """There is no such context. ``known``: those there are."""

    def __init__(self, message: str, known: tuple[str, ...]) -> None:
        super().__init__(message)
        self.known = known


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and where. ``namespace`` is the context's own, "default" where it names none."""

    connection: Connection
    namespace: str
    context: str
    server: str


def files(kubeconfig: str = "", environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the kubeconfig files that kubectl would merge: ``kubeconfig``, else ``KUBECONFIG``, else the
    default.

    Raises:
        NoCredentials: the file given does not exist, or none of ``KUBECONFIG`` does.
    """
    if kubeconfig:
        path = Path(kubeconfig).expanduser()
        if not path.is_file():
            raise NoCredentials(f"--kubeconfig {kubeconfig}: no such file")
        return [path]
    if listed := environ.get("KUBECONFIG", ""):
        found = [Path(text).expanduser() for text in listed.split(os.pathsep) if text]
        there = [path for path in found if path.is_file()]
        if not there:
            raise NoCredentials(f"KUBECONFIG={listed}: no such file")
        return there
    default = Path("~/.kube/config").expanduser()
    return [default] if default.is_file() else []


async def as_caller(
    kubeconfig: str = "", context: str = "", environ: Mapping[str, str] = os.environ
) -> Caller:
    """Return the connection kubectl would use with ``--kubeconfig`` and ``--context``; in a pod without a
    kubeconfig its service account.

    Raises:
        NoCredentials: neither kubeconfig nor service account.
        NoContext: no such context.
        BadKubeconfig: the kubeconfig cannot be read, or lacks what the context names.
    """
    paths = files(kubeconfig, environ)
    if not paths:
        if not (environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").is_file()):
            raise NoCredentials(
                "there is no kubeconfig: KUBECONFIG is not set, ~/.kube/config does not exist"
            )
        connection = await connect({**environ, "KUBECONFIG": ""})
        here = SERVICE_ACCOUNT / "namespace"
        namespace = here.read_text().strip() if here.is_file() else "default"
        return Caller(connection, namespace, "", connection.configuration.host)
    listed = os.pathsep.join(map(str, paths))
    chosen = _chosen(paths, context)
    configuration = Configuration()
    configuration.proxy = None
    # The loader logs what an exec plugin said and goes on without credentials; the server then says 401.
    logging.getLogger(kube_config.__name__).setLevel(logging.ERROR)
    folder = tempfile.mkdtemp(prefix="evalstop-kubeconfig-")  # inline certificates: nobody else can read it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=listed,
            context=chosen["name"],
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=folder,
        )
    except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise BadKubeconfig(f"kubeconfig {listed}: context {chosen['name']!r}: {error}") from error
    host = urlsplit(configuration.host).hostname or ""
    # As kubectl does it: proxies of the environment count, but never for this machine itself.
    configuration.client_session_kwargs = {"trust_env": host not in ("127.0.0.1", "localhost", "::1")}

    def token() -> str | None:
        value = configuration.api_key.get("BearerToken")
        return value.split(" ", 1)[-1] if value else None

    namespace = (chosen.get("context") or {}).get("namespace") or "default"
    connection = Connection(configuration, f"kubeconfig {listed}", token)
    return Caller(connection, namespace, chosen["name"], configuration.host)


def contexts(paths: list[Path]) -> tuple[list[dict[str, Any]], str]:
    """Return all contexts of some kubeconfigs, the first of a name wins, and the name of the current one.

    Raises:
        BadKubeconfig: a file is no kubeconfig.
    """
    found: dict[str, dict[str, Any]] = {}
    current = ""
    for path in paths:
        try:
            content = yaml.safe_load(path.read_text())
            if not isinstance(content, dict):
                raise ValueError("expected a YAML mapping with clusters, users and contexts")
            for entry in content.get("contexts") or []:
                found.setdefault(str(entry["name"]), entry)
            current = current or str(content.get("current-context") or "")
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            raise BadKubeconfig(f"kubeconfig {path}: {error}") from error
    return list(found.values()), current


def _chosen(paths: list[Path], context: str) -> dict[str, Any]:
    found, current = contexts(paths)
    wanted = context or current
    listed = ", ".join(map(str, paths))
    names = tuple(str(entry["name"]) for entry in found)
    if not wanted:
        raise NoContext(f"kubeconfig {listed} has no current context", names)
    for entry in found:
        if entry["name"] == wanted:
            return entry
    raise NoContext(f"kubeconfig {listed} has no context {wanted!r}", names)
