"""Builds the images: ``python -m deploy.images.build`` (`make images`).

From the environment: ``BASE_IMAGE`` (the Dockerfile's own if it is not set) and ``IMAGE_BUILD_FLAGS`` (more
flags of ``docker build``).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from controller.names import OPERATOR_IMAGE, TRAINER_IMAGE
from deploy.local.agent.images import REPOSITORY
from deploy.local.errors import PlaneError

DOCKERFILE = REPOSITORY / "deploy" / "images" / "Dockerfile"
TARGETS = {"operator": OPERATOR_IMAGE, "trainer": TRAINER_IMAGE}


def tag() -> str:
    """The version that the images carry: that of the sample manifests and the chart."""
    return metadata.version("evalstop")


def command(target: str, environ: Mapping[str, str]) -> list[str]:
    """The `docker build` of one image."""
    base = environ.get("BASE_IMAGE")
    return [
        *("docker", "build", "--file", str(DOCKERFILE), "--target", target),
        *("--tag", f"{TARGETS[target]}:{tag()}"),
        *(["--build-arg", f"BASE_IMAGE={base}"] if base else []),
        *shlex.split(environ.get("IMAGE_BUILD_FLAGS", "")),
        str(REPOSITORY),
    ]


def build(environ: Mapping[str, str] = os.environ) -> None:
    """Build every image. Errors: PlaneError with docker's last words."""
    if shutil.which("docker", path=environ.get("PATH")) is None:
        raise PlaneError("no docker on PATH: images are built by `docker build`")
    for target, name in TARGETS.items():
        done = run(command(target, environ), environ)
        if done.returncode != 0:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise PlaneError(
                f"image {name} could not be built:\n{last}\n"
                "Without a container registry: BASE_IMAGE=<a local image with Python 3.11 or newer and pip>."
            )


def identities(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Each image, by name with tag -> its id. Errors: PlaneError: one is not there."""
    found = {}
    for name in (f"{name}:{tag()}" for name in TARGETS.values()):
        asked = run(["docker", "image", "inspect", "--format", "{{.Id}}", name], environ)
        if asked.returncode != 0:
            raise PlaneError(f"no image {name} on this machine (`make images`): {asked.stderr.strip()}")
        found[name] = asked.stdout.strip()
    return found


def run(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, env=dict(environ))


def main() -> int:
    try:
        build()
        for name, identity in identities().items():
            print(f"{name}  {identity}")
    except PlaneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
