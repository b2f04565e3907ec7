"""An environment with the real trainers, outside the checkout: 5 GB, since torch is its CUDA build.

It lies in the cache of built tools, by the digest of the lock file, so that a second checkout finds it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from deploy.local import recipe

LOCK = Path(__file__).with_name("requirements.lock")
# deepspeed is built from source, without its compiled operators, by this.
BUILDS = "setuptools"


def environment() -> Path:
    """Return the Python of the environment, which is made if it is not there.

    Raises:
        subprocess.CalledProcessError: pip failed; it has said why.
    """
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:10]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = recipe.cache_root() / f"trainers-{version}-{digest}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing torch, transformers, trl, deepspeed … into {folder} (some 5 GB)", flush=True)
    venv.create(folder, with_pip=True)
    _install(python, _part(LOCK.read_text(), BUILDS), folder / "builds.lock")
    _install(python, LOCK.read_text(), folder / "requirements.lock")
    (folder / "complete").touch()
    return python


def _install(python: Path, lock: str, file: Path) -> None:
    file.write_text(lock)
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-build-isolation")
    subprocess.run(
        [python, "-m", "pip", "install", *options, "--require-hashes", "-r", file],
        check=True,
        env={**os.environ, "DS_BUILD_OPS": "0"},
    )


def _part(lock: str, name: str) -> str:
    """Return the lines of one package."""
    found = re.search(rf"^{re.escape(name)}==.*(?:\n +--hash=.*)*", lock, re.MULTILINE)
    assert found is not None, f"{LOCK}: has no {name}"
    return found.group() + "\n"


if __name__ == "__main__":
    print(environment())
