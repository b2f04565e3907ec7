"""How images are put together: base by digest, layers by content, bill and provenance by what is in them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from deploy.images import assemble, base, build, install, layers, provenance, sbom
from deploy.images.roles import ROLES, lines

DIGEST = "sha256:" + "a" * 64


def archive(path: Path, files: dict[str, bytes | str], mode: int = 0o644) -> Path:
    """A tar of files (bytes), symbolic links (str) and folders (a name that ends in /)."""
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.mode, member.mtime, member.uid = mode, 12345, 7
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def base_image(folder: Path, *contents: dict[str, bytes | str]) -> base.BaseImage:
    """A base in the form of `docker save`, a layer for each of ``contents``."""
    made = [archive(folder / f"layer{i}.tar", files, 0o755).read_bytes() for i, files in enumerate(contents)]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", "LANG=C.UTF-8"], "Entrypoint": ["/entry"], "User": "root"},
        "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in made]},
        "history": [{"created_by": "them"}],
    }
    files: dict[str, bytes | str] = {f"{i}/layer.tar": data for i, data in enumerate(made)}
    names = list(files)
    files["config.json"] = json.dumps(config).encode()
    files["manifest.json"] = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    return base.BaseImage(archive(folder / "base.tar", files))


@pytest.mark.parametrize("text", ["python:3.13-slim", "python", "host:5000/a/python"])
def test_a_tag_alone_is_refused_unless_it_is_for_a_trial(text: str) -> None:
    with pytest.raises(ValueError, match=r"names a tag alone.*NAME@sha256:DIGEST.*or TRIAL=1"):
        build.wanted({"BASE_IMAGE": text})
    found, builder, trial = build.wanted({"BASE_IMAGE": text, "TRIAL": "1"})
    assert (str(found), builder, trial) == (text, found, True)
    with pytest.raises(ValueError, match="names a tag alone"):
        build.wanted({"BASE_IMAGE": text, "TRIAL": "0"})


def test_what_base_and_builder_may_be() -> None:
    found, builder, trial = build.wanted({"BASE_IMAGE": f"host:5000/a/python:3.13@{DIGEST}"})
    assert found == base.Reference("host:5000/a/python", "3.13", DIGEST) == builder
    assert not trial
    with pytest.raises(ValueError, match=r"^BUILDER_IMAGE='b:1' names a tag alone"):
        build.wanted({"BASE_IMAGE": f"a@{DIGEST}", "BUILDER_IMAGE": "b:1"})
    with pytest.raises(ValueError, match=r"BASE_IMAGE is not set: expected NAME@sha256:DIGEST"):
        build.wanted({})
    assert str(build.wanted({"TRIAL": "1"})[0]) == build.TRIAL_BASE
    for wrong in ("a@sha256:12", "a@", "a:@" + DIGEST, "@" + DIGEST, "a b@" + DIGEST, "a@md5:" + "a" * 64):
        with pytest.raises(ValueError, match=r"BASE_IMAGE=.*(expected NAME@|is no digest, expected sha256:)"):
            build.wanted({"BASE_IMAGE": wrong, "TRIAL": "1"})


def test_an_image_is_the_one_meant_by_its_registrys_digest_or_its_own_id() -> None:
    wanted = base.reference(f"a/python:3@{DIGEST}", "BASE_IMAGE", trial=False)
    assert base.matches(wanted, {"Id": "sha256:b", "RepoDigests": [f"a/python@{DIGEST}"]})
    assert base.matches(wanted, {"Id": DIGEST, "RepoDigests": []})
    assert not base.matches(wanted, {"Id": "sha256:b", "RepoDigests": None})


def test_a_layer_is_the_same_whenever_and_in_whatever_order_its_files_were_written(tmp_path: Path) -> None:
    one: dict[str, bytes | str] = {
        "out/l/opt/": b"",
        "out/l/opt/b": b"2",
        "out/l/opt/a": b"1",
        "out/l/x": "opt/a",
    }
    sums = []
    for i, files in enumerate((one, dict(reversed(one.items())))):
        with tarfile.open(archive(tmp_path / f"{i}.tar", files, (0o600, 0o640)[i])) as source:
            sums.append(layers.from_archive("l", source, "out/l", tmp_path / f"{i}.layer", {}))
    assert sums[0].digest == sums[1].digest
    data = sums[0].path.read_bytes()
    assert (sums[0].digest, sums[0].size) == (hashlib.sha256(data).hexdigest(), len(data))
    with tarfile.open(sums[0].path) as tar:
        assert tar.getnames() == ["opt", "opt/a", "opt/b", "x"]
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in tar} == {(0, 0, "", layers.MTIME)}
        assert [m.mode for m in tar] == [0o755, 0o644, 0o644, 0o755]


def test_what_no_layer_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        pipe = tarfile.TarInfo("out/l/pipe")
        pipe.type = tarfile.FIFOTYPE
        tar.addfile(pipe)
    with tarfile.open(path) as source:
        with pytest.raises(ValueError, match="out/l/pipe: neither a file nor a symbolic link"):
            layers.from_archive("l", source, "out/l", tmp_path / "l", {})
        with pytest.raises(ValueError, match="layer m: nothing in out/m"):
            layers.from_archive("m", source, "out/m", tmp_path / "m", {})


def test_shells_of_the_base_are_taken_away_and_nothing_else(tmp_path: Path) -> None:
    of = base_image(
        tmp_path,
        {"./": b"", "./usr/": b"", "./usr/bin/": b"", "./usr/bin/dash": b"", "./usr/bin/sh": "dash"},
        {"usr/bin/python3": b"", "usr/bin/bash": b"", "opt/app/sh": b"", "bin": "usr/bin"},
        {"usr/bin/.wh.bash": b""},
    )
    bare = layers.without_shells(of.files, tmp_path / "bare.tar")
    assert bare is not None
    with tarfile.open(bare.path) as tar:
        assert tar.getnames() == ["usr", "usr/bin", "usr/bin/.wh.dash", "usr/bin/.wh.sh"]
        found = dict(of.files)
        base.upon(found, tar, lambda _, __, member: member)
        assert tar.getmember("usr/bin").uid == 7, "a folder stays whose it was in the base"
    assert "usr/bin/python3" in found
    assert not {"usr/bin/sh", "usr/bin/dash"} & found.keys()
    assert layers.without_shells(found, tmp_path / "none.tar") is None


def test_layers_of_a_base_lie_upon_each_other(tmp_path: Path) -> None:
    of = base_image(
        tmp_path,
        {"a/x": b"1", "a/y": b"1", "b/x": b"1", "c": b"1"},
        {"a/.wh..wh..opq": b"", "a/z": b"2", ".wh.b": b"", "c": b"2"},
    )
    assert sorted(of.files) == ["a/z", "c"]
    assert of.contents(["c", "b/x", "a/y", "a/z", "a/none"]) == {"c": b"2", "a/z": b"2"}
    with pytest.raises(ValueError, match=r"no manifest\.json in it, expected an archive of `docker save`"):
        base.BaseImage(archive(tmp_path / "other.tar", {"x": b""}))


def test_the_packages_of_a_base_by_its_own_databases(tmp_path: Path) -> None:
    status = "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n\n"
    status += "Package: b\nStatus: deinstall ok config-files\nVersion: 2\n"
    of = base_image(
        tmp_path,
        {
            "etc/os-release": "../usr/lib/os-release",
            "usr/lib/os-release": b'ID="ubuntu"\n',
            "var/lib/dpkg/status": status.encode(),
            "var/lib/dpkg/status.d/c": b"Package: c\nVersion: 3\n",
            "var/lib/dpkg/status.d/c.md5sums": b"Package: no\nVersion: 1\n",
            "lib/apk/db/installed": b"P:z\nV:9\nA:x86\n\n",
        },
        {"var/lib/dpkg/status.d/d": b"Package: d\nVersion: 4\n", "var/lib/dpkg/status.d/.wh.c": b""},
    )
    assert [component["bom-ref"] for component in build.base_packages(of)] == [
        "pkg:deb/ubuntu/a@1?arch=amd64",
        "pkg:deb/ubuntu/d@4?arch=all",
        "pkg:apk/alpine/z@9?arch=x86",
    ]
    of = base_image(tmp_path, {"opt/x": b""})
    assert build.base_packages(of) == []


def test_an_image_is_its_base_and_its_layers_under_a_name_that_follows_from_both(tmp_path: Path) -> None:
    of = base_image(tmp_path, {"usr/bin/python3": b""})
    with tarfile.open(archive(tmp_path / "l.tar", {"out/l/opt/x": b"1"})) as source:
        layer = layers.from_archive("l", source, "out/l", tmp_path / "l.layer", of.files)

    def made(epoch: int) -> assemble.Image:
        return assemble.image("operator", "o:1", ROLES["operator"], of, [layer], {"k": "v"}, epoch)

    image = made(5)
    assert image.identity == made(5).identity != made(6).identity
    assert build.differences([image], [made(5)]) == []
    assert build.differences([image], [made(6)]) == [f"o:1: {image.identity} and then {made(6).identity}"]
    assemble.write([image], of, tmp_path / "images.tar")
    with tarfile.open(tmp_path / "images.tar") as tar:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        (entry,) = manifest
        assert entry["RepoTags"] == ["o:1"]
        read = {
            name: (tar.extractfile(name) or io.BytesIO()).read()
            for name in [entry["Config"], *entry["Layers"]]
        }
    config = json.loads(read[entry["Config"]])
    assert "sha256:" + hashlib.sha256(read[entry["Config"]]).hexdigest() == image.identity
    sums = ["sha256:" + hashlib.sha256(read[name]).hexdigest() for name in entry["Layers"]]
    assert config["rootfs"]["diff_ids"] == sums == [*of.diff_ids, f"sha256:{layer.digest}"]
    assert config["created"] == "1970-01-01T00:00:05Z"
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Cmd"] == ["python", "-m", "controller.operator"]
    assert "Entrypoint" not in config["config"], "the base's would stand before our command"
    assert {"PATH=/opt/evalstop/bin:/usr/bin", "LANG=C.UTF-8", "HOME=/tmp"} <= set(config["config"]["Env"])


def test_a_layer_below_is_not_laid_down_again() -> None:
    closures = {"operator": {"a", "b"}, "access": {"a", "c"}, "dashboard": {"a", "d"}, "trainer": {"a"}}
    own = install.partition(closures)
    assert own == {"operator": {"a", "b"}, "access": {"a", "c"}, "dashboard": {"d"}, "trainer": {"a"}}
    assert lines("dashboard") == ["operator", "dashboard"]


def test_the_code_of_a_role_is_compiled_for_good_and_names_its_version(
    tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "evalstop"\nversion = "7.1"\n')
    for file in ("controller/a.py", "sim/b.py", "examples/trainer/c.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("X = {'a', 'b', 'c'}\n")
    for file in ("__init__.py", "played.py", "softmax_family.py"):
        (tmp_path / "examples" / file).touch()
    for folder in ("examples/engine", "examples/rollouts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "clients/python/evalstop_client").mkdir(parents=True)
    (tmp_path / "clients/python/evalstop_client/client.py").write_text("Y = 1\n")
    install.code(tmp_path / "out", tmp_path)
    site = tmp_path / "out" / "code-operator" / install.SITE
    assert sorted(p.name for p in site.iterdir()) == ["controller", "evalstop-7.1.dist-info"]
    (compiled,) = site.glob("controller/__pycache__/*.pyc")
    flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
    assert flags == 0b01, "by hash, and never compared with the source"
    assert f"/{install.SITE}/controller/a.py".encode() in compiled.read_bytes()
    assert str(tmp_path).encode() not in compiled.read_bytes()
    trainer = tmp_path / "out" / "code-trainer" / install.SITE
    assert os.path.exists(trainer / "examples/trainer/c.py")
    assert os.path.exists(trainer / "evalstop_client/client.py"), "importable, and not below clients/python"


LOCK = f"numpy==2.4 \\\n    --hash=sha256:{'a' * 64}\nrich==15.0 \\\n    --hash=sha256:{'b' * 64}\n"


def package(**changes: str) -> dict[str, str]:
    return {"name": "numpy", "version": "2.4", "sha256": "a" * 64, "license": "BSD-3-Clause", **changes}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "requests"}, "requests 2.4 is in an image and not in requirements.lock"),
        ({"version": "2.5"}, "numpy 2.5 is in an image, requirements.lock pins 2.4"),
        ({"sha256": "c" * 64}, f"numpy 2.4: requirements.lock names no archive with sha256 {'c' * 64}"),
    ],
)
def test_a_package_that_is_not_the_locks_fails_the_bill(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        sbom.python_packages([package(**changes)], LOCK)


def test_the_bill_of_an_image() -> None:
    packages = sbom.python_packages(
        [package(), package(name="rich", version="15.0", sha256="b" * 64, license="")], LOCK
    )
    status = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
    status += "\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    debian = sbom.debian_packages(status)
    alpine = sbom.alpine_packages("C:Q1\nP:musl\nV:1.2\nA:x86_64\n\n")
    bill = sbom.bill(
        "evalstop/operator", "0.1.0", DIGEST, [*packages, *debian, *alpine, sbom.interpreter("3.13.0")]
    )
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    uuid.UUID(bill["serialNumber"].removeprefix("urn:uuid:"))
    references = [c["bom-ref"] for c in bill["components"]]
    assert references == [
        "pkg:pypi/numpy@2.4",
        "pkg:pypi/rich@15.0",
        "pkg:deb/debian/libc6@2.36-9?arch=amd64",
        "pkg:apk/alpine/musl@1.2?arch=x86_64",
        "pkg:generic/cpython@3.13.0",
    ]
    assert bill["components"][0]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert "licenses" not in bill["components"][1]
    (root,) = bill["dependencies"]
    assert root["ref"] == bill["metadata"]["component"]["bom-ref"] == f"evalstop/operator@{DIGEST}"
    assert root["dependsOn"] == references


def test_the_statement_names_what_was_made_and_all_it_was_made_from() -> None:
    def said(**changes: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "base": "a@" + DIGEST,
            "base_id": DIGEST,
            "builder": "a@" + DIGEST,
            "builder_id": DIGEST,
            "trial": False,
            "epoch": 5,
            "source": provenance.Source("c0ffee", False),
            "lock": "d" * 64,
            **changes,
        }
        packages = sbom.python_packages([package()], LOCK)
        inputs = provenance.Inputs(**given)
        layers = {"code-operator": "e" * 64}
        return provenance.statement("o:1", "operator", DIGEST, layers, inputs, packages, {"o.json": "f" * 64})

    statement = said()
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [
        {"name": "o:1", "digest": {"sha256": "a" * 64}},
        {"name": "o:1#code-operator", "digest": {"sha256": "e" * 64}},
    ]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["trial"] is False
    assert definition["resolvedDependencies"] == [
        {"name": "base", "uri": "a@" + DIGEST, "digest": {"sha256": "a" * 64}},
        {"name": "requirements.lock", "digest": {"sha256": "d" * 64}},
        {"name": "source", "digest": {"gitCommit": "c0ffee"}, "annotations": {"modified": False}},
        {"uri": "pkg:pypi/numpy@2.4", "digest": {"sha256": "a" * 64}},
    ]
    assert statement["predicate"]["runDetails"]["byproducts"] == [
        {"name": "o.json", "digest": {"sha256": "f" * 64}}
    ]
    other = said(builder="b:1", builder_id="sha256:" + "9" * 64, trial=True)
    taken = other["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"name": "builder", "uri": "b:1", "digest": {"sha256": "9" * 64}} in taken


@pytest.mark.parametrize("trial", [False, True])
def test_an_image_says_what_it_was_built_on_and_whether_for_a_trial(trial: bool) -> None:
    inputs = provenance.Inputs(
        *("a:1", DIGEST, "a:1", DIGEST, trial, 5, provenance.Source("c0ffee", modified=True), "d" * 64)
    )
    said = build.labels("operator", inputs)
    assert said["dev.evalstop.trial"] == ("true" if trial else "false")
    assert said["org.opencontainers.image.base.name"] == "a:1"
    assert said["org.opencontainers.image.base.digest"] == DIGEST
    assert said["org.opencontainers.image.revision"] == "c0ffee-modified"


def test_when_an_image_was_made_is_the_commits_time_or_what_is_said() -> None:
    assert build.source_date_epoch({"SOURCE_DATE_EPOCH": "7"}) == 7
    assert build.source_date_epoch({}) >= 0
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH='soon': expected seconds since 1970"):
        build.source_date_epoch({"SOURCE_DATE_EPOCH": "soon"})
