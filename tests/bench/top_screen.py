"""`python -m tests.bench.top_screen JOBS CHANGES`: `evalstop top`; so many jobs, changes each second."""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any

from controller.cli.screen.app import Top
from controller.cli.screen.rows import key_of
from tests.support import cli_world as w


class View:
    """Jobs that change."""

    def __init__(self, count: int, changes: int) -> None:
        records = list(w.records().items())
        made = [w.whole(name, record) for name, record in records]
        self.jobs: dict[str, Any] = {}
        for number in range(count):
            obj = copy.deepcopy(made[number % len(made)])
            obj["metadata"] |= {
                "name": f"run-{number:05}",
                "uid": f"u{number}",
                "resourceVersion": str(number),
            }
            self.jobs[key_of(obj)] = obj
        self.pools = {f"/pool-{n}": w.pool(f"pool-{n}") for n in range(4)}
        self._changes, self._version = changes, count
        self.silent = self.away = ""

    async def fill(self) -> None:
        pass

    async def follow(self) -> None:
        keys, at = list(self.jobs), 0
        while True:
            for _ in range(max(1, self._changes // 10) if self._changes else 0):
                key, at = keys[at % len(keys)], at + 7
                obj = self.jobs[key]
                self._version += 1
                status = dict(obj.get("status") or {})
                if "printed" in status:
                    status["printed"] = {**status["printed"], "step": self._version}
                metadata = {**obj["metadata"], "resourceVersion": str(self._version)}
                self.jobs[key] = {**obj, "metadata": metadata, "status": status}
            await asyncio.sleep(0.1)


class Api:
    async def may(self, *_: Any, **__: Any) -> bool:
        return True


if __name__ == "__main__":
    view = View(int(sys.argv[1]), int(sys.argv[2]))
    Top(view, Api()).run(mouse=False)  # type: ignore[arg-type]
