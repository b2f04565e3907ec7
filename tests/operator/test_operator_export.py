"""A past on the real control plane: exported from the operator's log, and from the API server alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from controller.cli.main import app
from deploy.local.plane import Plane
from sim.traces import Trace, read
from sim.traces.past import End
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import SETTINGS, Rig, eventually

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]


def exported(out: Path, *words: str) -> tuple[Trace, str]:
    done = CliRunner().invoke(app, ["export", *words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return read([out]), done.stderr


def test_a_past_is_exported_from_the_log_and_from_the_cluster(
    rig: Rig, kubelet: FakeKubelet, plane: Plane, tmp_path: Path
) -> None:
    log = tmp_path / "decisions.jsonl"
    rig.total_steps = 140

    async def story() -> None:
        async with rig:
            await rig.make_pool(queuePolicy={"fifo": {"backfill": "Enabled"}})
            await rig.make_job("over", replicas=2)
            rig.scores["over"] = RISE_AND_FALL[:4]
            async with rig.operator(replace(SETTINGS, decision_log=str(log))):
                await eventually(
                    lambda: rig.is_true("over", "BestCheckpointSecured"), what="the best secured"
                )
                await asyncio.sleep(1.0)  # statuses tell whole seconds: one that was made later,
                await rig.make_job("next", replicas=2, priority=3)
                await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))
                await asyncio.sleep(2.0)  # and a wait that shows in them
                rig.scores["over"] = RISE_AND_FALL
                rig.scores["next"] = RISE_AND_FALL[:3]
                await eventually(lambda: rig.is_true("over", "GPUsReleased"), what="the stop")
                await eventually(
                    lambda: rig.is_true("next", "BestCheckpointSecured"), what="the next one's best"
                )
                # The first of its pods is read before the second is there; only those that run can finish.
                await eventually(lambda: rig.is_true("next", "Running"), what="all of the next one to run")
                kubelet.finish(rig.namespace, "next")
                await eventually(lambda: rig.is_true("next", "GPUsReleased"), what="the end")

    asyncio.run(story())
    where = ("--kubeconfig", str(plane.kubeconfig), "--pool", rig.pool_name)
    from_log, _ = exported(tmp_path / "log.jsonl", str(log), *where)
    from_cluster, said = exported(tmp_path / "cluster.jsonl", "-n", rig.namespace, *where)
    from_both, _ = exported(tmp_path / "both.jsonl", str(log), "--cluster", *where)
    assert "2 jobs (1 complete, 1 stopped), 10 evals" in said
    for trace in (from_log, from_cluster, from_both):
        assert trace.policy is not None
        assert (trace.policy.name, trace.policy.params["backfill"]) == ("fifo", True)
        assert trace.cluster is not None
        assert [gpus for _, gpus in trace.cluster.nodes] == [2, 2]
        over, following = trace.jobs
        assert [job.key for job in (over, following)] == [
            f"{rig.namespace}/{name}" for name in ("over", "next")
        ]
        assert (over.gpus, over.gpus_per_replica, following.priority) == (4, 2, 3)
        assert over.past is not None
        assert following.past is not None
        assert (over.past.end, following.past.end) == (End.STOPPED, End.COMPLETE)
        assert (over.past.seen, over.past.stop_eval) == (0.5, 7)
        assert over.evals is not None
        assert list(over.evals.scores) == RISE_AND_FALL
        assert over.past.ended is not None
        assert following.past.started is not None
        # A pool sees for itself that pods are gone, be it a moment before their job's pass writes when.
        assert following.past.started > over.past.ended - 5.0
        assert following.past.waited is not None
        assert following.past.waited > 0.0
        assert trace.latencies is not None
        assert over.past.service > 0.0
    logged = from_log.jobs[0].past
    assert logged is not None
    # What an RLHFJob that was stopped no longer tells: when it began, and how often it wrote checkpoints.
    known = replace(logged, started=None, waited=None, checkpoint_every=None)
    assert from_cluster.jobs[0].past == known
    assert from_both.jobs[0].past == logged

    words = ["what-if", str(tmp_path / "cluster.jsonl"), "--nodes", "+2", "--json", "--no-plot"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    wait = next(one for one in found["figures"] if one["figure"] == "mean_wait")
    assert wait["alternative"]["high"] < wait["baseline"]
    missing = CliRunner().invoke(app, ["what-if", "--nodes", "+1", "-n", "nobody", *where])
    assert missing.exit_code == 3
    assert "there is no namespace 'nobody'" in missing.stderr


def test_who_may_not_list_is_told_what_to_do(plane: Plane, installed: Path) -> None:
    nobody = plane.kubeconfig_for("nobody", ["system:authenticated"])
    done = CliRunner().invoke(app, ["export", "--kubeconfig", str(nobody)])
    assert done.exit_code == 4
    assert "cannot list RLHFJobs" in done.stderr
    assert "-n NAMESPACE takes one namespace's" in done.stderr
