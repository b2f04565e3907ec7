"""An archive for `docker load`: a base image with layers put upon it, its configuration decided here.

Docker names an image by the digest of its configuration, which lists the digests of its layers: made from the
same things twice it is the same image.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.images.base import BaseImage
from deploy.images.install import PREFIX
from deploy.images.layers import MTIME, Layer
from deploy.images.roles import Role

USER = "65532:65532"  # nobody's: without a name, a home or a password
_PATH = "/usr/local/bin:/usr/bin:/bin"
_OURS = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}


@dataclass(frozen=True)
class Image:
    """One image. ``identity``: of docker, the digest of its configuration, "sha256:…"."""

    role: str
    name: str
    configuration: bytes
    layers: Sequence[Layer]

    @property
    def identity(self) -> str:
        return "sha256:" + hashlib.sha256(self.configuration).hexdigest()


def image(
    role: str,
    name: str,
    of: Role,
    base: BaseImage,
    layers: Sequence[Layer],
    labels: Mapping[str, str],
    epoch: int,
) -> Image:
    """Return the image of a role. ``epoch``: SOURCE_DATE_EPOCH, when it was made as far as anybody is
    told."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    theirs = dict(line.split("=", 1) for line in base.config.get("config", {}).get("Env") or ())
    variables = {
        **theirs,
        **_OURS,
        **of.variables,
        "PATH": f"/{PREFIX}/bin:{theirs.get('PATH', _PATH)}",
    }
    history = [*base.config.get("history", ())]
    history += [{"created": created, "created_by": f"deploy.images {layer.name}"} for layer in layers]
    made: dict[str, Any] = {
        key: base.config[key] for key in ("architecture", "os", "variant") if key in base.config
    }
    made |= {
        "created": created,
        "config": {
            "User": USER,
            "Env": [f"{key}={value}" for key, value in sorted(variables.items())],
            "Cmd": list(of.command),
            "WorkingDir": "/tmp",
            "Labels": dict(sorted(labels.items())),
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": base.diff_ids + [f"sha256:{layer.digest}" for layer in layers],
        },
        "history": history,
    }
    return Image(role, name, json.dumps(made, sort_keys=True).encode(), tuple(layers))


def write(images: Sequence[Image], base: BaseImage, path: Path) -> None:
    """Write all images, which share the base's layers and perhaps others, into one archive."""
    manifest = []
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        with tarfile.open(base.archive) as source:
            for layer in base.layers:
                member = source.getmember(layer)
                content = source.extractfile(member)
                member.name = _base_layer(layer)
                tar.addfile(member, content)
        for put in {layer.digest: layer for image in images for layer in image.layers}.values():
            with put.path.open("rb") as file:
                _add(tar, f"{put.digest}.tar", put.size, file)
        for image in images:
            config = image.identity.removeprefix("sha256:") + ".json"
            _add(tar, config, len(image.configuration), io.BytesIO(image.configuration))
            names = [_base_layer(layer) for layer in base.layers]
            names += [f"{put.digest}.tar" for put in image.layers]
            manifest.append({"Config": config, "RepoTags": [image.name], "Layers": names})
        text = json.dumps(manifest).encode()
        _add(tar, "manifest.json", len(text), io.BytesIO(text))


def _base_layer(name: str) -> str:
    return "base-" + name.replace("/", "-")


def _add(tar: tarfile.TarFile, name: str, size: int, content: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, MTIME
    tar.addfile(member, content)
