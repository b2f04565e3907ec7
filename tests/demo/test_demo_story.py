"""The demo itself, on a control plane of its own: hurried, and interrupted."""

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from controller.cli.main import app
from deploy.local.acquire import Found
from deploy.local.demo import cast, report
from deploy.local.demo.cast import Cast
from deploy.local.demo.stage import stage
from deploy.local.demo.story import run_story
from deploy.local.report import silent


def hurried(given: Cast) -> Cast:
    """The same runs at a third more than their pace: as long as they last, nothing else about them changes.

    Not at twice: beside the rest of the suite a stop then takes so long that an eval may rise in between.
    """
    faster = {"--step-seconds=0.2": "--step-seconds=0.15", "--linger-seconds=12": "--linger-seconds=9"}
    jobs = []
    for job, role in given.jobs:
        changed: dict[str, Any] = copy.deepcopy(dict(job))
        container = changed["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"][0]
        assert faster.keys() <= set(container["args"])
        container["args"] = [faster.get(word, word) for word in container["args"]]
        jobs.append((changed, role))
    return Cast(given.supplies, tuple(jobs))


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that have anything to do with a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if str(folder).encode() in words + (entry / "environ").read_bytes():
                    found.append(words.replace(b"\0", b" ").decode())
    return found


def by_role(facts: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return next(job for job in facts["jobs"] if job["role"] == role)


@pytest.mark.timeout(420)
def test_the_story_happens(tools: dict[str, Found], tmp_path: Path) -> None:
    happens(hurried(cast.load()), tmp_path)
    log = tmp_path / "decisions.jsonl"
    assert not any(offers(log))
    without_stops(log)


@pytest.mark.timeout(420)
def test_the_story_happens_under_kueue(
    tools: dict[str, Found], kueue_tools: dict[str, Found], tmp_path: Path
) -> None:
    """As `make demo QUEUE=kueue` tells it: a real Kueue hands the GPUs that are freed to who waits."""
    happens(cast.under_kueue(hurried(cast.load())), tmp_path, kueue=True)
    given = offers(tmp_path / "decisions.jsonl")
    assert given
    assert all(given)


def happens(scenes: Cast, tmp_path: Path, kueue: bool = False) -> None:
    """The demo's story with these jobs, and what must be true of it."""
    output = tmp_path / "output.txt"
    with (
        output.open("w") as lines,
        stage(tmp_path / "plane", scenes.node_labels, silent, kueue=kueue) as built,
    ):
        told = run_story(built, scenes, Console(file=lines, width=200), patience=240)
        facts = report.gather(told, [job for job, _ in scenes.jobs], built)
        same, words = report.replay(built.decision_log(), tmp_path / "decisions.jsonl")
        assert facts["problems"] == [], f"{output.read_text()}\n{decisions(tmp_path / 'decisions.jsonl')}"
    assert same, words

    over, waiting = by_role(facts, "over-optimising"), by_role(facts, "waiting")
    decision, handover = over["decision"], over["handover"]
    assert over["bestStep"] < decision["step"] < over["totalSteps"]
    newest = max(over["evals"], key=lambda e: e["step"])
    assert newest["score"] < over["bestScore"]
    assert over["proxies"][-1]["reward"] > max(
        p["reward"] for p in over["proxies"] if p["step"] <= over["bestStep"]
    )
    assert decision["time"] <= over["retainedAt"] <= over["suspendedAt"] <= over["podsGoneAt"]
    assert over["suspendedAt"] < handover["at"], "how much later is looked at among the problems"
    assert handover["to"] == "waiting"
    assert handover["seconds"] < 60
    assert over["checkpoint"]["digestChecked"]
    assert 0 <= over["bestStep"] - over["checkpoint"]["step"] <= 20
    assert over["gpuHoursSaved"] > 0
    assert waiting["completed"]
    assert "overoptimising: Declining" in output.read_text()
    assert processes_of(tmp_path) == []


def decisions(log: Path) -> str:
    """Return what was decided, a line for each change, to find out why the story went another way."""
    lines, before = [], {}
    for entry in map(json.loads, log.open()):
        given, plan = entry["input"], entry["decision"]
        if entry["kind"] == "pool":
            about = "pool"
            states = {j.get("key"): j.get("state") for j in given.get("jobs", ())}
            told = states | {
                k: plan.get(k) for k in ("grants", "admissions", "reservations", "waiting", "refusals")
            }
        elif (about := given["desired"]["key"]).endswith("waiting"):
            seen = given["observed"]
            told = {k: seen.get(k) for k in ("queue", "queue_problem")} | {"state": plan.get("state")}
        else:
            continue
        if told != before.get(about):
            lines.append(f"{entry['now']:.2f} {about}: {json.dumps(told)}")
            before[about] = told
    return "\n".join(lines)


def offers(log: Path) -> list[str]:
    """The quota of a queue outside that each admission rests on."""
    plans = [entry["decision"] for entry in map(json.loads, log.open()) if entry["kind"] == "pool"]
    return [admission.get("offer", "") for plan in plans for admission in plan["admissions"]]


def without_stops(log: Path) -> None:
    """What-if on the demo's own history: had nobody been stopped, `waiting` had waited longer."""
    done = CliRunner().invoke(app, ["what-if", str(log), "--rule", "none", "--json", "--no-plot"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    figures = {one["figure"]: one for one in found["figures"]}
    assert figures["stops"]["recorded"] == figures["stops"]["baseline"] == 1
    # The replay comes near the record. It has the record's mean delays, not each one: on a busy machine one
    # start takes as long as all others together, and the recorded waits tell how busy it was.
    near = max(0.15 * figures["mean_jct"]["recorded"], 2 * figures["mean_wait"]["recorded"])
    assert figures["mean_jct"]["baseline"] == pytest.approx(figures["mean_jct"]["recorded"], abs=near)
    assert figures["mean_wait"]["difference"]["low"] > 0.0
    assert figures["gpu_hours"]["difference"]["low"] > 0.0


@pytest.mark.timeout(180)
def test_ctrl_c_leaves_no_process(tools: dict[str, Found], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.local.demo", "--out", str(tmp_path)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as demo:
        watchdog = threading.Timer(150, demo.kill)
        watchdog.start()
        assert demo.stdout is not None
        said = []
        for line in demo.stdout:
            said.append(line)
            if "GPUs each are ready" in line:
                assert processes_of(tmp_path)
                demo.send_signal(signal.SIGINT)
        status = demo.wait()
        watchdog.cancel()
    assert status == 130, "".join(said)
    assert said[-1] == "interrupted; every process of the demo was ended\n"
    assert processes_of(tmp_path) == []
