"""A run whose trainer removes ``.evalstop`` with each save, then leaves it alone: real plan, real store."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

from test_checkpoints_access_jobs import CLAIMS, RLHFJOB, TEMPLATE

from controller.checkpoints.access import answer
from controller.checkpoints.access_jobs import AccessSettings, access_job, parse_result
from controller.checkpoints.request import REQUEST_ENV
from controller.policy.job.marks import health
from controller.policy.job.types import AccessView, StartAccess
from controller.policy.types import PolicySpec
from tests.support.policy_world import Job, PolicyWorld
from tests.support.trainers_files import plain, save

KEEPS = 12


class OnDisk(PolicyWorld):
    """Access Jobs are made as the operator makes them, and their program runs here."""

    def __init__(self, root: Path) -> None:
        super().__init__({"n1": 2})
        self.root, self.location = root, root / "runs" / "a"
        self.location.mkdir(parents=True)
        text = json.dumps(TEMPLATE).replace('"/data"', json.dumps(str(root)))
        self.template = json.loads(text)
        self.template["spec"]["securityContext"]["runAsUser"] = 0

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        rlhfjob = copy.deepcopy(RLHFJOB)
        rlhfjob["spec"]["checkpoints"]["layout"] = "Plain"
        made = access_job(rlhfjob, self.template, ask, AccessSettings(), claims=CLAIMS)
        environment = made["spec"]["template"]["spec"]["containers"][0]["env"]
        request = next(one["value"] for one in environment if one["name"] == REQUEST_ENV)
        kept = f'"{self.root}/kept'
        message = answer({REQUEST_ENV: request.replace('"/retained', kept)}).replace(kept, '"/retained')
        ended = {"name": "access", "state": {"terminated": {"message": message, "exitCode": 0}}}
        pod = {"metadata": {"name": "x"}, "status": {"containerStatuses": [ended]}}
        return replace(parse_result(made, [pod]), request_id=ask.request_id)

    def train(self, step: int, score: float, *, removes: bool) -> None:
        save(self.location, "Plain", step, plain(step))
        newest = {f"step-{step - 10 * back}" for back in range(KEEPS)}
        for found in self.location.iterdir():
            if found.name not in newest and (removes or found.name.startswith("step-")):
                shutil.rmtree(found)
        self.scores("ns/a", score)
        self.go_on(60.0)


def test_what_is_told_while_it_is_removed_and_that_the_run_recovers_by_itself(tmp_path: Path) -> None:
    world = OnDisk(tmp_path)
    job = world.submit("ns/a", gpus=2, rule=PolicySpec("kDeclines", {"k": 3}))
    world.settle()
    for step in (10, 20, 30):
        world.train(step, step / 100.0, removes=True)
        assert job.record.secured is not None, "without save records, and though the inventory is gone"
        assert job.record.secured.best_step == step
    assert [(one.code, one.warning) for one in health(job.record, world.now)] == [
        ("EvalStopFolderGone", True)
    ]
    world.train(40, 0.2, removes=True)
    for step, score in ((50, 0.19), (60, 0.18), (70, 0.17)):
        world.train(step, score, removes=False)
    assert [kept.step for kept in job.record.retained] == [30]
    assert not health(job.record, world.now)
