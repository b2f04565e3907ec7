"""Size that each image adds to its base: ``python -m deploy.images.sizes [--before COMMIT]``.

In megabytes, of files as they lie unpacked on a node. --before: builds the operator's image as it was at that
commit, from the same base and by that commit's own Dockerfile, and compares.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.images import build
from deploy.images.docker import Docker
from deploy.images.named import IMAGES
from deploy.local.agent.images import REPOSITORY
from deploy.local.errors import PlaneError


def above(docker: Docker, image: str, base: str) -> int:
    """Bytes of an image that are not its base's. Errors: PlaneError: one of them is not here."""
    return int(docker.image(image)["Size"]) - int(docker.image(base)["Size"])


def base_of(docker: Docker, image: str) -> str:
    """Return the id of the base that an image says it was built from. Errors: PlaneError."""
    return str(docker.image(image)["Config"]["Labels"]["org.opencontainers.image.base.digest"])


def operator_at(docker: Docker, commit: str, base: str, environ: Mapping[str, str]) -> str:
    """Return the name of the operator's image of a commit, built by that commit's Dockerfile. Errors:
    PlaneError."""
    words = ["git", "-C", str(REPOSITORY), "rev-parse", "--verify", f"{commit}^{{commit}}"]
    found = subprocess.run(words, capture_output=True, text=True)
    if found.returncode != 0:
        raise PlaneError(f"--before: {commit!r} is no commit here: {found.stderr.strip()}")
    name = f"evalstop/operator-before:{found.stdout[:12]}"
    named = docker.tag(base, f"evalstop/base:{base.removeprefix('sha256:')[:12]}")
    with tempfile.TemporaryDirectory() as folder:
        words = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commit]
        archive = subprocess.run(words, capture_output=True)
        if archive.returncode != 0:
            raise PlaneError(f"{' '.join(words)}: {archive.stderr.decode(errors='replace').strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        dockerfile = Path(folder, "deploy", "images", "Dockerfile")
        flags = shlex.split(environ.get("IMAGE_BUILD_FLAGS", ""))
        words = ["docker", "build", "--quiet", "--file", str(dockerfile), "--target", "operator"]
        words += ["--build-arg", f"BASE_IMAGE={named}", "--tag", name, *flags, folder]
        done = subprocess.run(words, capture_output=True, text=True, env=dict(environ))
    if done.returncode != 0:
        raise PlaneError(f"the operator's image of {commit} could not be built:\n{done.stderr[-2000:]}")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.images.sizes", description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="compare with the operator's image of that commit")
    given = parser.parse_args(arguments)
    try:
        docker = Docker()
        names = {role: build.tagged(name) for role, name in IMAGES.items()}
        base = base_of(docker, names["operator"])
        sizes = {role: above(docker, name, base) for role, name in names.items()}
        for role, size in sizes.items():
            print(f"{names[role]:32} {size / 1e6:6.1f} MB above the base")
        if given.before:
            before = above(docker, operator_at(docker, given.before, base, os.environ), base)
            share = 100 * sizes["operator"] / before
            print(f"{'operator at ' + given.before:32} {before / 1e6:6.1f} MB: now {share:.0f} % of that")
    except PlaneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
