"""One plane's work folder: what lies where, who may change it, and whether it can be used.

bin/ config/ data/ kubeconfigs/ logs/ pki/ run/ volumes/   plane.json   up.lock
"""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.local.errors import PlaneError
from deploy.local.report import Report
from deploy.local.versions import KUBERNETES

RECORD = "plane.json"
LOCK = "up.lock"
SPACE = 250_000_000  # bytes that a plane takes in its first minutes
LAYOUT = 1  # a folder of another layout is refused
FOLDERS = ("bin", "config", "data", "kubeconfigs", "logs", "pki", "run", "volumes")


class WorkFolder:
    """The folder at `root`. Errors of all methods: PlaneError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.config = root / "config"
        self.data = root / "data"
        self.kubeconfigs = root / "kubeconfigs"
        self.logs = root / "logs"
        self.pki = root / "pki"
        self.run = root / "run"

    @contextlib.contextmanager
    def exclusive(self, report: Report) -> Iterator[None]:
        """Hold the folder: one `up` or `down` at a time. Makes the folder if it is missing."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = open(self.root / LOCK, "a")  # noqa: SIM115 - closed below
        except OSError as error:
            raise PlaneError(f"cannot use {self.root} as work folder: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another up or down in {self.root}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def prepare(self) -> None:
        """Make the folders, put the links and the logs of an earlier run out of the way."""
        for name in FOLDERS:
            (self.root / name).mkdir(exist_ok=True, mode=0o700)
        for log in self.logs.glob("*.log"):
            log.replace(log.with_suffix(".previous"))

    def claim(self) -> None:
        """Refuse a folder in which somebody keeps other things."""
        if (self.root / RECORD).exists():
            return
        # Without the record it is new, or of an `up` that was killed before it wrote one.
        strange = sorted(entry.name for entry in self.root.iterdir() if entry.name not in (*FOLDERS, LOCK))
        if strange:
            raise PlaneError(
                f"{self.root} holds other things ({', '.join(strange[:3])}): "
                "choose an empty or a new folder with --work"
            )

    def check_version(self) -> None:
        """Refuse what a plane of another version has left."""
        if not (self.root / RECORD).exists():
            return
        record = self.record()
        for key, ours in (("layout", LAYOUT), ("kubernetes", KUBERNETES)):
            if record.get(key) != ours:
                raise self.unusable(f"it was made for {key} {record.get(key)}, this is {ours}")

    def check_space(self) -> None:
        """Refuse a disk that is full: etcd would end at its start, with a page of Go's own words."""
        free = shutil.disk_usage(self.root).free
        if free < SPACE:
            raise PlaneError(
                f"the disk of {self.root} has {free / 1e6:.0f} MB free, expected {SPACE / 1e6:.0f} MB or "
                "more: make room there, or choose another work folder"
            )

    def empty(self) -> None:
        """Remove everything that a plane puts here, and nothing else."""
        for name in FOLDERS:
            shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / RECORD).unlink(missing_ok=True)

    def record(self) -> dict[str, Any]:
        """plane.json: `url`, `options`, `binaries` (name -> path), `layout`, `kubernetes`."""
        path = self.root / RECORD
        try:
            record = json.loads(path.read_text())
            shapes = {"url": str, "options": dict, "binaries": dict}
            wrong = [key for key, shape in shapes.items() if not isinstance(record.get(key), shape)]
            if wrong:
                raise ValueError(f"no valid {', '.join(wrong)}")
        except FileNotFoundError as error:
            raise PlaneError(f"no control plane was started in {self.root}") from error
        except (OSError, ValueError, AttributeError) as error:
            raise self.unusable(f"{RECORD} cannot be read ({error})") from error
        return dict(record)

    def write_record(self, url: str, options: Mapping[str, Any], binaries: Mapping[str, Path]) -> None:
        """Replace plane.json, and link the binaries into `bin/`."""
        for name, path in binaries.items():
            link = self.bin / name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
        record = {
            "layout": LAYOUT,
            "kubernetes": KUBERNETES,
            "url": url,
            "options": options,
            "binaries": {name: str(path) for name, path in binaries.items()},
        }
        temporary = self.root / f"{RECORD}.new"
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.replace(self.root / RECORD)

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 5) -> str:
        """Return the last lines of a process's log, indented."""
        try:
            text = self.log(name).read_text(errors="replace")
        except OSError:
            text = ""
        return "\n".join("  " + line for line in text.splitlines()[-lines:]) or "  (it wrote nothing)"

    def unusable(self, what: str) -> PlaneError:
        """Return the error for a folder that nothing can be started in."""
        return PlaneError(f"the work folder {self.root} cannot be used as it is: {what}. {self.start_anew()}")

    def start_anew(self) -> str:
        """Return what to do about a damaged folder."""
        return f"To start anew there: python -m deploy.local up --fresh --work {self.root}"
