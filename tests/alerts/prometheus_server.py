"""A real Prometheus with the shipped rules, for tests that ask it."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

# Told by a replica that leads and has talked to an API server, and by no registry alone.
OF_A_LEADER = ("evalstop_leader_epoch", "evalstop_clock_skew_seconds")


class PrometheusServer:
    """A Prometheus of the test's own: it scrapes each second, and its rules fire without waiting."""

    def __init__(self, program: Path, folder: Path, target: dict[str, Any], alerts: Path) -> None:
        rules = yaml.safe_load(alerts.read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule.pop("for", None)
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "evalstop", **target}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.log = folder / "prometheus.log"
        argv = [
            str(program),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
        ]
        argv += [f"--web.listen-address={self._address}"]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; None: it does not answer."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def states(self) -> dict[str, str]:
        """Alert -> its state; a rule that could not be evaluated: its error."""
        found = self.ask("rules", type="alert") or {"groups": []}
        return {
            rule["name"]: rule["state"] if rule["health"] in ("ok", "unknown") else rule["lastError"]
            for group in found["groups"]
            for rule in group["rules"]
        }

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
