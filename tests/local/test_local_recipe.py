"""Recipes: what decides their cache, what a version is read from, and a tool that is more than a program."""

import dataclasses
import re
from pathlib import Path

import pytest
from test_local_acquire import Lines, go, put, sources, ways

from deploy.local.acquire import obtain
from deploy.local.errors import ToolsMissing
from deploy.local.helm import recipe as helm
from deploy.local.helm.recipe import HELM
from deploy.local.kubeconform import recipe as kubeconform
from deploy.local.kubeconform.recipe import KUBECONFORM
from deploy.local.kueue.recipe import KUEUE, MANIFESTS
from deploy.local.kwok.recipe import KWOK, MODULE, VERSION
from deploy.local.recipe import Recipe, Tree, built_version
from deploy.local.versions import CONTROL_PLANE
from deploy.local.versitygw import recipe as versitygw
from deploy.local.versitygw.recipe import VERSITYGW


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A tool of one program and one folder of its module."""
    put(tmp_path / "recipe", "go.mod", text="module x\n\ngo 1.26.0\n")
    return Recipe(
        name="tool",
        title="Tool 1.2.3",
        pins=("1.2.3",),
        folder=tmp_path / "recipe",
        output="tool",
        programs={"tool": "1.2.3"},
        ask=lambda name, path: built_version(path, "example.org/tool"),
        trees={"tool-config": Tree("example.org/tool", "config")},
    )


@pytest.mark.parametrize("known", [CONTROL_PLANE, HELM, KUBECONFORM, KUEUE, KWOK, VERSITYGW])
def test_whatever_decides_what_is_built_decides_its_cache(known: Recipe, tmp_path: Path) -> None:
    before = known.cache_folder().name
    assert before.startswith(f"{known.name}-{known.pins[0]}-")
    folder = tmp_path / "recipe"
    folder.mkdir()
    for path in known.folder.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    assert dataclasses.replace(known, folder=folder).cache_folder().name == before
    (folder / "README.md").write_text("no part of it")
    assert dataclasses.replace(known, folder=folder).cache_folder().name == before
    (folder / "go.sum").write_text("other")
    others = (
        dataclasses.replace(known, folder=folder),
        dataclasses.replace(known, pins=("0.0.1",)),
        dataclasses.replace(known, flags=("-race",)),
        dataclasses.replace(known, trees={"more": Tree("example.org/x", "y")}),
    )
    names = {before, *(other.cache_folder().name for other in others)}
    assert len(names) == 1 + len(others)


def test_a_program_with_a_folder_of_its_module(recipe: Recipe, tmp_path: Path) -> None:
    module = tmp_path / "module"
    put(module / "config" / "crd", "one.yaml", text="kind: One\n")
    (module / "config" / "crd" / "one.yaml").chmod(0o444)
    (module / "config" / "crd").chmod(0o555)  # as in Go's module cache
    toolchain = go(tmp_path)
    script = tmp_path / "go" / "go"
    script.write_text(
        script.read_text().replace("echo a; echo b;", f'[ "$2" = -m ] && echo {module} || echo a;')
    )
    given = sources(tmp_path, toolchain=toolchain)
    lines = Lines()
    found = obtain(lines, given, recipe=recipe)
    assert ways(found) == {"tool": "built", "tool-config": "built"}
    assert "building Tool 1.2.3 with Go 1.26.8: some minutes, once" in lines.said
    copied = found["tool-config"].path / "crd" / "one.yaml"
    assert copied.read_text() == "kind: One\n"
    copied.unlink()  # a copy is not read-only
    assert not found["tool"].path.is_symlink()
    again = obtain(recipe=recipe, sources=sources(tmp_path))
    assert ways(again) == {"tool": "cache", "tool-config": "cache"}


def test_a_folder_that_the_module_does_not_have(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ToolsMissing, match=r"module example\.org/tool has no folder config"):
        obtain(recipe=recipe, sources=sources(tmp_path, toolchain=go(tmp_path)))
    assert not (sources(tmp_path).cache / "tool").exists()


def test_what_was_tried_for_a_tool_without_releases(recipe: Recipe, tmp_path: Path) -> None:
    assets = put(tmp_path / "assets", "tool-config")  # a file where a folder should be
    with pytest.raises(ToolsMissing) as caught:
        obtain(recipe=recipe, sources=sources(tmp_path, assets=assets))
    told = str(caught.value)
    assert told.startswith("no way led to tool, tool-config (Tool 1.2.3, ")
    assert f"KUBEBUILDER_ASSETS: tool-config: {assets}/tool-config is not a folder" in told
    assert "download: there are no official releases of it" in told
    assert "mirror of the releases" not in told


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"\0\0path\tx\ndep\texample.org/tool\tv1.2.3\th1:x=\n", "1.2.3"),
        (b"mod\texample.org/tool\tv1.2.4\t\n", "1.2.4"),
        (b"dep\texample.org/tool\tv1.2.3-rc.1\t\n", None),  # no release
        (b"dep\texample.org/toolkit\tv1.2.3\t\n", None),
        (b"", None),
    ],
)
def test_the_version_inside_a_program(
    recipe: Recipe, tmp_path: Path, content: bytes, version: str | None
) -> None:
    assets = put(tmp_path / "assets", "tool")
    (assets / "tool").write_bytes(content)
    (assets / "tool-config").mkdir()
    assert recipe.ask("tool", assets / "tool") == version
    note = "" if version == "1.2.3" else f" (version {version or 'unknown'}, pinned is 1.2.3)"
    found = obtain(recipe=recipe, sources=sources(tmp_path, assets=assets))
    assert found["tool"].way == f"KUBEBUILDER_ASSETS={assets}{note}"
    assert found["tool-config"].way == f"KUBEBUILDER_ASSETS={assets}"


def test_a_name_is_a_program_or_a_folder(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="recipe tool: tool is a program and a tree"):
        dataclasses.replace(recipe, trees={"tool": Tree("example.org/tool", "config")})


def test_kueue_gives_its_program_and_the_manifests_of_its_version() -> None:
    assert KUEUE.names == ("kueue", MANIFESTS)
    assert not KUEUE.released


@pytest.mark.parametrize(
    ("known", "module", "version"),
    [
        (KWOK, MODULE, VERSION),
        (HELM, helm.MODULE, helm.VERSION),
        (KUBECONFORM, kubeconform.MODULE, kubeconform.VERSION),
        (VERSITYGW, versitygw.MODULE, versitygw.VERSION),
    ],
)
def test_the_recipe_and_its_go_mod_name_the_same_version(known: Recipe, module: str, version: str) -> None:
    text = (known.folder / "go.mod").read_text()
    assert re.findall(rf"\b{re.escape(module)} v(\S+)", text) == [version]
    assert known.package.startswith(module)
