"""The official release downloads, each compared with a digest that is pinned beside its version.

A checksum that comes from the same server as the file says that the file came whole, not whose it is. So a
file is downloaded only if `versions.DIGESTS` has its sha256, or the caller asks for unpinned ones: then what
the release publishes decides. Kubernetes publishes `NAME` and `NAME.sha256` for each binary; etcd one archive
and `SHA256SUMS`. An offline machine loses one short time-out, not one per binary.
"""

import dataclasses
import hashlib
import http.client
import re
import shutil
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from deploy.local import versions
from deploy.local.recipe import goarch, goos
from deploy.local.report import Report
from deploy.local.versions import ETCD_NAME

_SMALL = 1 << 20  # bytes: no checksum file is larger
_CHUNK = 1 << 18
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class DownloadError(RuntimeError):
    """A download failed; the message has the address."""


@dataclasses.dataclass(frozen=True)
class Releases:
    """Addresses of releases, and how long to wait for them.

    Attributes:
        kubernetes, etcd: base addresses; https, or http on loopback.
        digests: sha256 of the files that may be downloaded, by `key`.
        unpinned: whether what the release publishes will do for a file that has none.
        answer_s: seconds within which a server must have sent its checksum.
        stall_s: seconds without a byte after which a download is given up.
        slowest: bytes per second, averaged over `slow_s` seconds, below which building is faster.
    """

    kubernetes: str = "https://dl.k8s.io/release"
    etcd: str = "https://github.com/etcd-io/etcd/releases/download"
    digests: Mapping[str, str] = field(default_factory=lambda: versions.DIGESTS)
    unpinned: bool = False
    answer_s: float = 3.0
    stall_s: float = 10.0
    slowest: float = 200_000.0
    slow_s: float = 20.0

    def __post_init__(self) -> None:
        for address in (self.kubernetes, self.etcd):
            check_address(address)

    def file(self, name: str) -> str:
        """Return the address of the file that is, or holds, a binary."""
        os, arch = goos(), goarch()
        if name == ETCD_NAME:
            return f"{self.etcd}/v{versions.ETCD}/{etcd_archive()}"
        return f"{self.kubernetes}/v{versions.KUBERNETES}/bin/{os}/{arch}/{name}"

    def key(self, name: str) -> str:
        """Return what `digests` calls that file: it differs by version and platform."""
        version = versions.ETCD if name == ETCD_NAME else versions.KUBERNETES
        return f"{name} {version} {goos()}/{goarch()}"

    def checksum(self, name: str) -> str:
        """Return the address of that file's published sha256."""
        return (
            f"{self.etcd}/v{versions.ETCD}/SHA256SUMS" if name == ETCD_NAME else f"{self.file(name)}.sha256"
        )


@dataclasses.dataclass
class Outcome:
    """Binaries that came, with their address; and why the others did not."""

    fetched: dict[str, str]
    failed: dict[str, str]


def etcd_archive() -> str:
    """Return the file name of etcd's release for this machine."""
    ending = "tar.gz" if goos() == "linux" else "zip"
    return f"etcd-v{versions.ETCD}-{goos()}-{goarch()}.{ending}"


def check_address(address: str) -> None:
    """Errors: ValueError unless it is https, or http on loopback."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"release address {address!r} must begin with https:// (http:// only on loopback)")


def download(releases: Releases, names: Sequence[str], folder: Path, report: Report) -> Outcome:
    """Fetch binaries into `folder`, executable, each only if its checksum is right."""
    outcome = Outcome({}, {})
    known: dict[str, str | DownloadError] = {
        name: digest for name in names if (digest := releases.digests.get(releases.key(name)))
    }
    for name in (name for name in names if name not in known and not releases.unpinned):
        outcome.failed[name] = f"no digest is pinned for {releases.key(name)} (deploy/local/digests.json)"
    unknown = [name for name in names if name not in known and releases.unpinned]
    if unknown:
        report(f"asking for the releases of {', '.join(unknown)}", progress=True)
        known |= _checksums(releases, unknown)
    for name, checksum in known.items():
        url = releases.file(name)
        try:
            if isinstance(checksum, DownloadError):
                raise checksum
            _fetch(releases, name, url, checksum, folder, report)
        except DownloadError as error:
            outcome.failed[name] = str(error)
        else:
            outcome.fetched[name] = url
    return outcome


def published(releases: Releases, names: Sequence[str]) -> dict[str, str]:
    """Return what the releases publish for these, by `Releases.key`. Errors: DownloadError for the first."""
    found = {}
    for name, checksum in _checksums(releases, names).items():
        if isinstance(checksum, DownloadError):
            raise checksum
        found[releases.key(name)] = checksum
    return found


def _checksums(releases: Releases, names: Sequence[str]) -> dict[str, str | DownloadError]:
    """Return the published sha256 of each file, all asked for at once."""
    answers: dict[str, str | DownloadError] = {
        name: DownloadError(f"{releases.checksum(name)}: no answer within {releases.answer_s:g} s")
        for name in names
    }

    def ask(name: str) -> None:
        try:
            answers[name] = _checksum(releases, name)
        except DownloadError as error:
            answers[name] = error

    # Threads, because nothing else bounds a name lookup; daemons, because nothing ends one either.
    threads = [threading.Thread(target=ask, args=[name], daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + releases.answer_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)  # a copy: a late thread changes nothing any more


def _checksum(releases: Releases, name: str) -> str:
    url = releases.checksum(name)
    with _open(url, releases.answer_s) as answer:
        text = _read(answer, url, _SMALL).decode(errors="replace")
    if name == ETCD_NAME:  # lines of `<sha256>  <file>`
        wanted = etcd_archive()
        text = next((line for line in text.splitlines() if line.split()[-1:] == [wanted]), "")
    found = re.match(r"([0-9a-f]{64})(\s|$)", text.strip())
    if found is None:
        raise DownloadError(f"{url}: holds no sha256 of {Path(releases.file(name)).name}")
    return found.group(1)


def _fetch(releases: Releases, name: str, url: str, checksum: str, folder: Path, report: Report) -> None:
    raw = folder / f"{name}.download"
    digest = hashlib.sha256()
    began = mark = time.monotonic()
    done = marked = 0
    with _open(url, releases.stall_s) as answer, raw.open("wb") as file:
        total = int(answer.headers.get("Content-Length") or 0)
        while chunk := _read(answer, url, _CHUNK, releases.stall_s):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            now = time.monotonic()
            if now - mark > releases.slow_s:
                rate = (done - marked) / (now - mark)
                if rate < releases.slowest:
                    raise DownloadError(
                        f"{url}: only {rate / 1000:.0f} kB/s: given up after {now - began:.0f} s"
                    )
                mark, marked = now, done
            share = f" of {total / 1e6:.0f}" if total else ""
            report(f"downloading {name}: {done / 1e6:.0f}{share} MB", progress=True)
    if total and done != total:
        raise DownloadError(f"{url}: ended after {done} of {total} bytes")
    if digest.hexdigest() != checksum:
        raise DownloadError(
            f"{url}: refused, its sha256 is {digest.hexdigest()[:12]}…, expected {checksum[:12]}…"
        )
    target = folder / name
    if name == ETCD_NAME:
        _unpack(raw, url, target)
        raw.unlink()
    else:
        raw.replace(target)
    target.chmod(0o755)


def _unpack(archive: Path, url: str, target: Path) -> None:
    """Copy the one file `etcd` out of etcd's archive; nothing else of it is ever written."""
    member = f"{etcd_archive().removesuffix('.tar.gz')}/{ETCD_NAME}"
    try:
        with tarfile.open(archive, "r:gz") as tar:
            source = tar.extractfile(member)
            if source is None:
                raise KeyError(member)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    except (tarfile.TarError, OSError, EOFError, KeyError) as error:
        raise DownloadError(f"{url}: no file {member} in it ({error})") from error


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to http."""

    def redirect_request(
        self,
        request: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_address(newurl)
        return super().redirect_request(request, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SafeRedirects)


def _open(url: str, timeout_s: float) -> Any:
    try:
        return _OPENER.open(url, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise DownloadError(f"{url}: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"{url}: {reason}") from error


def _read(answer: Any, url: str, size: int, stall_s: float = 0.0) -> bytes:
    try:
        # read1 returns what has come: `read` would wait for all of `size` and hide a slow server.
        return bytes(answer.read1(size) if stall_s else answer.read(size))
    except TimeoutError as error:
        raise DownloadError(f"{url}: no byte within {stall_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{url}: {error or type(error).__name__}") from error
