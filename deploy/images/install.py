"""Fill the layers of the images, inside the base image: `python -m deploy.images.install packages|code OUT`.

packages: of each role a folder OUT/packages-ROLE with what the lock pins for it, less what the role below
has; OUT/python with a virtual environment's skeleton; OUT/facts.json that says what was installed. code: of
each role a folder OUT/code-ROLE. In all of them the files lie as they will in the image.

Nothing in the folders depends on when or where it was made: sources are compiled by hash, in one order, with
paths as in the image; what pip writes about the installation itself is taken away.
Standard library and pip only.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from deploy.images import sublock
from deploy.images.roles import ROLES, importable, lines

PREFIX = "opt/evalstop"  # in the image
SITE = f"{PREFIX}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
FACTS = "facts.json"
_ABOUT_THE_INSTALLATION = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def partition(closures: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Role -> the packages of its own layer: all that it needs, less what the roles below it bring."""
    return {
        role: needed - set().union(*(closures[below] for below in lines(role)[:-1]))
        for role, needed in closures.items()
    }


def packages(out: Path, source: Path = Path()) -> None:
    """Errors: ValueError naming the package that the lock lacks; CalledProcessError after pip's words."""
    lock = (source / "requirements.lock").read_text()
    found = sublock.entries(lock)
    constraints = sublock.pins(lock)
    closures = {role: sublock.resolve(of.requires, constraints) for role, of in ROLES.items()}
    missing = sorted(set().union(*closures.values()) - found.keys())
    if missing:
        raise ValueError(f"not in requirements.lock: {', '.join(missing)}; run `make lock`")
    installed = []
    for role, names in partition(closures).items():
        layer = out / f"packages-{role}"
        pins = "".join(found[name] for name in sorted(names))
        installed += [{**package, "role": role} for package in _install(layer, pins)]
    _skeleton(out / "python")
    facts = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "interpreter": os.path.realpath(sys.executable),
        "packages": installed,
    }
    (out / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


def code(out: Path, source: Path = Path()) -> None:
    """Copy each role's part of the repository, compiled, with the metadata that names our version."""
    metadata = _metadata(tomllib.loads((source / "pyproject.toml").read_text())["project"])
    for role, of in ROLES.items():
        site = out / f"code-{role}" / SITE
        for part in of.code:
            target = site / importable(part)
            target.parent.mkdir(parents=True, exist_ok=True)
            if (source / part).is_dir():
                shutil.copytree(source / part, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source / part, target)
        for name, text in metadata.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        _compile(out / f"code-{role}")


def _metadata(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the distribution's name and version, which `importlib.metadata` reads."""
    name, version = project["name"], project["version"]
    return {
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    }


def _install(layer: Path, pins: str) -> list[dict[str, Any]]:
    """Install the pins into the layer; what pip did: name, version, digest of the archive, licence."""
    site = layer / SITE
    requirements, report = layer.parent / "pins.txt", layer.parent / "report.json"
    requirements.parent.mkdir(parents=True, exist_ok=True)
    requirements.write_text(pins)
    words = ["install", "--quiet", "--no-deps", "--no-compile", "--require-hashes", "--ignore-installed"]
    words += ["--target", str(site), "--report", str(report), "-r", str(requirements)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, stdout=sys.stderr)
    done = json.loads(report.read_text())["install"]
    requirements.unlink()
    report.unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)  # programs of the packages: nobody calls them
    for metadata in site.glob("*.dist-info"):
        for name in _ABOUT_THE_INSTALLATION:
            (metadata / name).unlink(missing_ok=True)
    _compile(layer)
    there = _found(site)
    digests = {
        sublock.canonical(item["metadata"]["name"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in done
    }
    return [{**package, "sha256": digests[package["name"]]} for package in there]


def _found(site: Path) -> list[dict[str, str]]:
    """Return every distribution in a folder, by what its own metadata says."""
    found = []
    for path in sorted(site.glob("*.dist-info/METADATA")):
        metadata = HeaderParser().parsestr(path.read_text(encoding="utf-8", errors="replace"))
        licence = metadata.get("License-Expression") or ""
        name = sublock.canonical(str(metadata["Name"]))
        found.append({"name": name, "version": str(metadata["Version"]), "license": str(licence)})
    return found


def _compile(layer: Path) -> None:
    """Compiled here, for good: at run time nothing can be written beside the sources. The hash in each file,
    and not the time, says what it was compiled from."""
    compileall.compile_dir(
        layer,
        maxlevels=50,
        quiet=2,  # packages ship files that are not for this version of Python
        stripdir=str(layer),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _skeleton(layer: Path) -> None:
    """Make a virtual environment without packages; its `python` is the base image's and sees only ours."""
    base = Path(os.path.realpath(sys.executable))
    programs = layer / PREFIX / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(base)
    (layer / SITE).mkdir(parents=True)
    version = "{}.{}.{}".format(*sys.version_info[:3])
    (layer / PREFIX / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("packages", "code"):
        print("usage: python -m deploy.images.install packages|code OUT", file=sys.stderr)
        return 2
    out = Path(arguments[1]).absolute()
    try:
        (packages if arguments[0] == "packages" else code)(out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
