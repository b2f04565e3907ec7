"""A running versitygw on loopback: S3 over a folder, for tests.

with gateway(tools[PROGRAM].path, folder) as url: ...
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from deploy.local import processes
from deploy.local.errors import PlaneError

ACCESS, SECRET, REGION = "tester", "not-a-secret", "us-east-1"
_READY_S = 30.0


@contextlib.contextmanager
def gateway(program: Path, folder: Path) -> Iterator[str]:
    """Serve ``folder``, each folder in it a bucket; gives the address.

    Errors: PlaneError, with the end of what it printed.
    """
    port = _free_port()
    log = folder.parent / f"{folder.name}.log"
    argv = [str(program), "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET]
    argv += ["--region", REGION, "--quiet", "posix", str(folder)]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=output, cwd=folder.parent, preexec_fn=processes.die_with_parent
        )
    try:
        _wait(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def environment(url: str) -> dict[str, str]:
    """Return what a client has in its environment to use it."""
    return {
        "AWS_ENDPOINT": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
    }


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(urllib.error.HTTPError, OSError):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2.0).close()
            except urllib.error.HTTPError:
                return  # it answers: it wants a signature
            return
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:]
            raise PlaneError(f"versitygw does not answer on port {port}; {log} ends:\n{tail}")
        time.sleep(0.05)
