"""Builds the images: ``python -m deploy.images.build [--twice]`` (`make images`).

From the environment:
  BASE_IMAGE         NAME@sha256:DIGEST, with Python 3.11 or newer; a digest of a registry, or the image's id
  BUILDER_IMAGE      the same with pip and venv besides, where the base has none (empty: the base itself)
  TRIAL              1: a tag alone will do, for images that nobody else is to run, or no BASE_IMAGE at all
  IMAGE_BUILD_FLAGS  more flags of ``docker build``, such as --network host
  SOURCE_DATE_EPOCH  seconds since 1970: when the images say that they were made (the commit's time)

In build/images are then, of each image, its bill of materials (ROLE.cdx.json) and a statement of its
provenance (ROLE.intoto.json), and images.tar with all of them for ``docker load``. --twice: all of it once
more without docker's cache; it fails if any digest differs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from deploy.images import assemble, base, layers, provenance, sbom
from deploy.images.docker import Docker
from deploy.images.install import FACTS
from deploy.images.named import IMAGES
from deploy.images.roles import ROLES, lines
from deploy.local.agent.images import REPOSITORY
from deploy.local.errors import PlaneError

DOCKERFILE = REPOSITORY / "deploy" / "images" / "Dockerfile"
OUT = REPOSITORY / "build" / "images"
ARCHIVE = "images.tar"
TRIAL_BASE = "python:3.13-slim"
_TOP = "out"  # of the archive that comes out of the build
_RELEASED = ("etc/os-release", "usr/lib/os-release")  # the first is often a link to the second
_DPKG, _APK = "var/lib/dpkg/status", "lib/apk/db/installed"
_BASE_LABEL = "org.opencontainers.image.base"


def tag() -> str:
    """Return the version that the images carry: that of the sample manifests and the chart."""
    return metadata.version("evalstop")


def tagged(name: str) -> str:
    """Return an image's name with the tag that it carries."""
    return f"{name}:{tag()}"


def wanted(environ: Mapping[str, str]) -> tuple[base.Reference, base.Reference, bool]:
    """Return the images to build with, and whether this is a trial.

    Returns:
        (base, builder, trial).

    Raises:
        ValueError: no base is named, or one by its tag alone though this is no trial.
    """
    trial = environ.get("TRIAL", "") not in ("", "0")
    named = environ.get("BASE_IMAGE") or (TRIAL_BASE if trial else "")
    if not named:
        raise ValueError(
            "BASE_IMAGE is not set: expected NAME@sha256:DIGEST of an image with Python 3.11 or newer and "
            f"pip, or TRIAL=1, which takes {TRIAL_BASE} as it is today"
        )
    of_base = base.reference(named, "BASE_IMAGE", trial)
    builder = environ.get("BUILDER_IMAGE")
    return of_base, base.reference(builder, "BUILDER_IMAGE", trial) if builder else of_base, trial


def build(
    environ: Mapping[str, str] = os.environ, out: Path = OUT, fresh: bool = False
) -> list[assemble.Image]:
    """Build every image, load it into docker and start it once.

    Args:
        environ: the variables that choose base and builder (`wanted`).
        out: folder for what is built.
        fresh: whether to build without docker's cache.

    Raises:
        PlaneError: with docker's last words, or what is wrong with what was built.
        ValueError: see `wanted`; or a package in an image is not the one that the lock pins.
    """
    of_base, of_builder, trial = wanted(environ)
    docker = Docker(environ)
    out.mkdir(parents=True, exist_ok=True)
    base_id, builder_id = docker.resolve(of_base), docker.resolve(of_builder)
    epoch = source_date_epoch(environ)
    inputs = provenance.Inputs(
        *(str(of_base), base_id, str(of_builder), builder_id, trial, epoch, source()),
        lock=hashlib.sha256((REPOSITORY / "requirements.lock").read_bytes()).hexdigest(),
    )
    archive = _saved(docker, base_id, out)
    filled = out / "layers.tar"
    # By a name, since BuildKit builds from no image's id.
    named = docker.tag(builder_id, f"evalstop/build-base:{builder_id.removeprefix('sha256:')[:12]}")
    built = docker.build(DOCKERFILE, REPOSITORY, named, ["--no-cache"] if fresh else [])
    try:
        docker.copy_out(built, f"/{_TOP}", filled)
    finally:
        docker.remove(built)
    images = _images(archive, filled, out, inputs)
    assemble.write(images, archive, out / ARCHIVE)
    docker.load(out / ARCHIVE)
    for image in images:
        _check(docker, image)
    return images


def _saved(docker: Docker, identity: str, out: Path) -> base.BaseImage:
    """Return the base in an archive, written once: its name is its id."""
    path = out / f"base-{identity.removeprefix('sha256:')[:12]}.tar"
    with suppress(OSError, ValueError, tarfile.TarError):
        return base.BaseImage(path)
    for other in out.glob("base-*.tar"):
        other.unlink()
    docker.save(docker.tag(identity, f"evalstop/base:{identity.removeprefix('sha256:')[:12]}"), path)
    return base.BaseImage(path)


def _images(of: base.BaseImage, filled: Path, out: Path, inputs: provenance.Inputs) -> list[assemble.Image]:
    """Return each role's image, its bill and its statement, which are written to ``out``."""
    with tarfile.open(filled) as source:
        facts = json.loads(_content(source, f"{_TOP}/{FACTS}"))
        if facts["interpreter"].lstrip("/") not in of.files:
            raise PlaneError(
                f"{inputs.base} has no {facts['interpreter']}, the interpreter of {inputs.builder}: "
                "BUILDER_IMAGE must be the same image with pip and venv added"
            )

        @functools.cache
        def layer(name: str) -> layers.Layer:
            return layers.from_archive(name, source, f"{_TOP}/{name}", out / f"{name}.tar", of.files)

        bare = layers.without_shells(of.files, out / "without-shells.tar")
        images = []
        for role, about in ROLES.items():
            put = [*([bare] if bare and not about.shell else []), layer("python")]
            put += [layer(f"packages-{line}") for line in lines(role)]
            put.append(layer(f"code-{role}"))
            name = tagged(IMAGES[role])
            images.append(assemble.image(role, name, about, of, put, labels(role, inputs), inputs.epoch))
    common = [*base_packages(of), sbom.interpreter(facts["python"])]
    lock = (REPOSITORY / "requirements.lock").read_text()
    for image in images:
        _describe(image, facts["packages"], common, lock, inputs, out)
    return images


def _describe(
    image: assemble.Image,
    packages: Sequence[Mapping[str, str]],
    common: Sequence[sbom.Json],
    lock: str,
    inputs: provenance.Inputs,
    out: Path,
) -> None:
    ours = sbom.python_packages([p for p in packages if p["role"] in lines(image.role)], lock)
    bill = sbom.bill(IMAGES[image.role], tag(), image.identity, [*ours, *common])
    text = json.dumps(bill, indent=1) + "\n"
    file = f"{image.role}.cdx.json"
    (out / file).write_text(text)
    statement = provenance.statement(
        image.name,
        image.role,
        image.identity,
        {layer.name: layer.digest for layer in image.layers},
        inputs,
        ours,
        {file: hashlib.sha256(text.encode()).hexdigest()},
    )
    (out / f"{image.role}.intoto.json").write_text(json.dumps(statement, indent=1) + "\n")


def base_packages(of: base.BaseImage) -> list[sbom.Json]:
    """Return the packages of the base's distribution; none where it has neither dpkg's database nor apk's."""
    # Images without a package manager keep a file per package.
    per_package = sorted(
        name
        for name in of.files
        if name.startswith("var/lib/dpkg/status.d/") and not name.endswith(".md5sums")
    )
    contents = of.contents([*_RELEASED, _DPKG, *per_package, _APK])
    released = next((contents[name] for name in _RELEASED if contents.get(name)), b"").decode()
    facts = dict(line.split("=", 1) for line in released.splitlines() if "=" in line)
    found: list[sbom.Json] = []
    for name in (_DPKG, *per_package):
        text = contents.get(name, b"").decode(errors="replace")
        if name != _DPKG:
            text = text.replace("Version:", "Status: install ok installed\nVersion:", 1)
        found += sbom.debian_packages(text, facts.get("ID", "debian").strip('"'))
    found += sbom.alpine_packages(contents.get(_APK, b"").decode(errors="replace"))
    return found


def labels(role: str, inputs: provenance.Inputs) -> dict[str, str]:
    """Return the labels of an image: OCI's own, and whether it was made for a trial."""
    return {
        "org.opencontainers.image.title": IMAGES[role],
        "org.opencontainers.image.version": tag(),
        "org.opencontainers.image.revision": inputs.source.commit
        + ("-modified" if inputs.source.modified else ""),
        f"{_BASE_LABEL}.name": inputs.base,
        f"{_BASE_LABEL}.digest": inputs.base_id,
        "dev.evalstop.trial": "true" if inputs.trial else "false",
    }


def source() -> provenance.Source:
    """Return the commit that is checked out; none where this is no checkout."""
    commit = _git("rev-parse", "HEAD")
    return provenance.Source(commit, bool(commit and _git("status", "--porcelain")))


def source_date_epoch(environ: Mapping[str, str]) -> int:
    """Errors: ValueError if SOURCE_DATE_EPOCH is no number of seconds."""
    text = environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or "0"
    if not text.isdecimal():
        raise ValueError(f"SOURCE_DATE_EPOCH={text!r}: expected seconds since 1970")
    return int(text)


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _check(docker: Docker, image: assemble.Image) -> None:
    """Check an image that docker has loaded.

    Raises:
        PlaneError: docker does not have it with all its layers, its program cannot be imported, or it has a
            shell though its role needs none.
    """
    found = docker.inspect(image.name)
    if found is None or len(found["RootFS"]["Layers"]) < len(image.layers):
        raise PlaneError(f"{image.name}: docker did not load it")
    programs = ", ".join(ROLES[image.role].programs)
    ready = docker.start(image.name, ["python", "-c", f"import {programs}"])
    if ready.returncode != 0:
        raise PlaneError(f"{image.name}: {programs} cannot be imported in it:\n{ready.stderr[-2000:]}")
    if not ROLES[image.role].shell and docker.start(image.name, ["sh", "-c", "true"]).returncode == 0:
        raise PlaneError(f"{image.name}: it has a shell, which the base keeps where none is looked for")


def _content(source: tarfile.TarFile, name: str) -> bytes:
    file = source.extractfile(name)
    if file is None:
        raise PlaneError(f"no {name} came out of the build")
    return file.read()


def identities(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each image, by name with tag -> its id. Errors: PlaneError: one is not there."""
    docker = Docker(environ)
    return {name: str(docker.image(name)["Id"]) for name in map(tagged, IMAGES.values())}


def differences(first: Iterable[assemble.Image], second: Iterable[assemble.Image]) -> list[str]:
    """Return what differs between two builds, a line each."""
    found = []
    for one, other in zip(first, second, strict=True):
        found += [
            f"{one.name}: layer {a.name} is sha256:{a.digest} and then sha256:{b.digest}"
            for a, b in zip(one.layers, other.layers, strict=True)
            if a.digest != b.digest
        ]
        if one.identity != other.identity:
            found.append(f"{one.name}: {one.identity} and then {other.identity}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.images.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--twice", action="store_true", help="build once more and compare the digests")
    given = parser.parse_args(arguments)
    try:
        images = build()
        if given.twice:
            again = differences(images, build(fresh=True))
            if again:
                raise PlaneError("not the same when built twice:\n" + "\n".join(again))
        for image in images:
            print(f"{image.name}  {image.identity}  {_megabytes(image)} MB above the base")
        if given.twice:
            print("built twice: every digest is the same")
    except (PlaneError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _megabytes(image: assemble.Image) -> Any:
    return round(sum(layer.size for layer in image.layers) / 1e6)


if __name__ == "__main__":
    sys.exit(main())
