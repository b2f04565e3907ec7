"""The few questions that building images asks of docker."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.images.base import Reference, matches
from deploy.local.errors import PlaneError

_LINES = 15  # of docker's last words in an error


class Docker:
    """docker on this machine. ``environ``: the process's. Errors of all methods: PlaneError."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.environ = dict(environ)
        if shutil.which("docker", path=environ.get("PATH")) is None:
            raise PlaneError("no docker on PATH: the base image and its Python are reached by docker")

    def inspect(self, name: str) -> dict[str, Any] | None:
        """Return what docker knows of an image on this machine; None: it has none by that name."""
        done = self._run(["image", "inspect", name])
        found: dict[str, Any] | None = json.loads(done.stdout)[0] if done.returncode == 0 else None
        return found

    def image(self, name: str) -> dict[str, Any]:
        """Return what docker knows of an image that has to be on this machine."""
        found = self.inspect(name)
        if found is None:
            raise PlaneError(f"no image {name} on this machine (`make images`)")
        return found

    def resolve(self, wanted: Reference) -> str:
        """Return the id, "sha256:…", of the image that is meant, pulled if it is not here."""
        names = [f"{wanted.name}@{wanted.digest}", wanted.digest] if wanted.digest else [str(wanted)]
        for pull in (False, True):
            if pull:
                done = self._run(["pull", "--quiet", names[0]])
                if done.returncode != 0:
                    raise PlaneError(f"image {wanted} is neither here nor to be had:\n{_last(done)}")
            for name in names:
                found = self.inspect(name)
                if found is not None and matches(wanted, found):
                    return str(found["Id"])
        raise PlaneError(f"image {wanted}: docker pulled another one than was asked for")

    def tag(self, identity: str, name: str) -> str:
        self._do(["tag", identity, name])
        return name

    def save(self, name: str, path: Path) -> None:
        """Write the image into an archive."""
        self._do(["save", "--output", str(path), name])

    def load(self, path: Path) -> None:
        self._do(["load", "--quiet", "--input", str(path)])

    def build(self, dockerfile: Path, folder: Path, base: str, more: Sequence[str] = ()) -> str:
        """Build, and return a name of what was built, of which only `copy_out` should be asked."""
        name = f"evalstop/layers:{uuid.uuid4().hex[:12]}"
        words = ["build", "--quiet", "--file", str(dockerfile), "--build-arg", f"BASE_IMAGE={base}"]
        words += ["--tag", name, *more, *shlex.split(self.environ.get("IMAGE_BUILD_FLAGS", ""))]
        self._do([*words, str(folder)])
        return name

    def copy_out(self, image: str, folder: str, path: Path) -> None:
        """Write a folder of an image into an archive; members' names begin with the folder's own."""
        container = self._do(["create", image, "nothing-is-run"]).strip()
        try:
            with path.open("wb") as archive:
                words = ["docker", "cp", f"{container}:{folder}", "-"]
                done = subprocess.run(words, stdout=archive, stderr=subprocess.PIPE, env=self.environ)
            if done.returncode != 0:
                raise PlaneError(f"{' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
        finally:
            self._do(["rm", container])

    def remove(self, image: str) -> None:
        """Take a name away, and the image if that was its last; its steps stay in docker's cache."""
        self._do(["rmi", "--no-prune", image])

    def start(self, image: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in a container without network that can write nowhere but to /tmp."""
        words = ["run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
        return self._run([*words, image, *command])

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["docker", *words], capture_output=True, text=True, env=self.environ)

    def _do(self, words: Sequence[str]) -> str:
        done = self._run(words)
        if done.returncode != 0:
            raise PlaneError(f"docker {' '.join(words)}:\n{_last(done)}")
        return done.stdout


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LINES:])
