"""What kind is asked for when its cluster is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deploy.kind.nodes import WORKERS, Kind
from deploy.local.errors import PlaneError
from deploy.local.report import silent


def test_the_cluster_is_asked_for_in_kinds_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in kind's place has no clusters yet, and fails when it is told to make one."""
    program = tmp_path / "bin" / "kind"
    program.parent.mkdir()
    asked = tmp_path / "asked.yaml"
    program.write_text(f'#!/bin/sh\n[ "$1" = create ] || exit 0\ncat > {asked}\nexit 1\n')
    program.chmod(0o755)
    (program.parent / "docker").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(PlaneError, match="kind create cluster --name c"):
        Kind("c", tmp_path / "work", "node:1", silent).up()
    config = yaml.safe_load(asked.read_text())
    assert (config["kind"], config["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert [node["role"] for node in config["nodes"]] == ["control-plane", *["worker"] * WORKERS]
