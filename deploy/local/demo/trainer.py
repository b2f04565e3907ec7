"""Read the trainer's part of an RLHFJob's template: command-line flags, and the folders of its volumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

Manifest = Mapping[str, Any]


def _container_of(job: Manifest) -> Manifest:
    """Return the first container of an RLHFJob's template."""
    containers: Sequence[Manifest] = _pod_spec(job).get("containers") or ({},)
    return containers[0]


def _pod_spec(job: Manifest) -> Manifest:
    spec: Manifest = job["spec"]["workload"]["template"]["spec"]["template"]["spec"]
    return spec


def volume_path(job: Manifest, path: str) -> tuple[str, str] | None:
    """Return a path in the trainer's container as (claim, path in the volume); None: it is on no claim."""
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in _pod_spec(job).get("volumes") or ()
        if "persistentVolumeClaim" in v
    }
    wanted = PurePosixPath(path)
    for mount in _container_of(job).get("volumeMounts") or ():
        if mount["name"] in claims and wanted.is_relative_to(mount["mountPath"]):
            inside = PurePosixPath(mount.get("subPath", "")) / wanted.relative_to(mount["mountPath"])
            return claims[mount["name"]], str(inside)
    return None


def option(job: Manifest, flag: str) -> str | None:
    """Return the value of a trainer's command-line flag, ``--flag value`` or ``--flag=value``."""
    container = _container_of(job)
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            return str(words[i + 1])
        if word.startswith(flag + "="):
            return str(word.removeprefix(flag + "="))
    return None


def recorded_proxies(job: Manifest, folder: Callable[[str], Path]) -> list[tuple[int, float]]:
    """Return (step, proxy reward) of every eval in the trainer's ``--record`` file.

    ``folder`` gives a claim's folder on this machine. Empty: the trainer keeps no record on a volume.
    """
    path = option(job, "--record")
    found_at = volume_path(job, path) if path else None
    if found_at is None:
        return []
    claim, inside = found_at
    file = folder(claim) / inside
    if not file.is_file():
        return []
    found: dict[int, float] = {}
    for line in file.read_text().splitlines():
        try:
            entry = json.loads(line)
            found[int(entry["step"])] = float(entry["proxy"])
        except (ValueError, KeyError, TypeError):
            continue  # the line that SIGKILL cut off
    return sorted(found.items())
