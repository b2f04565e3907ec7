"""What kind is asked for when its cluster is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deploy.helm.cluster import waits
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


def test_a_cluster_of_that_name_that_somebody_else_made_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes lack the folder of the volumes: pods waited for it until helm gave up after minutes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (
        ("kind", 'case "$2" in clusters) echo other c;; nodes) echo c-control-plane c-worker;; esac'),
        ("docker", "echo /var/lib/docker/volumes/somewhere"),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with pytest.raises(PlaneError, match=r"kind cluster c that was not made from this folder.*KIND_CLUSTER="):
        Kind("c", tmp_path / "work", "", silent).up()


def test_an_installation_that_fails_says_which_pod_waits_for_what() -> None:
    def pod(name: str, ready: str, **status: object) -> dict[str, object]:
        conditions = [{"type": "Ready", "status": ready}]
        return {"metadata": {"name": name}, "status": {"conditions": conditions, **status}}

    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}}}
    unplaced = pod("b", "False")
    unplaced["status"]["conditions"].append(  # type: ignore[index]
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: untolerated taint"}
    )
    events = [
        {"involvedObject": {"name": "c"}, "message": "older", "lastTimestamp": "2026-01-01T00:00:00Z"},
        {
            "involvedObject": {"name": "c"},
            "message": "hostPath type check failed",
            "lastTimestamp": "2026-01-02",
        },
    ]
    pods = [pod("ok", "True"), pod("a", "False", containerStatuses=[waiting]), unplaced, pod("c", "False")]
    assert list(waits(pods, events)) == [
        "pod a is not ready: ImagePullBackOff: Back-off pulling x",
        "pod b is not ready: 0/3 nodes: untolerated taint",
        "pod c is not ready: hostPath type check failed",
    ]
