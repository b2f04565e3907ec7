"""Plays the two arms on a stage."""

from __future__ import annotations

import json
import time
from pathlib import Path

from controller import names
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.wording import counted
from deploy.local.demo.jobs_stage import NAMESPACE, Stage
from deploy.local.demo.shared import cast
from deploy.local.demo.shared.findings import Arm, Result
from deploy.local.demo.shared.watch import Watch
from deploy.local.report import Report

START = 240.0  # s for starts, measuring and ends, beside the steps themselves
KEPT_STEPS = 100_000  # of the runs that are left behind where the cluster is left up


class Story:
    """Plays the arms.

    Args:
        stage: a running one.
        report: says what happens.
        folders: of groups' devices, and of what trainers write.
        jobs, steps: how many jobs an arm has, and steps a job.
    """

    def __init__(self, stage: Stage, report: Report, folders: cast.Folders, jobs: int, steps: int) -> None:
        self._stage, self._report, self._folders = stage, report, folders
        # The turns of all together are about half of a job's cycle.
        self._rollout = jobs - cast.TRAIN_SECONDS
        self._uids: dict[str, str] = {}
        self.result = Result(jobs, steps)

    def play(self, arm: str) -> None:
        """Play one arm: all of its jobs are submitted at once."""
        names_here = [cast.job_name(arm, i) for i in range(1, self.result.jobs + 1)]
        watch = Watch(
            lambda: self._stage.pods(GROUPS_NAMESPACE), self._stage.pods, self._stage.queue, self._uids
        )
        found = self.result.arms[arm] = Arm(turns=watch.turns)
        self._stage.apply(cast.pool(arm, self._folders.device, self._stage.family_volumes))
        self._report(f"{arm}: {', '.join(names_here)} are submitted ({cast.PLACEMENT[arm]})")
        idle = _idle()
        watch.start()
        began = time.monotonic()
        for name in names_here:
            self._submit(name, self.result.steps)
        patience = START + 3 * len(names_here) * self.result.steps * (self._rollout + cast.TRAIN_SECONDS)
        for name in names_here:
            self._stage.until(lambda name=name: self._ended(name, watch), f"{name} has ended", patience)  # type: ignore[misc]
            found.ended[name] = time.monotonic() - began
            self._report(f"{arm}: {name} has ended after {found.ended[name]:.0f} s")
        following = f"next-{arm}"
        self._stage.apply(cast.successor(following))
        self._stage.until(lambda: self._stage.has(following, "Running"), "the next job has the GPU", START)
        found.freed, found.idle = time.monotonic() - began, 1.0 - _busy(idle, _idle())
        watch.stop()
        found.gpu_seconds, found.turns = watch.gpu_seconds, watch.turns
        if watch.most > cast.GPUS:
            self.result.problems.append(
                f"pods requested {counted(watch.most, 'GPU')} at a time, there is {cast.GPUS}"
            )
        most = 1 if arm == cast.ALONE else len(names_here)
        if watch.residents != most:
            self.result.problems.append(
                f"{arm}: {counted(watch.residents, 'resident')} at a time, expected {most}"
            )
        for name in names_here:
            found.digests[name] = self._digest(name)
        for name in [following, *names_here]:
            self._stage.delete(name)

    def leave_runs(self) -> None:
        """Leave runs behind that go on taking turns."""
        for number in range(1, self.result.jobs + 1):
            self._submit(f"run-{number}", KEPT_STEPS)
        self._stage.until(lambda: self._stage.has("run-1", "Running"), "the runs that are left run", START)

    def _submit(self, name: str, steps: int) -> None:
        folder, volumes = self._folders.checkpoints, self._stage.trainer_volumes
        self._stage.apply(cast.job(name, folder, steps, self._rollout, volumes))
        path = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/rlhfjobs/{name}"
        self._uids[self._stage.client.get(path)["metadata"]["uid"]] = name

    def _ended(self, name: str, watch: Watch) -> bool:
        watch.check()
        turns = watch.turns
        if turns:
            mine = sum(turn.job == name for turn in turns)
            self._report(
                f"{name}: {mine} of {counted(self.result.steps, 'turn')} seen; {len(turns)} in all, "
                f"the last one of {turns[-1].job}; {watch.gpu_seconds:.0f} GPU-seconds",
                progress=True,
            )
        return self._stage.has(name, "Completed")

    def _digest(self, name: str) -> str:
        path = self._folders.found / name / f"step-{self.result.steps}" / "manifest.json"
        return str(json.loads(path.read_text())["files"]["params.npz"]["sha256"])


def _idle() -> tuple[int, int]:
    """Return the cores' time so far that nobody used, and all of it, in the kernel's ticks."""
    times = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def _busy(before: tuple[int, int], after: tuple[int, int]) -> float:
    whole = after[1] - before[1]
    return 1.0 - (after[0] - before[0]) / whole if whole else 0.0
