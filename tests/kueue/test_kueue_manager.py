"""Kueue's manager as a process of the plane: started twice, badly configured, stopped, started again."""

from pathlib import Path

import pytest
from kueue_objects import captured, job, make_queue

from controller.kube.errors import ApiError
from deploy.local.errors import PlaneError
from deploy.local.kueue import launch
from deploy.local.kueue.manager import PROCESS, Kueue
from tests.support.store_work import Cluster


def states(kueue: Kueue) -> dict[str, tuple[str, int | None]]:
    return {part.name: (part.state, part.pid) for part in kueue.plane.status().processes}


def let_through(cluster: Cluster) -> bool:
    """Whether a Job would be made without Kueue being asked."""
    try:
        return not captured(cluster.create(job("free"), dry_run=True))
    except ApiError:
        return False


def test_from_one_life_of_the_manager_to_the_next(kueue: Kueue, cluster: Cluster) -> None:
    make_queue(cluster, "default", gpus=0)
    state, pid = states(kueue)[PROCESS]
    assert state == "running"
    assert Kueue.installed(kueue.plane)
    # Its certificates are where it wants them, in its own view of the machine only.
    assert not Path(launch.PLACE).exists()
    assert sorted(p.name for p in Path(f"/proc/{pid}/root{launch.PLACE}").iterdir()) == ["tls.crt", "tls.key"]

    kueue.start()  # runs already
    assert states(kueue)[PROCESS] == ("running", pid)
    with pytest.raises(PlaneError, match="another configuration"):
        Kueue(kueue.plane, {"manageJobsWithoutQueueName": True}).start()

    with pytest.raises(PlaneError, match=r"(?s)Kueue exited \(1\) while waiting for .*nonsense"):
        kueue.reconfigure({"integrations": {"frameworks": ["nonsense"]}})
    with pytest.raises(ApiError, match="failed calling webhook"):
        cluster.create(job("refused"))
    address = (kueue.folder / "address").read_text()
    kueue.reconfigure({})
    # A manager that has just started answers before it has read the queues.
    cluster.wait(lambda: captured(cluster.create(job("again"), dry_run=True)))

    kueue.stop()
    # The API server hears a moment later that the webhooks are gone.
    cluster.wait(lambda: let_through(cluster))
    assert not captured(cluster.create(job("free")))  # without it Jobs can be made, and nobody takes them
    kueue.start()
    assert states(kueue)[PROCESS][0] == "running"
    assert (kueue.folder / "address").read_text() == address
    cluster.wait(lambda: captured(cluster.create(job("bare"), dry_run=True)))
