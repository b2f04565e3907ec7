"""Local environments that stand in for container images: the explicit table, and nothing outside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.images.named import IMAGES
from deploy.images.roles import ROLES

REPOSITORY = Path(__file__).resolve().parents[3]
# What the environments of the table run from: this code, its virtual environment, the interpreter behind it.
FOLDERS = tuple(
    sorted(
        {
            str(REPOSITORY),
            *(f(p) for f in (os.path.abspath, os.path.realpath) for p in (sys.prefix, sys.base_prefix)),
        }
    )
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Environment:
    """Start command, working directory and environment variables, as an image's configuration would have
    them."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    working_dir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)


def python_environment(python: str = sys.executable, cmd: tuple[str, ...] = ("python",)) -> Environment:
    """Return this repository as an image would hold it: `python` is `python`, its packages are importable."""
    folder = os.path.dirname(os.path.abspath(python))
    return Environment(
        cmd=cmd,
        env={
            "PATH": f"{folder}:{_SYSTEM_PATH}",
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'clients' / 'python'}",
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
            "HOME": "/root" if os.geteuid() == 0 else os.path.expanduser("~"),
        },
    )


#: Image name, without registry tag or digest -> environment. The images of the shipped manifests.
TABLE: Mapping[str, Environment] = {
    name: python_environment(cmd=ROLES[role].command) for role, name in IMAGES.items()
}


class UnmappedImage(LookupError):
    """No local environment stands in for this image; the message names the image and the table."""


def base_name(image: str) -> str:
    """Return an image reference without tag and digest: ``host:5000/a/b:v1@sha256:…`` ->
    ``host:5000/a/b``."""
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def environment_for(image: str, extra: Mapping[str, Environment] | None = None) -> Environment:
    """Return the environment that stands in for `image`; entries of `extra` come first. Raises
    UnmappedImage."""
    name = base_name(image)
    for table in (extra or {}, TABLE):
        if name in table:
            return table[name]
    known = ", ".join(sorted({*TABLE, *(extra or {})}))
    raise UnmappedImage(
        f"image {image!r} is not in the table of deploy/local/agent/images.py; "
        f"this development node runs local processes only, in the environments of: {known}"
    )
