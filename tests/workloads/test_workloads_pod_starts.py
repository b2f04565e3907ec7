"""What a pod that does not start waits for, by its Events."""

from typing import Any

import pytest

from controller.workloads.pod_starts import held_up, is_starting

MOUNT = 'MountVolume.SetUp failed for volume "data" : secret "keys" not found'
CREATING = {"state": {"waiting": {"reason": "ContainerCreating"}}}
RUNS = {"state": {"running": {}}}


def event(reason: str, second: int, message: str = MOUNT, **more: Any) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": f"2026-11-27T00:00:{second:02}Z", **more}


def test_the_newest_of_what_holds_it_up_is_told() -> None:
    found = held_up("run-0", [event("FailedMount", 9), event("FailedAttachVolume", 3, "x")])
    assert found is not None
    assert (found.pod, found.waits, found.message, found.exit_code) == ("run-0", "FailedMount", MOUNT, None)
    late = event("NetworkNotReady", 0, "no CNI", lastTimestamp=None, eventTime="2026-11-27T00:01:00.5Z")
    assert held_up("run-0", [event("FailedMount", 9), late]).waits == "NetworkNotReady"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="none"),
        pytest.param([event("FailedScheduling", 9)], id="of before it had its node"),
        pytest.param([event("FailedMount", 3), event("Pulling", 9)], id="its image is on its way since"),
        pytest.param([event("FailedCreate", 3)], id="of no kubelet"),
    ],
)
def test_what_is_over_or_says_nothing_holds_nobody_up(events: list[dict[str, Any]]) -> None:
    assert held_up("run-0", events) is None


@pytest.mark.parametrize(
    ("status", "starts"),
    [
        ({"phase": "Pending"}, True),
        ({"phase": "Pending", "containerStatuses": [CREATING]}, True),
        ({"phase": "Pending", "initContainerStatuses": [RUNS], "containerStatuses": [CREATING]}, False),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            False,
        ),
        ({"phase": "Running", "containerStatuses": [RUNS]}, False),
        ({"phase": "Failed"}, False),
    ],
)
def test_a_pod_starts_while_it_has_a_node_and_nothing_of_it_runs(
    status: dict[str, Any], starts: bool
) -> None:
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"}, "status": status}
    assert is_starting(pod) is starts
    assert not is_starting({**pod, "spec": {}}), "it has no node"
    assert not is_starting({**pod, "metadata": {"deletionTimestamp": "2026-11-27T00:00:00Z"}})
