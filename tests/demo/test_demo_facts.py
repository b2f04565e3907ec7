"""What the demo reads out of statuses, and when it says that the story did not happen."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor
from rich.console import Console
from typer.testing import CliRunner

from controller.api.record import status as write_status
from controller.cli.main import app
from controller.policy.job.conditions import AWAITS_CONTROLLER, COMPLETED, RELEASED, TERMINATION
from controller.policy.job.record import (
    AdmissionRecord,
    Best,
    Condition,
    Decision,
    JobRecord,
    ProtectedCheckpoint,
)
from controller.policy.job.types import Desired
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Proposal
from deploy.local.demo import __main__ as demo
from deploy.local.demo import cast, picture, trainer
from deploy.local.demo.board import Board, curve
from deploy.local.demo.facts import Chronicle, ProxyPoint, Role, describe, problems
from deploy.local.demo.report import looking_around, print_summary
from deploy.local.demo.stage import Stage
from deploy.local.demo.watch import Change
from deploy.local.plane import Plane
from deploy.local.status import Status

LIFE = Attempt(1, "9f2c41d0")
START = 1_732_186_000.0


def condition(type_: str, since: float) -> Condition:
    return Condition(type_, True, "Because", "of that", since, 1)


def evals(*scores: float) -> tuple[EvalPoint, ...]:
    return tuple(EvalPoint(10 * (i + 1), s, LIFE, 0.01, 100) for i, s in enumerate(scores))


def kept() -> ProtectedCheckpoint:
    return ProtectedCheckpoint(
        best_step=20,
        step=20,
        path="/retained/demo/over-12345/1-9f2c41d0-20",
        digest="sha256:" + "a" * 64,
        at=START + 31,
    )


RISING = evals(1.0, 2.0, 3.0)
STOPPED = JobRecord(
    attempt=1,
    evals=evals(1.0, 3.0, 2.0, 1.5, 1.2),
    best=Best(20, 3.0),
    retained=(kept(),),
    decision=Decision(
        by="kDeclines",
        mode=Mode.ENFORCE,
        proposal=Proposal(50, 20, "ConsecutiveDeclines", 3, 3),
        message="3 of 3",
        at=START + 30,
        retained_at=START + 31,
        suspended_at=START + 31.5,
        pods_gone_at=START + 32,
    ),
    conditions=(condition(TERMINATION, START + 30),),
)
FINISHED = JobRecord(
    attempt=1,
    evals=RISING,
    best=Best(30, 3.0),
    finished="Complete",
    conditions=(condition(COMPLETED, START + 60),),
)


def admission(at: float, source: str | None = None) -> AdmissionRecord:
    return AdmissionRecord(1, ("node-1", "node-2"), at, source, at + 1)


def rlhfjob(name: str, record: JobRecord | None = None, steps: int = 200) -> dict[str, Any]:
    pod = {
        "containers": [
            {
                "args": [f"--steps={steps}", "--record", "/data/logs/evals.jsonl"],
                "volumeMounts": [{"name": "v", "mountPath": "/data", "subPath": "runs"}],
            }
        ],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    job: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "gang": {"replicas": 2, "gpusPerReplica": 2},
            "workload": {"template": {"spec": {"template": {"spec": pod}}}},
        },
    }
    if record is not None:
        desired = Desired(f"demo/{name}", name, 1, "gold", 2, 2, PolicySpec("kDeclines"))
        job["status"] = write_status(record, desired, START)
    return job


def seen(name: str, role: Role, *records: JobRecord) -> Chronicle:
    chronicle = Chronicle(f"demo/{name}", role)
    for record in records:
        chronicle.see(rlhfjob(name, record))
    return chronicle


def story() -> list[Chronicle]:
    return [
        seen("over", Role.OVER_OPTIMISING, JobRecord(admission=admission(START - 1)), STOPPED),
        seen("fine", Role.HEALTHY, JobRecord(admission=admission(START)), FINISHED),
        seen(
            "next",
            Role.WAITING,
            JobRecord(),
            JobRecord(admission=admission(START + 33, "demo/over")),
            FINISHED,
        ),
    ]


def test_the_whole_story_has_no_problems() -> None:
    assert problems(story()) == []


def test_the_summary_has_the_facts_of_the_issue() -> None:
    chronicles = story()
    chronicles[0].proxies = [ProxyPoint(10, 0.5)]
    facts = json.loads(json.dumps(describe(chronicles, 61.5), allow_nan=False))
    over, fine, waiting = facts["jobs"]
    assert (over["name"], over["role"], over["gpus"], over["totalSteps"]) == (
        "over",
        "over-optimising",
        4,
        200,
    )
    assert over["evals"][1] == {"step": 20, "score": 3.0, "stderr": 0.01}
    assert over["proxies"] == [{"step": 10, "reward": 0.5}]
    assert (over["bestStep"], over["bestScore"]) == (20, 3.0)
    assert (over["decision"]["step"], over["decision"]["time"]) == (50, START + 30)
    times = (START + 31, START + 31.5, START + 32)
    assert (over["retainedAt"], over["suspendedAt"], over["podsGoneAt"]) == times
    assert over["handover"] == {"to": "next", "admittedAt": START + 33, "at": START + 34, "seconds": 4.0}
    assert over["checkpoint"]["path"] == "/retained/demo/over-12345/1-9f2c41d0-20"
    assert over["checkpoint"]["digest"] == "sha256:" + "a" * 64
    assert (over["completed"], fine["completed"], waiting["completed"]) == (False, True, True)
    assert (fine["decision"], fine["handover"], fine["checkpoint"]) == (None, None, None)
    assert (over["endedAt"], fine["endedAt"]) == (START + 32, START + 60)
    assert facts["problems"] == []


def test_gpu_hours_saved_are_those_of_running_to_the_end_at_the_same_pace() -> None:
    over = story()[0]
    # 30 s for 50 steps: 200 steps would have ended at 120 s; its 4 GPUs were free at 32 s.
    assert over.seconds_per_step() == pytest.approx(0.6)
    assert over.saved_gpu_seconds() == pytest.approx((120 - 32) * 4)
    assert describe(story(), 1.0)["gpuHoursSaved"] == pytest.approx((120 - 32) * 4 / 3600, abs=1e-6)
    assert story()[1].saved_gpu_seconds() == 0.0


def test_evals_that_left_the_status_are_remembered_in_order() -> None:
    first = JobRecord(attempt=1, evals=evals(1.0, 2.0))
    later = JobRecord(attempt=1, evals=(EvalPoint(30, 3.0, LIFE), EvalPoint(5, 0.5, Attempt(2, "9"))))
    chronicle = seen("a", Role.HEALTHY, first, later)
    assert [(p.attempt.number, p.step) for p in chronicle.evals] == [(1, 10), (1, 20), (1, 30), (2, 5)]


def change(record: JobRecord, **changes: Any) -> JobRecord:
    return dataclasses.replace(record, **changes)


NO_TIMES = dataclasses.replace(STOPPED.decision, pods_gone_at=None)  # type: ignore[type-var]
AT_THE_PEAK = dataclasses.replace(STOPPED.decision, proposal=Proposal(20, 20, "x", 3, 3))  # type: ignore[type-var]
AT_THE_END = dataclasses.replace(STOPPED.decision, proposal=Proposal(200, 20, "x", 3, 3))  # type: ignore[type-var]
OTHERWISE = [
    pytest.param(0, (FINISHED,), "over: over-optimises, but no stop was decided", id="not stopped"),
    pytest.param(
        0, (change(STOPPED, decision=NO_TIMES),), "over: a stop was decided, but its pods", id="pods remain"
    ),
    pytest.param(
        0, (change(STOPPED, decision=AT_THE_PEAK),), "over: stopped at step 20, not after", id="at the peak"
    ),
    pytest.param(
        0, (change(STOPPED, decision=AT_THE_END),), "over: stopped only at its last step", id="at the end"
    ),
    pytest.param(
        0, (change(STOPPED, retained=()),), "over: stopped, but no checkpoint is retained", id="nothing kept"
    ),
    pytest.param(1, (STOPPED,), "fine: is healthy, but was stopped", id="healthy stopped"),
    pytest.param(
        1, (JobRecord(evals=RISING),), "fine: is healthy, but did not finish", id="healthy unfinished"
    ),
    pytest.param(
        1, (change(FINISHED, finished="Failed"),), "fine: is healthy, but did not finish", id="failed"
    ),
    pytest.param(2, (JobRecord(),), "next: still waits for GPUs", id="never admitted"),
    pytest.param(
        2,
        (JobRecord(admission=admission(START + 33, "demo/over")), FINISHED),
        "never had to wait",
        id="no wait",
    ),
    pytest.param(
        2,
        (JobRecord(), JobRecord(admission=admission(START + 33)), FINISHED),
        "did not get the GPUs",
        id="others' GPUs",
    ),
    pytest.param(
        2,
        (JobRecord(), JobRecord(admission=admission(START + 9, "demo/over")), FINISHED),
        "before the pods of over were gone",
        id="too early",
    ),
    pytest.param(
        2,
        (JobRecord(), JobRecord(admission=admission(START + 33, "demo/over"))),
        "got GPUs, but did not finish",
        id="unfinished",
    ),
]


@pytest.mark.parametrize(("index", "records", "words"), OTHERWISE)
def test_what_did_not_happen_is_said(index: int, records: tuple[JobRecord, ...], words: str) -> None:
    chronicles = story()
    chronicles[index] = seen(chronicles[index].name, chronicles[index].role, *records)
    assert any(words in problem for problem in problems(chronicles))


@pytest.mark.parametrize(("running", "fine"), [(START + 31, False), (START + 31.9, True)])
def test_who_waited_may_run_before_the_stop_is_written_where_no_pod_was_left(
    running: float, fine: bool
) -> None:
    """Pods leave a node before their controller has counted them; until it has, the stop is not done."""
    waits = Condition(RELEASED, False, AWAITS_CONTROLLER, "no pod is left", START + 31.6, 1)
    chronicles = story()
    early = AdmissionRecord(1, ("node-1", "node-2"), START + 31, "demo/over", running)
    chronicles[2] = seen("next", Role.WAITING, JobRecord(), JobRecord(admission=early), FINISHED)
    assert problems(chronicles) == ["next: ran before the pods of over were gone"]
    leaving = dataclasses.replace(STOPPED, conditions=(*STOPPED.conditions, waits))
    chronicles[0] = seen("over", Role.OVER_OPTIMISING, leaving, STOPPED)
    assert (problems(chronicles) == []) is fine


def test_flags_and_paths_of_a_trainer_are_found(tmp_path: Path) -> None:
    job = rlhfjob("a")
    assert trainer.option(job, "--steps") == "200"
    assert trainer.option(job, "--record") == "/data/logs/evals.jsonl"
    assert trainer.option(job, "--seed") is None
    assert trainer.volume_path(job, "/data/logs/x") == ("checkpoints", "runs/logs/x")
    assert trainer.volume_path(job, "/database/x") is None
    record = tmp_path / "checkpoints" / "runs" / "logs" / "evals.jsonl"
    assert trainer.recorded_proxies(job, lambda claim: tmp_path / claim) == []
    record.parent.mkdir(parents=True)
    lines = ['{"step": 20, "proxy": 2.5}', '{"step": 10, "proxy": 1}', '{"step": 30, "pro']
    record.write_text("\n".join(lines))
    assert trainer.recorded_proxies(job, lambda claim: tmp_path / claim) == [(10, 1.0), (20, 2.5)]


def test_the_sample_manifests_are_a_cast() -> None:
    loaded = cast.load()
    assert [d["kind"] for d in loaded.supplies][:2] == ["Namespace", "GPUPool"]
    assert [role for _, role in loaded.jobs] == [
        Role.OVER_OPTIMISING,
        Role.HEALTHY,
        Role.HEALTHY,
        Role.WAITING,
    ]
    gpus = [j["spec"]["gang"]["replicas"] * j["spec"]["gang"]["gpusPerReplica"] for j, _ in loaded.jobs]
    assert gpus == [
        4,
        2,
        2,
        4,
    ]  # the first three fill four nodes of two GPUs, the last one waits for the first
    assert {j["metadata"]["namespace"] for j, _ in loaded.jobs} == {"demo"}
    assert loaded.node_labels
    for job, _ in loaded.jobs:
        assert trainer.option(job, "--steps")
        assert trainer.volume_path(job, trainer.option(job, "--record") or "")


def test_a_cast_without_a_role_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no RLHFJob has the role healthy, over-optimising, waiting"):
        cast.load(tmp_path)
    (tmp_path / "a.yaml").write_text("kind: RLHFJob\nmetadata: {name: a}\n")
    with pytest.raises(ValueError, match=r"RLHFJob a: label .* is None, expected one of over-optimising"):
        cast.load(tmp_path)


def event(name: str, reason: str, message: str = "m", kind: str = "RLHFJob") -> Change:
    about = {"kind": kind, "namespace": "demo", "name": name}
    return Change(
        "events", "ADDED", {"involvedObject": about, "reason": reason, "message": message, "type": "Normal"}
    )


def pod(name: str, node: str | None, phase: str = "Running") -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "2"}}
    return {
        "metadata": {"name": name, "uid": name, "namespace": "demo", "labels": {"evalstop.dev/job": "over"}},
        "spec": {"containers": [{"resources": limits}], **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


def shown(board: Board, console: Console) -> str:
    with console.capture() as captured:
        console.print(board.render())
    return captured.get()


def test_the_board_shows_jobs_evals_and_who_is_on_which_node() -> None:
    console = Console(width=160, force_terminal=False)
    board = Board([Chronicle("demo/over", Role.OVER_OPTIMISING)], {"node-1": 2, "node-2": 2}, console)
    with console.capture():
        board.take(Change("jobs", "ADDED", rlhfjob("over", STOPPED)))
        board.take(Change("jobs", "ADDED", rlhfjob("stranger", STOPPED)))
        board.take(Change("pods", "ADDED", pod("over-0", "node-1")))
        board.take(Change("pods", "ADDED", pod("over-1", None)))
        board.take(Change("pods", "ADDED", pod("over-2", "node-2")))
        board.take(Change("pods", "MODIFIED", pod("over-2", "node-2", "Succeeded")))
    text = shown(board, console)
    for words in ("over", "50/200", "1.2", "3 @20", "0/4", "Stopping", "▁█▅▃▂", "node-1 ■■", "node-2 □□"):
        assert words in text
    assert "stranger" not in text
    board.take(Change("pods", "RELIST", {}))
    assert "node-1 □□" in shown(board, console)


def test_where_nothing_can_be_redrawn_changes_are_lines() -> None:
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        board = Board([Chronicle("demo/over", Role.OVER_OPTIMISING)], {"node-1": 2}, console)
        for record in (JobRecord(), STOPPED, STOPPED):
            board.take(Change("jobs", "MODIFIED", rlhfjob("over", record)))
        for reason in ("Declining", "Declining", "Secured"):
            board.take(event("over", reason))
        board.take(event("over", "Pulled", kind="Pod"))
        board.take(event("stranger", "Declining"))
        board.take(event("over", "Unreachable", "gone"))
    lines = [line[9:] for line in captured.get().splitlines()]
    assert [line.split(";")[0] for line in lines] == [
        "over: Queued",
        "over: Stopping",
        "over: Declining: m",
        "over: Unreachable: gone",
    ]
    assert "step 50/200, eval 1.2, best 3 at step 20" in lines[1]


def test_curves() -> None:
    assert curve([]) == ""
    assert curve([1.0, 1.0]) == "▁▁"
    assert curve([0.0, 0.5, 1.0]) == "▁▅█"


def test_the_picture_marks_best_and_stop_and_is_small(tmp_path: Path) -> None:
    facts = describe(story(), 60.0)
    picture.draw(facts, tmp_path / "new" / "demo.png")
    image = Image.open(tmp_path / "new" / "demo.png").convert("RGB")
    assert image.width > 1000
    assert image.height > 800
    assert (tmp_path / "new" / "demo.png").stat().st_size < 200_000
    colours = [colour for _, colour in image.getcolors(1 << 20) or ()]
    for wanted in (picture.STOP, picture.BEST, picture.EVAL, picture.PROXY):
        exact = ImageColor.getrgb(wanted)
        assert min(sum(abs(a - b) for a, b in zip(exact, c, strict=True)) for c in colours) < 60, wanted  # type: ignore[misc,arg-type]
    picture.draw(
        describe([Chronicle("demo/a", Role.HEALTHY)], 1.0), tmp_path / "empty.png"
    )  # nothing happened at all


def test_the_summary_says_who_got_the_gpus_and_when() -> None:
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        print_summary(describe(story(), 60.0), console)
    text = captured.get()
    assert "best eval 3.0000 at step 20; stopped at step 50 of 200: 3 of 3" in text
    assert "after the decision: retained 1.0 s, suspended 1.5 s, pods gone 2.0 s, " in text
    assert "pods of next running 4.0 s" in text
    assert "its 4 GPUs went to next" in text
    assert "GPU-hours saved: 0.098" in text
    assert "finished; best eval 3.0000 at step 30" in text


def test_a_second_demo_does_not_destroy_one_that_was_left_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in the same folder; unless FRESH=1 it is said what to do, and nothing is touched."""
    (tmp_path / "plane").mkdir()
    monkeypatch.setattr(Plane, "status", lambda plane: Status(True, "https://there", None, ()))
    begun: list[Path] = []
    monkeypatch.setattr(demo, "_run", lambda out, *more, **given: begun.append(out) or 0)
    monkeypatch.setattr("sys.argv", ["demo", "--out", str(tmp_path)])
    assert demo.main() == 1
    told = capsys.readouterr().out
    assert begun == []
    assert "make demo FRESH=1" in told
    assert f"down --work {tmp_path / 'plane'}" in told
    monkeypatch.setattr("sys.argv", ["demo", "--out", str(tmp_path), "--fresh"])
    assert demo.main() == 0
    monkeypatch.setattr(Plane, "status", lambda plane: Status(False, None, None, ()))
    monkeypatch.setattr("sys.argv", ["demo", "--out", str(tmp_path)])
    assert demo.main() == 0
    assert begun == [tmp_path, tmp_path]


def test_the_tour_at_its_end_is_of_commands_that_there_are(tmp_path: Path) -> None:
    stage = Stage.__new__(Stage)
    object.__setattr__(stage, "plane", Plane(tmp_path))
    told = looking_around(stage, "demo", "over", "gpus").splitlines()
    assert f"alias kubectl={tmp_path}/bin/kubectl evalstop=" in told[1]
    ours = [line.split()[1:] for line in told if line.strip().startswith("evalstop ")]
    assert [words[0] for words in ours] == ["list", "why", "pools", "doctor", "top"]
    for words in ours:
        done = CliRunner().invoke(app, [*words, "--help"])
        assert done.exit_code == 0, (words, done.output)
    assert told[-1].endswith(f"-m deploy.local down --work {tmp_path}")
