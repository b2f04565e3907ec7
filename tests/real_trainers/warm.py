"""Trainers without their ten seconds of imports: each is a fork of one process that has imported all of it.

`Warm` starts that process (``python warm.py`` in the environment of the real trainers) and tells it by lines
of JSON what to fork. The standard library only, until the process imports the rest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTS = (
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "trl.trainer.grpo_trainer",
    "trl.trainer.dpo_trainer",
    "datasets",
    "peft",
    "evalstop_client.hf",
)


class Warm:
    """The process that is forked, as the tests see it."""

    def __init__(self, python: str, environment: Mapping[str, str], log: Path) -> None:
        self._process = subprocess.Popen(
            [python, __file__],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
        )
        self._answer()  # it has imported everything

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """Fork a process that runs a script with its arguments; return its id. It is a session of its own."""
        return self._ask({"start": list(command), "environment": dict(environment), "log": str(log)})

    def poll(self, pid: int) -> int | None:
        """Return its exit code, negative by a signal; None while it runs."""
        return self._ask({"poll": pid})

    def run(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """Fork a process as `start` does, and return its exit code once it has ended."""
        pid = self.start(command, environment, log)
        while (code := self.poll(pid)) is None:
            time.sleep(0.02)
        return code

    def learn(self, modules: Path) -> None:
        """Import what a trainer had imported at its end: a list of names in a file (see `LEARN`)."""
        self._ask({"learn": str(modules)})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, question: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that is forked has ended; its log says why"
        return json.loads(line)


LEARN = "WARM_LEARN"  # environment: the file to which a trainer writes what it has imported


def _run(question: Mapping[str, Any]) -> int:
    """Run the script in this process, which has been forked for it; return the exit code."""
    os.setsid()
    log = os.open(question["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # says where it hangs
    os.environ.clear()
    os.environ.update(question["environment"])
    sys.argv = list(question["start"])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    if learn := os.environ.get(LEARN):
        Path(learn).write_text(json.dumps(sorted(sys.modules)))
    return 0


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for name in IMPORTS:
        importlib.import_module(name)
    answer: Any = "ready"
    while True:
        out.write(json.dumps(answer) + "\n")
        out.flush()
        line = sys.stdin.readline()
        if not line:
            return
        question = json.loads(line)
        if "start" in question:
            gc.collect()
            gc.freeze()  # a collection in the fork would touch, and so copy, all of it
            answer = os.fork()
            if answer == 0:
                out.close()
                code = _run(question)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        elif "poll" in question:
            pid, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            for name in json.loads(Path(question["learn"]).read_text()):
                with contextlib.suppress(ImportError):  # some put names there that are no modules
                    importlib.import_module(name)
            answer = "learned"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
