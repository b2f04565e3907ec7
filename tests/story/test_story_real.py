"""What the demo does not show, with the same real parts: real trainers, nodes, operator pod, API server.

Every job here is the sample over-optimising run, hurried; each test changes one thing about it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
from typing import Any

import pytest

from controller import names
from controller.api.record import record
from controller.kube.errors import ApiError
from deploy.local.demo import cast
from deploy.local.demo.facts import Role
from deploy.local.demo.stage import SYSTEM
from deploy.local.errors import PlaneError
from tests.support.stage_jobs import StageJobs, condition, holds

pytestmark = pytest.mark.timeout(240)

NAMESPACE = "story"
Json = dict[str, Any]


def sample(name: str, **spec: Any) -> Json:
    """The over-optimising sample under another name, at twice its pace, with fields of its spec changed."""
    scenes = cast.load(namespace=NAMESPACE)
    job: Json = copy.deepcopy(dict(next(j for j, role in scenes.jobs if role is Role.OVER_OPTIMISING)))
    text = json.dumps(job).replace("overoptimising", name)
    job = json.loads(text.replace("--step-seconds=0.2", "--step-seconds=0.1"))
    job["spec"].update(spec)
    return job


def stopped(status: Json) -> bool:
    return holds(status, "GPUsReleased") and holds(status, "TerminationTarget")


def steps(status: Json) -> list[int]:
    return [int(line.split()[0]) for line in status.get("evals") or ()]


def test_resume_from_best_end_to_end_then_deleting_keeps_what_was_retained(story: StageJobs) -> None:
    story.stage.apply([sample("again")])
    first = story.wait("again", "stopped", stopped)
    best = first["best"]["step"]
    assert best < first["decision"]["step"]
    patch = json.dumps({"spec": {"resume": {"id": "one-more", "from": "Best"}}})
    story.stage.plane.kubectl("-n", NAMESPACE, "patch", "rlhfjob", "again", "--type=merge", "-p", patch)
    resumed = story.wait(
        "again",
        "running again",
        lambda s: s.get("attempt") == 2 and holds(s, "Running"),
    )
    assert condition(resumed, "Resumed")[:2] == ("True", "Resumed")
    run = json.loads(story.get("configmap", "again" + names.RUN_CONFIGMAP_SUFFIX)["data"][names.RUN_KEY])
    kept = first["retained"][-1]["step"]
    assert (run["attempt"], run["resume"]["step"]) == (2, kept)
    # The restored checkpoint is the retained one, and the trainer really goes on from its step. It says so
    # at once; its pods go with the next stop, so that is read before anything else is waited for.
    wait_said(story, "again", f"step {kept}")
    more = story.wait("again", "evaluating again", lambda s: any(x > best for x in steps(s)))
    after = [x for x in steps(more) if x > kept]
    assert after[0] == kept + 10
    # It over-optimises again, and is stopped again.
    second = story.wait("again", "stopped again", stopped)
    assert second["decision"]["time"] > first["decision"]["time"]
    folder = story.stage.claim_folder(NAMESPACE, "retained")
    kept_files = sorted(folder.rglob("manifest.json"))
    assert kept_files
    story.delete("again")
    with pytest.raises(ApiError, match="not found"):
        wait_gone(story, "job", "again")
    assert sorted(folder.rglob("manifest.json")) == kept_files


def wait_said(story: StageJobs, name: str, words: str, seconds: float = 60.0) -> None:
    """Until the trainer has said it."""
    # By the workload's own name: access Jobs carry the RLHFJob's label too, and end at any moment.
    of_trainer = ("-l", f"batch.kubernetes.io/job-name={name}", "--tail=200")
    deadline, said = time.monotonic() + seconds, ""
    while words not in said:
        if time.monotonic() > deadline:
            pytest.fail(f"{name}: its trainer did not say {words!r} within {seconds:g} s\n{said}")
        time.sleep(0.1)
        with contextlib.suppress(PlaneError):  # a pod that has no log yet
            said = story.stage.plane.kubectl("-n", NAMESPACE, "logs", *of_trainer) or said


def wait_gone(story: StageJobs, kind: str, name: str) -> None:
    for _ in range(100):
        story.get(kind, name)
        time.sleep(0.2)


def test_shadow_says_what_it_would_do_and_the_run_goes_on_to_its_end(story: StageJobs) -> None:
    story.stage.apply([sample("watched", mode="Shadow")])
    status = story.wait("watched", "judged", lambda s: s.get("decision"))
    assert status["decision"]["mode"] == "Shadow"
    assert condition(status, "TerminationTarget")[:2] == ("False", "Shadow")
    done = story.wait("watched", "completed", lambda s: holds(s, "Completed"))
    assert done.get("secured") is None
    assert done.get("retained") in (None, [])
    pins = story.stage.claim_folder(NAMESPACE, "checkpoints") / "watched" / names.PINS_FOLDER
    assert [one.name for one in pins.iterdir()] == ["saves"], "the trainer's own records, and nothing else"
    story.delete("watched")


def test_the_operator_killed_in_the_middle_of_a_stop_goes_on_where_it_was(story: StageJobs) -> None:
    story.stage.apply([sample("survivor")])
    story.wait("survivor", "being stopped", lambda s: holds(s, "TerminationTarget"))
    kill = (
        "-n",
        SYSTEM,
        "delete",
        "pod",
        "-l",
        "app.kubernetes.io/name=evalstop",
        "--grace-period=0",
        "--force",
    )
    story.stage.plane.kubectl(*kill)
    status = story.wait("survivor", "stopped", stopped)
    assert len(status["retained"]) == 1
    assert story.get("job", "survivor")["spec"]["suspend"] is True
    story.delete("survivor")


def test_the_reference_goes_to_the_trainer_and_its_differences_stop_the_run(story: StageJobs) -> None:
    """The best is secured, named to the trainer, scored by it on fresh prompts, judged by eProcess."""
    rule = {"stopRule": {"eProcess": {"bound": "16.6"}}, "modifiers": [{"divergence": {}}]}
    story.stage.apply([sample("compared", **rule)])
    status = story.wait("compared", "stopped", stopped)
    decision, best = status["decision"], status["best"]["step"]
    assert decision["reason"] == "RewardHacking"
    assert float(decision["eValue"]) >= 40.0
    assert best < decision["step"]
    run = json.loads(story.get("configmap", "compared" + names.RUN_CONFIGMAP_SUFFIX)["data"][names.RUN_KEY])
    assert run["reference"] <= best  # securing a late best may take longer than the stop
    judged = next(p for p in reversed(record(status).evals) if p.step == decision["step"])
    assert judged.proxy is not None
    assert judged.paired is not None
    assert (judged.paired.reference_step <= best, judged.paired.prompts) == (True, 1024)
    assert judged.paired.mean < 0.0
    story.delete("compared")


def test_an_unknown_metric_is_told_with_the_names_seen_and_stops_nothing(story: StageJobs) -> None:
    metrics = [{"name": "silver_reward", "direction": "Maximize", "role": "Primary"}]
    story.stage.apply([sample("misnamed", metrics=metrics)])
    status = story.wait("misnamed", "told", lambda s: condition(s, "MetricsAvailable")[1] == "MetricMissing")
    message = condition(status, "MetricsAvailable")[2]
    assert "'silver_reward'" in message
    assert "gold_reward" in message
    assert not status.get("decision")
    story.delete("misnamed")


def test_a_gang_larger_than_the_pool_is_refused_with_the_numbers_and_blocks_nobody(story: StageJobs) -> None:
    wide = sample("wide", gang={"replicas": 2, "gpusPerReplica": 16})
    container = wide["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"]["nvidia.com/gpu"] = "16"
    story.stage.apply([wide, sample("beside")])
    told = story.wait("wide", "refused", lambda s: condition(s, "Admitted")[1] == "TooLarge")
    assert "16 is more than the 2 GPUs" in condition(told, "Admitted")[2]
    story.wait("beside", "running", lambda s: holds(s, "Running"))
    story.delete("wide")
    story.delete("beside")


def test_a_real_trainer_is_asked_for_a_second_look_on_the_same_prompts(story: StageJobs) -> None:
    """`confirm`: asked through `sure-run`, the trainer scores its best step beside an eval made at once.

    Its own evals are twenty seconds apart, as rare beside scrapes as in long runs, and the second is a fall.
    """
    rule = {
        "stopRule": {"kDeclines": {"k": 1, "minDelta": "0.02"}},
        "modifiers": [{"confirm": {"margin": "3"}}],
    }
    rare = json.dumps(sample("sure", **rule)).replace("--eval-every=10", "--eval-every=200")
    story.stage.apply([json.loads(rare)])
    status = story.wait("sure", "stopped", stopped)
    decision = status["decision"]
    assert decision["reason"] == "ConfirmedOnSamePrompts"
    assert float(decision["statistic"]) >= 3
    assert decision["step"] % 200, "an eval of its own"
    judged = next(p for p in record(status).evals if p.step == decision["step"])
    assert judged.paired is not None
    assert judged.paired.reference_step == decision["bestStep"]
    run = json.loads(story.get("configmap", "sure" + names.RUN_CONFIGMAP_SUFFIX)["data"][names.RUN_KEY])
    assert run["request"]["id"] >= 1
    story.delete("sure")
