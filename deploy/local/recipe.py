"""Recipe of a tool: how it is built from pinned Go modules, and its folder in the cache.

A recipe is one declaration: `versions.CONTROL_PLANE` and `kueue.recipe.KUEUE` are two; `acquire.obtain`
follows either. Another tool is one more folder with `go.mod` and `go.sum`, and one more declaration, by
`of_module` where it is one program of one module.
"""

import dataclasses
import hashlib
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
STRIPPED = "-s -w"  # linker flags: no symbol table and no debug data, a third of the size


@dataclasses.dataclass(frozen=True)
class Tree:
    """A folder of a Go module, copied into the cache beside the programs: `folder` of `module`."""

    module: str
    folder: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One program built from Go modules, under one name or several.

    Attributes:
        name: of its folder in the cache.
        title: what it builds, for people.
        pins: its versions; the first one is part of the cache folder's name.
        folder: holds `go.mod`, `go.sum` and the Go files.
        output: the file that Go builds. Programs of other names are links to it.
        programs: name of each program -> its pinned version.
        ask: the version that a program on this machine says it has, None if it does not say.
        package: what Go builds; `.` is the folder itself.
        flags: of `go build`.
        trees: name in the cache -> a folder of a module, such as the manifests of that very version.
        released: whether `download.py` knows official releases of the programs.
        takes: how long a build takes, for people.
    """

    name: str
    title: str
    pins: tuple[str, ...]
    folder: Path
    output: str
    programs: Mapping[str, str]
    ask: Callable[[str, Path], str | None]
    package: str = "."
    flags: tuple[str, ...] = ()
    trees: Mapping[str, Tree] = dataclasses.field(default_factory=dict)
    released: bool = False
    takes: str = "some minutes"

    def __post_init__(self) -> None:
        both = set(self.programs) & set(self.trees)
        if both or self.output in self.trees:
            raise ValueError(f"recipe {self.name}: {', '.join(both) or self.output} is a program and a tree")

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it puts into the cache for others to use."""
        return (*self.programs, *self.trees)

    @property
    def go(self) -> str:
        """The least Go version, as its go.mod states it, such as `1.26.0`."""
        stated = re.search(r"^go (\S+)$", (self.folder / "go.mod").read_text(), re.MULTILINE)
        if stated is None:
            raise ValueError(f"{self.folder / 'go.mod'} has no line `go <version>`")
        return stated.group(1)

    def digest(self) -> str:
        """Ten hex digits over everything that decides what is built."""
        digest = hashlib.sha256(f"{' '.join(self.pins)} {goos()}/{goarch()} {self.flags}".encode())
        for path in sorted(self.folder.iterdir()):
            if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
                digest.update(path.read_bytes())
        if self.package != "." or self.trees:
            digest.update(f"{self.package} {sorted(self.trees.items(), key=str)}".encode())
        return digest.hexdigest()[:10]

    def cache_folder(self) -> Path:
        """Return where the results of exactly this recipe are kept between runs."""
        return cache_root() / f"{self.name}-{self.pins[0]}-{self.digest()}"


def of_module(
    name: str,
    title: str,
    version: str,
    module: str,
    folder: Path,
    *,
    linker: Sequence[str] = (),
    trees: Mapping[str, Tree] | None = None,
    takes: str,
) -> Recipe:
    """Return the program `cmd/<name>` of one Go module, asked for its version by the build information in it.

    `linker`: its flags besides `STRIPPED`. The rest as in `Recipe`.
    """
    return Recipe(
        name=name,
        title=f"{title} {version}",
        pins=(version,),
        folder=folder,
        output=name,
        programs={name: version},
        ask=lambda _, path: built_version(path, module),
        package=f"{module}/cmd/{name}",
        flags=("-trimpath", "-buildvcs=false", "-ldflags", " ".join((STRIPPED, *linker))),
        trees=trees or {},
        takes=takes,
    )


def goos() -> str:
    """Return this machine's operating system in Go's words, such as `linux`."""
    return sys.platform


def goarch() -> str:
    """Return this machine's processor in Go's words, such as `amd64`."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def cache_root() -> Path:
    """`EVALSTOP_CACHE`, else `evalstop` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`)."""
    explicit = os.environ.get("EVALSTOP_CACHE")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "evalstop"


def printed_version(path: Path, *arguments: str) -> str | None:
    """Return the first version number in what a program prints, such as `1.36.3`; None if it prints none."""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\bv?(\d+\.\d+\.\d+)", done.stdout)
    return version.group(1) if version else None


def built_version(path: Path, module: str) -> str | None:
    """Return the version of a Go module inside a program, by the build information that Go puts into it."""
    line = rb"(?:mod|dep)\t" + re.escape(module.encode()) + rb"\tv(\d+\.\d+\.\d+)[\t\n]"
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = re.search(line, content)
            return found.group(1).decode() if found else None
    except (OSError, ValueError):  # unreadable, or empty
        return None
