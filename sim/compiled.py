"""`python -m sim.compiled [FOLDER]`: the very same sources as a C extension, by mypyc.

Pure Python is the product; this is for long sweeps. The folder (default build/compiled) gets a copy of
`sim` and of the brain in which the modules of the inner loop are compiled; start Python there:

    cd build/compiled && python -m …

Needs mypy and a C compiler. Times come out as floats where pure Python keeps ints; decisions are the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

MODULES = (
    "controller/policy/pool/placement.py",
    "controller/policy/pool/planner.py",
    *(f"controller/policy/queueing/{name}.py" for name in ("base", "evalstop", "fifo", "greedy", "srtf")),
    *(f"controller/policy/queueing/{name}.py" for name in ("las", "las_queues")),
    "sim/kernel.py",
    *(f"sim/engine/{name}.py" for name in ("bare", "run", "training", "view")),
)
_ROOT = Path(__file__).resolve().parents[1]
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = ["--follow-imports=silent", "--strict", *sys.argv[1:]]
setup(name="evalstop-compiled", packages=[], script_args=["-q", "build_ext", "--inplace"],
      ext_modules=mypycify(modules, opt_level="2"))
"""


class CompileError(RuntimeError):
    """There is no mypyc or no C compiler, or one of them refused; the message has the end of its output."""


def build(folder: Path) -> Path:
    """Copy and compile into ``folder``, which is made anew; return it. Takes half a minute.

    Raises:
        CompileError: it cannot be compiled here.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for package in ("sim", "controller/policy"):
        shutil.copytree(
            _ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for module in ("controller/__init__.py", "controller/names.py"):
        shutil.copy(_ROOT / module, folder / module)
    done = subprocess.run(
        [sys.executable, "-c", _SETUP, *MODULES], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CompileError(f"mypyc in {folder}: {(done.stdout + done.stderr)[-2000:].strip()}")
    shutil.rmtree(folder / "build", ignore_errors=True)
    return folder


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/compiled")
    try:
        print(build(folder))
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
