"""No parser of tenants' text raises anything but its own exceptions, takes long or takes much; and the fuzzer
that says so finds those that do."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import corpus, hostile, reading
from tests.fuzz.limits import examine
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

SHARE = 20.0  # s of CPU for all targets together, beside the seeds and the corpus
MOST = 60.0  # s of CPU that `make test` may take for it, imports and all

# What reads text of nobody's but administrators', the API server's or our own, by file or by function.
EXEMPT = {
    "controller/api/convert.py:parse_pool_without_policy": "GPUPools, which administrators write",
    "controller/checkpoints/s3.py:Bucket._ask": "splits a URL that it has just made",
    "controller/actor/plain.py:PlainEngine._call": "the engine in the sidecar's own pod",
    "controller/actor/vllm.py:VllmEngine._call": "the engine in the sidecar's own pod",
    "controller/actor/vllm.py:VllmEngine._one": "the engine in the sidecar's own pod",
    "controller/cli/doctor/installation.py": "the API server's own version and schemas",
    "controller/cli/doctor/job.py:_scale": "asked of RLHFJobs that their schema has passed",
    "controller/cli/doctor/rights.py:_before_1_36": "the API server's own version",
    "controller/cli/parity.py:_read": "a file of the user's, written by `evalstop parity`",
    "controller/cli/replay.py:replay": "JSON that the replay has just written",
    "controller/cli/what_if.py:_moment": "an option that the user types",
    "controller/extender/scheduler_config.py:ignorable": "kube-scheduler's configuration",
    "controller/cli/doctor/family.py": "what our own program measured",
    "controller/group/coordination.py:Coordination._go_on_charging": "this process's own file",
    "controller/group/devices.py:NvmlDevice._ask": "our own process, over a pipe",
    "controller/group/disk.py:Disk.read": "this process's own file",
    "controller/group/registration.py": "what the operator answered, of which one's own file is a copy",
    "controller/group/turn_log.py:replay": "a file of the user's, written by a group",
    "controller/extender/views.py:group": "WorkerGroups, which the operator writes",
    "controller/operator/state/run_configmap.py:group_manifest": "makes a ConfigMap",
    "controller/install/pools.py:pools": "the chart's values",
    "controller/kube/credential_plugin.py:_credentials": "a program that the user's kubeconfig names",
    "controller/kube/direct.py:DirectAnswer.chunks": "the API server's own packing",
    "controller/kube/direct.py:DirectTransport.__init__": "the API server's URL, of a kubeconfig",
    "controller/kube/devices.py:slice_body": "ResourceSlices, which drivers write",
    "controller/kube/kopf_session.py:KopfSession.__init__": "the API server's URL, of a kubeconfig",
    "controller/kube/kubeconfig.py": "kubeconfigs",
    "controller/metrics/address.py:AddressPolicy.parse": "the operator's settings",
    "controller/metrics/address.py:_networks": "addresses in the source",
    "controller/notify": "addresses that an administrator gives",
    "controller/operator/state/compressed.py:Compressed.open": "what this process has packed",
    "controller/operator/state/nodes.py": "Nodes and GPUPools",
    "controller/operator/state/ownership.py:child_key": "asked of RLHFJobs that their schema has passed",
    "controller/operator/state/ownership.py:controlled_by": "compares a uid",
    "controller/operator/state/ownership.py:is_ref": "asked of RLHFJobs that their schema has passed",
    "controller/operator/state/run_configmap.py:manifest": "makes a ConfigMap",
    "controller/parity/local_cluster.py:start_local_cluster": "our own program's first line",
    "controller/steps/planner.py": "our own process, over a pipe",
    "controller/web/signing.py:_general": "names that an administrator gives",
    "controller/web/dashboard/queues.py:Queues._answer": "answers of the operator's queue API",
    "controller/web/queue_api.py": "answers of the operator's queue API",
    "controller/web/dashboard/settings.py:_loopback": "the dashboard's settings",
    "controller/web/dashboard/svg.py:page_svg": "pictures that matplotlib has just drawn",
    "controller/web/dashboard/report.py:from_log": "a decision log that the user names",
    "controller/web/registration.py": "the operator, whose certificate is verified",
    "controller/web/hosts.py:_is_address": "the Host header: asked whether it is an address",
}


def test_the_suites_share_of_the_hunt_finds_nothing(tmp_path: Path) -> None:
    """The same inputs every time, as far as the CPU time goes; `python -m tests.fuzz` draws others."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--seconds",
        str(SHARE),
        "--seed",
        "0",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=corpus.FOLDER.parents[2])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f" {name} " in done.stdout for name in TARGETS)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < MOST, done.stdout


def test_each_fault_that_a_parser_can_have_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.toys"],
        capture_output=True,
        text=True,
        cwd=corpus.FOLDER.parents[2],
    )
    assert done.returncode == 0, done.stderr
    found = {name: [kind for kind, _ in findings] for name, findings in json.loads(done.stdout).items()}
    assert found == {
        "raises": ["KeyError at outside"],
        "goes_on": ["time"],
        "backtracks": ["time"],
        "hoards": ["memory"],
        "dies": ["death"],
        "swallows": [],
    }
    [[_, smallest]] = json.loads(done.stdout)["raises"]
    assert smallest == "[["


def test_what_a_hunt_found_is_read_by_a_target_that_is_there() -> None:
    folders = {path.name for path in corpus.FOLDER.iterdir()}
    assert folders <= set(TARGETS)
    assert all(corpus.load(TARGETS[name]) for name in folders)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_target_reads_its_seeds(name: str) -> None:
    """Seeds that are refused would leave whatever lies behind the first check untried."""
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert seeds
    assert all(len(seed) <= target.most for seed in seeds)
    target.run(seeds[0])


def test_every_reader_of_text_in_the_product_is_reached_by_a_target() -> None:
    """Or says whose text it reads instead: and nothing is exempt that is not there, or is reached."""
    found = list(reading.sites())
    assert len(found) > 100
    seen = reading.reached(TARGETS.values())
    assert [str(site) for site in reading.missing(found, seen, EXEMPT)] == []
    assert reading.idle(found, seen, EXEMPT) == []


def test_a_reader_that_nobody_fuzzes_is_missed() -> None:
    found = list(reading.sites())
    few = [TARGETS[name] for name in ("attempt", "text-for-people")]
    missed = {str(site) for site in reading.missing(found, reading.reached(few), EXEMPT)}
    assert "controller/checkpoints/saves.py:read_record" in missed
    assert "controller/metrics/samples.py:_parsed" in missed
    assert "controller/workloads/pods.py:pod_view" in missed
    assert reading.idle(found, set(found), {"controller/gone.py": "it is not there"}) == [
        "controller/gone.py"
    ]


def test_an_input_is_replayed_from_its_file(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        if b"[" in data:
            raise KeyError

    target = Target("toy", read, lambda: (b"{}",))
    finding = examine(target, b"[" * 5000)
    assert finding is not None
    assert finding.kind.startswith("KeyError")
    path = corpus.save(finding, tmp_path)
    assert path.stat().st_size < 200  # 5,000 brackets compress well
    assert corpus.read(path) == finding.data
    assert examine(target, b"{}") is None


def test_a_value_is_replaced_with_all_that_is_in_it() -> None:
    data = b'{"a": {"b": [1, 2]}, "c": 3}'
    places = [hostile._replace(data, place, b"X") for place in range(len(hostile.tokens(data)))]
    assert b'{"a": X, "c": 3}' in places
    assert b'{"a": {"b": X}, "c": 3}' in places
    assert b'{"a": {"b": [1, 2]}, "c": X}' in places
    assert b"X" in places
