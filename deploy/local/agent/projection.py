"""Volumes that show what the API knows: ConfigMaps, Secrets, pod fields, tokens; refreshed atomically."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path

from controller.kube.client import Object
from controller.kube.errors import ApiError
from deploy.local.agent import atomic
from deploy.local.agent.context import Node
from deploy.local.agent.env import ConfigError, field_value, resource_value
from deploy.local.agent.sources import Token
from deploy.local.agent.users import token_user, volume_group

log = logging.getLogger(__name__)

#: What a projected volume can be made of here.
SOURCES = frozenset({"configMap", "secret", "downwardAPI", "serviceAccountToken"})
_RESOURCES = {"configMap": "configmaps", "secret": "secrets"}
_RETRY = 2.0  # s


class VolumeError(Exception):
    """A volume cannot be made (yet); the message says why."""


def sources_of(kind: str, source: Object) -> list[Object]:
    """Return the sources of a projected volume; a configMap, secret or downwardAPI volume has a single
    one."""
    if kind == "projected":
        return list(source.get("sources") or [])
    if kind == "secret":
        return [{"secret": {**source, "name": source["secretName"]}}]
    return [{kind: source}]


class Projection:
    """One folder of files, made of `sources`, written anew when one of them changes."""

    def __init__(
        self, node: Node, pod: Object, folder: Path, sources: list[Object], default_mode: int | None
    ) -> None:
        self._node = node
        self._pod = pod
        self._folder = folder
        self._sources = sources
        self._mode = 0o644 if default_mode is None else default_mode
        self._user = token_user(pod) if node.changes_users else None
        self._group = volume_group(pod) if node.changes_users else None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._undo: list[Callable[[], None]] = []
        self._tokens: dict[str, Token] = {}  # by path
        self._expanded_fields = any("downwardAPI" in source for source in sources)

    async def start(self) -> None:
        """Write the files for the first time and keep them fresh. Raises VolumeError."""
        namespace = self._pod["metadata"]["namespace"]
        for source in self._sources:
            for kind, resource in _RESOURCES.items():
                if kind in source:
                    wanted = (resource, namespace, source[kind]["name"], self._changed.set)
                    self._node.objects.subscribe(*wanted)
                    self._undo.append(functools.partial(self._node.objects.unsubscribe, *wanted))
            if token := source.get("serviceAccountToken"):
                seconds = int(token.get("expirationSeconds") or 3600)
                self._tokens[token["path"]] = Token(
                    self._node.api, self._pod, token.get("audience") or "", seconds
                )
        try:
            self._write(await self._render())
        except (ApiError, TimeoutError, ConfigError) as error:
            raise VolumeError(str(error)) from error
        self._task = asyncio.create_task(self._keep_fresh(), name=f"volume {self._folder}")

    def pod_changed(self, pod: Object) -> None:
        self._pod = pod
        if self._expanded_fields:
            self._changed.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for undo in self._undo:
            undo()
        self._undo.clear()

    async def _keep_fresh(self) -> None:
        while True:
            renew = min((token.renew_at for token in self._tokens.values()), default=None)
            wait = None if renew is None else max(renew - time.time(), 0.0)
            with contextlib.suppress(TimeoutError):  # then a token is to be renewed
                await asyncio.wait_for(self._changed.wait(), wait)
            self._changed.clear()
            try:
                self._write(await self._render())
            except (VolumeError, ConfigError, ApiError, TimeoutError, OSError) as error:
                # As kubelet: what is there stays, also when its ConfigMap is deleted.
                log.debug("volume %s stays as it is: %s", self._folder, error)
                await asyncio.sleep(_RETRY)
                if any(time.time() >= token.renew_at for token in self._tokens.values()):
                    self._changed.set()

    def _write(self, files: dict[str, atomic.File]) -> None:
        atomic.write(self._folder, {name: self._for_group(file) for name, file in files.items()})

    def _for_group(self, file: atomic.File) -> atomic.File:
        """Return a file as kubelet gives it to the pod's fsGroup, who may read it whatever its mode says."""
        if self._group is None:
            return file
        return file._replace(mode=file.mode | 0o440, group=self._group)

    def _token(self, text: str) -> atomic.File:
        """Return a token's file: its user's alone where the pod has one user or a group, else for all."""
        secret = not self._node.changes_users or (self._user, self._group) != (None, None)
        return atomic.File(text.encode(), 0o600 if secret else self._mode, self._user)

    async def _render(self) -> dict[str, atomic.File]:
        files: dict[str, atomic.File] = {}
        for source in self._sources:
            for kind, resource in _RESOURCES.items():
                if kind in source:
                    files.update(await self._keys(resource, source[kind]))
            if (fields := source.get("downwardAPI")) is not None:
                files.update(self._fields(fields))
            if token := source.get("serviceAccountToken"):
                files[token["path"]] = self._token(await self._tokens[token["path"]].current())
        return files

    async def _keys(self, resource: str, reference: Object) -> dict[str, atomic.File]:
        item = await self._node.objects.current(
            resource, self._pod["metadata"]["namespace"], reference["name"]
        )
        optional = bool(reference.get("optional"))
        if item is None:
            if optional:
                return {}
            raise VolumeError(f"{resource[:-1]} {reference['name']!r} not found")
        if resource == "secrets":
            data = {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
        else:
            data = {key: value.encode() for key, value in (item.get("data") or {}).items()}
            binary = item.get("binaryData") or {}
            data.update({key: base64.b64decode(value) for key, value in binary.items()})
        if not reference.get("items"):
            return {key: atomic.File(content, self._mode) for key, content in data.items()}
        files = {}
        for entry in reference["items"]:
            if entry["key"] in data:
                mode = entry.get("mode")
                files[entry["path"]] = atomic.File(data[entry["key"]], self._mode if mode is None else mode)
            elif not optional:
                raise VolumeError(f"{resource[:-1]} {reference['name']!r} has no key {entry['key']!r}")
        return files

    def _fields(self, source: Object) -> dict[str, atomic.File]:
        files = {}
        for entry in source.get("items") or []:
            if field := entry.get("fieldRef"):
                text = field_value(self._pod, field["fieldPath"])
            else:
                reference = entry["resourceFieldRef"]
                text = resource_value(
                    self._pod, reference.get("containerName", ""), reference, dict(self._node.allocatable)
                )
            mode = entry.get("mode")
            files[entry["path"]] = atomic.File(text.encode(), self._mode if mode is None else mode)
        return files
