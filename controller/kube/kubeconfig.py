"""A person's own way to the API server: the kubeconfig and context that kubectl would use.

Read here and not by the package `kubernetes`: loading that takes longer than all else a command does, and it
writes keys that a kubeconfig holds into files.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from controller.frozen import dataclass
from controller.kube import credential_plugin
from controller.kube.connection import (
    SERVICE_ACCOUNT,
    Connection,
    NoCredentials,
    bearer_of,
    in_cluster,
    tls_context,
)
from controller.kube.credential_plugin import NotLoggedIn

# The reader in C where PyYAML has it: certificates are long.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KINDS = ("clusters", "contexts", "users")


class BadKubeconfig(Exception):
    """The kubeconfig cannot be used; the message names the file and what is wrong with it."""


class NoContext(BadKubeconfig):
    """There is no such context. ``known``: those there are."""

    def __init__(self, message: str, known: tuple[str, ...]) -> None:
        super().__init__(message)
        self.known = known


class PluginRefused(BadKubeconfig):
    """The program that the kubeconfig names for credentials gave none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A user of an API server. ``namespace`` is the context's own, "default" where it names none."""

    connection: Connection
    namespace: str
    context: str
    server: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cluster, a context or a user of a kubeconfig; relative paths begin at the file's ``folder``."""

    name: str
    content: Mapping[str, Any]
    folder: Path

    def read(self, field: str) -> bytes:
        """Return what a field names: by ``field``-data itself, by ``field`` a file; b"": neither."""
        if inline := self.content.get(f"{field}-data"):
            try:
                return base64.b64decode(str(inline), validate=True)
            except ValueError as error:
                raise ValueError(f"{self.name}: {field}-data is not base64 ({error})") from None
        if path := self.content.get(field):
            return self.path(str(path)).read_bytes()
        return b""

    def path(self, text: str) -> Path:
        """Return a path that the kubeconfig names."""
        return self.folder / Path(text).expanduser()


def _no_file(path: Path) -> str:
    return "it is a folder, expected a file" if path.is_dir() else "no such file"


def files(kubeconfig: str = "", environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the kubeconfig files that kubectl would merge: ``kubeconfig``, else ``KUBECONFIG``, else the
    default.

    Raises:
        NoCredentials: the file given does not exist, or none of ``KUBECONFIG`` does.
    """
    if kubeconfig:
        path = Path(kubeconfig).expanduser()
        if not path.is_file():
            raise NoCredentials(f"--kubeconfig {kubeconfig}: {_no_file(path)}")
        return [path]
    if listed := environ.get("KUBECONFIG", ""):
        found = [Path(text).expanduser() for text in listed.split(os.pathsep) if text]
        there = [path for path in found if path.is_file()]
        if not there:
            raise NoCredentials(f"KUBECONFIG={listed}: {_no_file(found[0])}")
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
        PluginRefused: the program that is to give credentials gave none.
        BadKubeconfig: the kubeconfig cannot be read, or lacks what the context names.
    """
    paths = files(kubeconfig, environ)
    if paths:
        return await caller(paths, context, by_environment=True)
    if not (environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").is_file()):
        raise NoCredentials("there is no kubeconfig: KUBECONFIG is not set, ~/.kube/config does not exist")
    connection = in_cluster(environ)
    here = SERVICE_ACCOUNT / "namespace"
    namespace = here.read_text().strip() if here.is_file() else "default"
    return Caller(connection, namespace, "", connection.server)


async def caller(paths: list[Path], context: str = "", *, by_environment: bool = False) -> Caller:
    """Return whom a context of some kubeconfigs names, "" being the current one, and its way to the server.

    Args:
        paths: files, merged as kubectl does it: the first that has a name wins.
        context: name of a context.
        by_environment: whether the environment's proxies count, as they do for kubectl.

    Raises: NoContext, PluginRefused, BadKubeconfig.
    """
    merged, current = _merged(paths)
    listed = os.pathsep.join(map(str, paths))
    chosen = _chosen(merged["contexts"], context or current, ", ".join(map(str, paths)))
    names: Mapping[str, Any] = chosen.content
    try:
        cluster = _named(merged["clusters"], names.get("cluster"), "cluster")
        user = _named(merged["users"], names["user"], "user") if names.get("user") else None
        connection = await _connection(cluster, user, f"kubeconfig {listed}", by_environment)
    except NotLoggedIn as error:
        raise PluginRefused(f"kubeconfig {listed}: context {chosen.name!r}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadKubeconfig(f"kubeconfig {listed}: context {chosen.name!r}: {error}") from error
    return Caller(connection, str(names.get("namespace") or "default"), chosen.name, connection.server)


def contexts(paths: list[Path]) -> tuple[list[str], str]:
    """Return the names of all contexts of some kubeconfigs, and that of the current one.

    Raises:
        BadKubeconfig: a file is no kubeconfig.
    """
    merged, current = _merged(paths)
    return list(merged["contexts"]), current


def _merged(paths: list[Path]) -> tuple[dict[str, dict[str, _Entry]], str]:
    """Return clusters, contexts and users by name, and the name of the current context."""
    found: dict[str, dict[str, _Entry]] = {kind: {} for kind in _KINDS}
    current = ""
    for path in paths:
        try:
            content = yaml.load(path.read_text(), _LOADER)
            if not isinstance(content, dict):
                raise ValueError("expected a YAML mapping with clusters, users and contexts")
            for kind in _KINDS:
                for entry in content.get(kind) or []:
                    name = str(entry["name"])
                    inside = entry.get(kind.removesuffix("s")) or {}
                    if not isinstance(inside, dict):
                        raise ValueError(f"{kind}: {name} is no mapping")
                    found[kind].setdefault(name, _Entry(name, inside, path.absolute().parent))
            current = current or str(content.get("current-context") or "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise BadKubeconfig(f"kubeconfig {path}: {error}") from error
    return found, current


def _chosen(found: Mapping[str, _Entry], wanted: str, listed: str) -> _Entry:
    if not wanted:
        raise NoContext(f"kubeconfig {listed} has no current context", tuple(found))
    if wanted not in found:
        raise NoContext(f"kubeconfig {listed} has no context {wanted!r}", tuple(found))
    return found[wanted]


def _named(found: Mapping[str, _Entry], name: Any, kind: str) -> _Entry:
    if str(name) not in found:
        there = ", ".join(sorted(found)) or "none"
        raise ValueError(f"it names the {kind} {name!r}, and there is none of that name (there are: {there})")
    return found[str(name)]


async def _connection(cluster: _Entry, user: _Entry | None, origin: str, by_environment: bool) -> Connection:
    server = str(cluster.content.get("server") or "").rstrip("/")
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"cluster {cluster.name}: server is {server!r}, expected https://HOST:PORT")
    authorization, certificate, key = await _credentials(cluster, user)
    context = None
    if parts.scheme == "https":
        context = tls_context(
            cluster.read("certificate-authority"),
            certificate,
            key,
            verify=not cluster.content.get("insecure-skip-tls-verify"),
        )
    return Connection(
        server,
        origin,
        authorization,
        context,
        str(cluster.content.get("tls-server-name") or ""),
        str(cluster.content.get("proxy-url") or ""),
        # As kubectl does it: proxies of the environment count, but never for this machine itself.
        environment=by_environment and parts.hostname not in ("127.0.0.1", "localhost", "::1"),
    )


async def _credentials(cluster: _Entry, user: _Entry | None) -> tuple[Callable[[], str], bytes, bytes]:
    """Return what the header Authorization is read from, and the caller's certificate and key (PEM)."""
    if user is None:
        return (lambda: ""), b"", b""
    given = user.content
    certificate, key = user.read("client-certificate"), user.read("client-key")
    if given.get("exec"):
        shown = await credential_plugin.run(given["exec"], cluster.content, user.folder)
        certificate, key = shown.certificate or certificate, shown.key or key
        return _fixed(f"Bearer {shown.token}" if shown.token else ""), certificate, key
    if given.get("auth-provider"):
        token = await credential_plugin.by_provider(given["auth-provider"])
        return _fixed(f"Bearer {token}"), certificate, key
    if given.get("tokenFile"):
        return bearer_of(user.path(str(given["tokenFile"]))), certificate, key
    if given.get("token"):
        return _fixed(f"Bearer {given['token']}"), certificate, key
    if given.get("username") and given.get("password"):
        pair = base64.b64encode(f"{given['username']}:{given['password']}".encode()).decode()
        return _fixed(f"Basic {pair}"), certificate, key
    return _fixed(""), certificate, key


def _fixed(header: str) -> Callable[[], str]:
    return lambda: header
