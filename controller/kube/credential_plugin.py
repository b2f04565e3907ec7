"""Credentials that a kubeconfig does not hold but has a program or a provider make (client-go's exec plugins,
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from controller import bounded

_REPEATED = 300  # characters of a plugin's own words that an error repeats
_MOST = 1 << 20  # bytes of a plugin's answer: certificates are long


class NotLoggedIn(Exception):
    """No credentials came; the message names the program and has its own last words."""


class Credentials(NamedTuple):
    """A plugin's answer: a token, or a certificate with its key (PEM)."""

    token: str
    certificate: bytes
    key: bytes


async def run(plugin: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path) -> Credentials:
    """Return what a credential plugin gives.

    Args:
        plugin: ``exec`` of a user in a kubeconfig: apiVersion, command, args, env.
        cluster: the cluster of the context, which the plugin is told if it asks for it.
        folder: of the kubeconfig: a command with a slash that is no whole path begins there.

    Raises:
        NotLoggedIn: it cannot be run, fails, or what it prints is no ExecCredential.
        KeyError: it lacks command or apiVersion.
    """
    import shutil

    version, command = str(plugin["apiVersion"]), str(plugin["command"])
    spec: dict[str, Any] = {"interactive": sys.stdin is not None and sys.stdin.isatty()}
    if plugin.get("interactiveMode") == "Never":
        spec["interactive"] = False
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = dict(cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    environ = {**os.environ, **{str(e["name"]): str(e["value"]) for e in plugin.get("env") or ()}}
    environ["KUBERNETES_EXEC_INFO"] = json.dumps(info)
    program = str(folder / command) if os.sep in command else shutil.which(command)
    hint = f"; {plugin['installHint']}" if plugin.get("installHint") else ""
    if program is None:
        raise NotLoggedIn(f"the program {command}, which gives credentials, is not installed{hint}")
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *map(str, plugin.get("args") or ()),
            env=environ,
            stdin=None if spec["interactive"] else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NotLoggedIn(f"the program {command}, which gives credentials: {error}{hint}") from error
    answer, words = await process.communicate()
    if process.returncode != 0:
        output = words.decode("utf-8", "replace").strip()[-_REPEATED:]
        raise NotLoggedIn(
            f"{command}, which gives credentials, ended with exit code {process.returncode}"
            + (f": {output}" if output else "")
        )
    return _credentials(answer, version, command)


def _credentials(answer: bytes, version: str, command: str) -> Credentials:
    try:
        found = bounded.load(answer, f"the answer of {command}", _MOST)
        if not isinstance(found, dict) or not isinstance(found.get("status"), dict):
            raise ValueError(f"the answer of {command} has no status")
        if found.get("apiVersion") != version:
            raise ValueError(
                f"{command} answers in {found.get('apiVersion')}, the kubeconfig asks for {version}"
            )
    except ValueError as error:
        raise NotLoggedIn(str(error)) from None
    status = found["status"]
    given = Credentials(
        str(status.get("token") or ""),
        str(status.get("clientCertificateData") or "").encode(),
        str(status.get("clientKeyData") or "").encode(),
    )
    if not given.token and not (given.certificate and given.key):
        raise NotLoggedIn(f"{command} gave neither a token nor a certificate with its key")
    return given


async def by_provider(provider: Mapping[str, Any]) -> str:
    """Return the token of an ``auth-provider`` (oidc, gcp), the older way, asked anew where it has expired.

    The package `kubernetes` knows them; it is loaded for this alone, and sees nothing that it would write to
    a file.

    Raises:
        NotLoggedIn: there is none, or the provider said no.
    """
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    name = "here"
    given = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": "http://nowhere"}}],
        "users": [{"name": name, "user": {"auth-provider": dict(provider)}}],
    }
    found = Configuration()
    try:
        await config.load_kube_config_from_dict(given, client_configuration=found)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a provider's own library raises
        raise NotLoggedIn(f"auth-provider {provider.get('name')}: {error}") from error
    header = str(found.api_key.get("BearerToken") or "")
    if not header:
        raise NotLoggedIn(
            f"auth-provider {provider.get('name')}: it is not known; an exec plugin is expected"
        )
    return header.partition(" ")[2]
