"""The end of the demo in words and files: summary, summary.json, picture, decision log replayed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from controller.checkpoints.digest import hash_files, tree_digest
from controller.checkpoints.volume import Volume
from controller.policy.wording import counted
from deploy.local.demo.facts import Chronicle, ProxyPoint, describe
from deploy.local.demo.stage import Scene, Stage
from deploy.local.demo.story import DemoOutcome
from deploy.local.demo.trainer import Manifest, recorded_proxies


def gather(outcome: DemoOutcome, jobs: Sequence[Manifest], stage: Scene) -> dict[str, Any]:
    """Return all facts of summary.json: what the API said, proxies as recorded, checkpoints looked at once
    more."""
    for chronicle, job in zip(outcome.chronicles, jobs, strict=True):
        namespace = chronicle.key.partition("/")[0]
        proxies = recorded_proxies(job, lambda claim, ns=namespace: stage.claim_folder(ns, claim))  # type: ignore[misc]
        chronicle.proxies = [ProxyPoint(step, reward) for step, reward in proxies]
    facts = describe(outcome.chronicles, outcome.seconds)
    if outcome.timed_out:
        facts["problems"].insert(0, f"not over after {outcome.seconds:.0f} s")
    for entry, chronicle, job in zip(facts["jobs"], outcome.chronicles, jobs, strict=True):
        if entry["checkpoint"] is not None:
            _look_at_checkpoint(entry["checkpoint"], chronicle, job, stage, facts["problems"])
    return facts


def _look_at_checkpoint(
    kept: dict[str, Any], chronicle: Chronicle, job: Manifest, stage: Scene, problems: list[str]
) -> None:
    """Add to ``kept`` where the retained checkpoint lies here, and to ``problems`` what is wrong with it."""
    claim = job["spec"]["checkpoints"]["retention"]["volumeClaim"]["claimName"]
    kept["claim"] = claim
    root = stage.claim_folder(chronicle.key.partition("/")[0], claim)
    tail = "/".join(Path(kept["path"]).parts[-3:])  # <namespace>/<name>-<uid5>/<attempt>-<life>-<step>
    found = sorted(path for path in root.rglob(f"{Path(tail).name}") if str(path).endswith(tail))
    if len(found) != 1:
        problems.append(f"{chronicle.name}: the retained checkpoint {kept['path']} is not in claim {claim}")
        return
    kept["folder"] = str(found[0])
    volume = Volume(str(found[0]))
    digest = tree_digest(hash_files(volume.files(""), volume.hash))
    kept["digestChecked"] = digest == kept["digest"]
    if not kept["digestChecked"]:
        problems.append(
            f"{chronicle.name}: the retained checkpoint has digest {digest}, recorded is {kept['digest']}"
        )


def replay(log: Path, copy: Path) -> tuple[bool, str]:
    """Copy the decision log and decide all of it anew; (whether all is the same, what replay said)."""
    if not log.is_file():
        return False, f"no decision log at {log}"
    written = log.read_bytes()
    copy.write_bytes(written[: written.rfind(b"\n") + 1])  # the operator may be writing its next line
    command = [sys.executable, "-m", "controller.cli", "replay", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def write(facts: Mapping[str, Any], path: Path) -> None:
    """Write summary.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n")


def print_summary(facts: Mapping[str, Any], console: Console) -> None:
    """Print the summary for people."""
    console.print()
    for job in facts["jobs"]:
        head = Text.assemble(
            (f"{job['name']}", "bold"), (f"  {job['role']}, {counted(job['gpus'], 'GPU')}", "dim")
        )
        console.print(head, highlight=False)
        for line in _lines(job):
            console.print(f"  {line}", soft_wrap=True, highlight=False)
    saved = facts["gpuHoursSaved"]
    console.print()
    console.print(
        f"GPU-hours saved: {saved:.3f} (against running to the last step at the same pace)", style="bold"
    )


def _lines(job: Mapping[str, Any]) -> list[str]:
    newest = job["evals"][-1] if job["evals"] else None
    decision = job["decision"]
    best = (
        f"best eval {job['bestScore']:.4f} at step {job['bestStep']}"
        if job["bestStep"] is not None
        else "no eval"
    )
    if decision is None:
        end = "finished" if job["completed"] else "did not finish"
        return [
            f"{end}; {best}" + (f", last {newest['score']:.4f} at step {newest['step']}" if newest else "")
        ]
    lines = [
        f"{best}; stopped at step {decision['step']} of {job['totalSteps']}: {decision['message']}",
    ]
    kept = job["checkpoint"]
    if kept is not None:
        again = ", checked again" if kept.get("digestChecked") else ""
        lines.append(
            f"checkpoint of step {kept['step']} kept in claim {kept.get('claim', '?')}: {kept['path']}"
        )
        lines.append(f"  {kept['digest']}{again}; here: {kept.get('folder', 'not found')}")
    stages = (("retained", "retainedAt"), ("suspended", "suspendedAt"), ("pods gone", "podsGoneAt"))
    after = [f"{name} {job[at] - decision['time']:.1f} s" for name, at in stages if job[at] is not None]
    handover = job["handover"]
    if handover is not None and handover["seconds"] is not None:
        after.append(f"pods of {handover['to']} running {handover['seconds']:.1f} s")
    lines.append(f"after the decision: {', '.join(after)}")
    if handover is not None:
        lines.append(f"its {counted(job['gpus'], 'GPU')} went to {handover['to']}")
    return lines


def looking_around(stage: Stage, namespace: str, over: str, pool: str) -> str:
    """Return lines to paste for a cluster that is left up. ``over``: an RLHFJob that was stopped."""
    plane = stage.plane
    binary, ours = plane.work / "bin" / "kubectl", Path(sys.executable).parent / "evalstop"
    return "\n".join(
        [
            "The cluster is left up. Look around, as you would at home:",
            f"  export KUBECONFIG={plane.kubeconfig}; alias kubectl={binary} evalstop={ours}",
            f"  evalstop list -n {namespace}",
            f"  evalstop why {over} -n {namespace}",
            f"  evalstop pools {pool}",
            f"  evalstop doctor {over} -n {namespace}",
            f"  evalstop top -n {namespace}",
            f"  kubectl -n {namespace} get rlhfjobs -o wide",
            f"  kubectl -n {namespace} describe rlhfjobs",
            "  kubectl get gpupools,nodes",
            f"  kubectl -n {namespace} get pods,jobs,pvc",
            "  kubectl -n evalstop-system logs deployment/evalstop-operator",
            f"End it: {sys.executable} -m deploy.local down --work {plane.work}",
        ]
    )
