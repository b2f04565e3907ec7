"""Each image holds what its programs import, and not what other roles need."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement

from controller import names
from deploy.images import sublock
from deploy.images.named import IMAGES
from deploy.images.roles import ROLES, importable, lines

# Not in the operator's image, though they can be reached: imported where a store is opened, in access Jobs.
OPENS_STORES = {"controller.checkpoints.object_store", "controller.checkpoints.s3"}
BLOCK = """
import importlib, importlib.metadata, sys
allowed, programs = sys.argv[1].split(","), sys.argv[2].split(",")
owners = importlib.metadata.packages_distributions()
class Absent:
    def find_spec(self, name, path=None, target=None):
        owned = {owner.lower().replace("_", "-") for owner in owners.get(name.partition(".")[0], ())}
        if owned and not owned & set(allowed):
            raise ModuleNotFoundError(f"{name} is not in this image", name=name)
sys.meta_path.insert(0, Absent())
for program in programs:
    importlib.import_module(program)
"""


def installed_with(requirements: tuple[str, ...]) -> set[str]:
    """The packages by these names and all that they depend on, of what is installed here."""
    found: set[str] = set()
    ahead = [sublock.canonical(name) for name in requirements]
    while ahead:
        name = ahead.pop()
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                ahead.append(sublock.canonical(needed.name))
    return found


def packages(role: str) -> set[str]:
    return set().union(*(installed_with(ROLES[line].requires) for line in lines(role)))


@pytest.mark.parametrize("role", ROLES)
def test_its_programs_start_with_what_it_holds(role: str, repository: Path) -> None:
    allowed = ",".join(sorted(packages(role) | {"evalstop", "evalstop-client"}))
    programs = ",".join(ROLES[role].programs)
    done = subprocess.run(
        [sys.executable, "-c", BLOCK, allowed, programs], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_its_programs_may_import_later_is_in_it() -> None:
    """Imports within functions too."""
    roots = ("controller", "sim", "examples", "evalstop_client")
    graph = grimp.build_graph(*roots, include_external_packages=True)
    owners = metadata.packages_distributions()
    for role, about in ROLES.items():
        modules = (
            {"controller.extender.__main__", "controller.operator.__main__"} if role == "operator" else set()
        )
        ahead = [*modules, *about.programs]
        seen: set[str] = set()
        while ahead:
            module = ahead.pop()
            if module in seen or (role == "operator" and module in OPENS_STORES):
                continue
            seen.add(module)
            ahead += graph.find_modules_directly_imported_by(module)
        ours = {module for module in seen if module.split(".")[0] in roots}
        held = tuple(importable(part).removesuffix(".py").replace("/", ".") for part in about.code)
        for module in ours:
            within = (module, f"{module}.__init__")
            assert any(m == part or m.startswith(f"{part}.") for m in within for part in held), (role, module)
        others = {module for module in seen - ours if module in owners}
        absent = {m for m in others if not {sublock.canonical(o) for o in owners[m]} & packages(role)}
        assert not absent, f"image {role}: {absent}"


def test_the_operators_image_has_no_numbers_pictures_or_stores() -> None:
    heavy = {"matplotlib", "scipy", "numpy", "pillow", "obstore", "minio", "fsspec"}
    assert not packages("operator") & heavy
    assert not packages("actor") & (heavy | {"kubernetes", "kopf"})
    assert not packages("workers") & {"kubernetes", "kopf", "matplotlib", "scipy", "obstore"}
    assert not packages("access") & {"kubernetes", "aiohttp", "kopf", "matplotlib", "numpy"}
    assert {"matplotlib", "kubernetes"} <= packages("dashboard")


def test_what_a_role_asks_for_is_what_the_project_asks_for(repository: Path) -> None:
    """By name in pyproject.toml: a package that is there only because another needs it may go with it."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["objectstore"]]
    known = {sublock.canonical(Requirement(text).name) for text in asked}
    for role, about in ROLES.items():
        assert set(about.requires) <= known, role


def test_each_role_has_the_image_of_the_shipped_manifests(repository: Path) -> None:
    assert IMAGES.keys() == ROLES.keys()
    manifests = "".join(path.read_text() for path in repository.glob("deploy/**/*.yaml"))
    for role in ("operator", "access", "dashboard", "actor"):
        assert f"{IMAGES[role]}:0.1.0" in manifests
    assert json.dumps(sorted(IMAGES.values())) == json.dumps(
        sorted(
            [
                *(names.OPERATOR_IMAGE, names.ACCESS_IMAGE, names.DASHBOARD_IMAGE),
                *(names.ACTOR_IMAGE, names.TRAINER_IMAGE, names.WORKERS_IMAGE),
            ]
        )
    )
