"""What the tests of adapters share: a pod's environment, what the operator asks, what its page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controller.metrics.parse import parse
from controller.policy.job import ScrapeView
from evalstop_client.client import EvalStopClient


class World:
    """One trainer process's surroundings, in a folder."""

    def __init__(self, folder: Path, **run: Any) -> None:
        self.folder, self.out = folder / "run", folder / "out"
        self.folder.mkdir(exist_ok=True)
        self._run: dict[str, Any] = {"uid": "u-1", "attempt": 1, "scrapeIntervalSeconds": 0.05, **run}
        self.ask()
        self.client = EvalStopClient(self.folder, port=0, host="127.0.0.1", life="a1")

    def ask(self, **request: Any) -> None:
        """As the operator writes it."""
        draft = self.folder / ".new"
        draft.write_text(json.dumps({**self._run, "request": {"id": 0, **request}}))
        draft.rename(self.folder / "run.json")

    def page(self, metric: str) -> ScrapeView:
        return parse(self.client.exposition(), metric)

    def evals(self, metric: str) -> list[tuple[int, float]]:
        return [(p.step, p.score) for p in self.page(metric).points]

    def records(self) -> dict[str, dict[str, Any]]:
        """Save records by the name of their checkpoint."""
        found = (json.loads(p.read_text()) for p in (self.out / ".evalstop" / "saves").glob("*.json"))
        return {record["name"]: record for record in found}
