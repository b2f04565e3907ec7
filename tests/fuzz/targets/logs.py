"""Files that hold what tenants did: decision logs, traces of clusters, histories of evals, last words."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from controller.parity.facts import words
from controller.policy import decision_log
from sim.rules import history
from sim.traces import TraceError, read
from sim.traces.past_files import read_past
from tests.fuzz.target import Target
from tests.fuzz.targets.story import log_lines


def _replayed(data: bytes) -> None:
    for line in decision_log.replay(data.decode("utf-8", "replace").splitlines(keepends=True)):
        assert isinstance(line.same, bool)


def in_a_file(name: str, use: Callable[[Path], object]) -> Callable[[bytes], object]:
    """What reads files is given one, in memory where the machine has that."""
    folder = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())

    def run(data: bytes) -> object:
        file = folder / f"evalstop-fuzz-{os.getpid()}-{name}"
        file.write_bytes(data)
        try:
            return use(file)
        finally:
            file.unlink()

    return run


def _trace(file: Path) -> None:
    for skip in (False, True):
        try:
            trace = read([file], skip_bad=skip)
        except TraceError:
            if skip:
                raise
        else:
            for job in trace.jobs:
                repr(job.key)
            trace.workload()


def _past(file: Path) -> None:
    read_past([file], rotated=False)


def _rows(file: Path) -> None:
    for one in history.read(file):
        list(one.points())


def _dumped(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


OWN_TRACE = _dumped(
    {
        "format": "evalstop-trace",
        "version": 1,
        "cluster": {"nodes": [8, 8]},
        "policy": {"name": "fifo"},
        "rule": {"name": "kDeclines", "k": 3},
        "modifiers": [{"name": "warmUp", "min_evals": 3}],
        "guardrails": {"kl": {"name": "kDeclines"}},
        "quotas": [{"namespaces": ["team-a"], "guaranteed": 4, "limit": 8}],
    },
    {
        "job": "team-a/run-1",
        "submitted": 0,
        "gpus": 8,
        "work": 36000.5,
        "evals": {
            "at": [0.5, 1.0],
            "scores": [0.61, None],
            "losses": [1.0, 0.5],
            "proxies": [0.1, None],
            "stderrs": [0.01, None],
            "paired": [None, [1, 64, -0.03, 0.25]],
            "others": {"kl": [0.1, 0.2]},
        },
        "truth": {"hacks": True, "peak": 0.5},
        "priority": 3,
        "weight": 1.5,
        "estimate": 40000,
        "group": "RLHF",
        "gpus_per_replica": 4,
    },
)
PHILLY = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": "application_1",
            "attempts": [
                {
                    "start_time": "2017-10-07 01:12:09",
                    "end_time": "2017-10-07 01:13:23",
                    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
                }
            ],
            "submitted_time": "2017-10-07 01:11:39",
            "user": "ce2f4c",
        }
    ]
).encode()
TRAINER = _dumped(
    *(
        {
            "step": 10 * n,
            "gold": 0.1 * n,
            "time": 1000 + n,
            "attempt": "1-0",
            "proxy": 0.5,
            "stderr": 0.01,
            "differences": {"reference": 10, "prompts": 64, "mean": -0.1, "variance": 0.5},
        }
        for n in range(1, 5)
    )
)
CSVS = (
    b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n",
    b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    b"scheduled_time\nopenb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0\n",
    b"job_id,user,submit_time,duration,num_cpu,num_gpu,num_inst,gpu_type,group\n0,a1,14,3600,6.0,0.5,1,M,g\n",
    b"job,submitted,gpus,work,priority,weight,estimate\na,0,8,3600,2,,\nteam/b,1.5,4,60,,2.5,66\n",
)
SERIES = (
    b"series_id,step,eval,proxy,kl,stderr,n,label,run,peak_step,reference_step,paired_prompts,paired_mean,"
    b"paired_variance\na/1,10,0.5,1.5,0.1,0.01,64,hacking,a,20,10,64,-0.1,0.5\na/1,20,0.4,,,,,,,,,,,\n"
)
LINES = _dumped({"series_id": "a/1", "step": 10, "eval": 0.5, "stderr": 0.1, "label": "healthy"})
WORDS = _dumped(
    {"began": 1.0, "ended": 2.0, "from": 0, "to": 1, "left": False, "evals": [[10, 1.5]], "asked": [[1, 1.2]]}
)


def _logs() -> Iterator[bytes]:
    yield "\n".join(log_lines()).encode() + b"\n"
    yield from (line.encode() + b"\n" for line in log_lines())


def _traces() -> Iterator[bytes]:
    yield from (OWN_TRACE, PHILLY, TRAINER, *CSVS)
    yield from _logs()
    yield log_lines()[0].encode() + b'\n{"v":5,\n{"v":1}\n'
    yield gzip.compress(OWN_TRACE, mtime=0)


TARGETS = (
    Target("decision-log", _replayed, _logs, own=(decision_log.LogError,), most=1 << 18, cpu=4.0),
    Target(
        "trace", in_a_file("trace", _trace), _traces, own=(TraceError,), most=1 << 18, cpu=4.0, memory=1 << 30
    ),
    Target(
        "past", in_a_file("past", _past), _traces, own=(TraceError,), most=1 << 18, cpu=4.0, memory=1 << 30
    ),
    Target(
        "eval-history-csv",
        in_a_file("history.csv", _rows),
        lambda: (SERIES,),
        own=(history.HistoryError,),
        most=1 << 18,
    ),
    Target(
        "eval-history-jsonl",
        in_a_file("history.jsonl", _rows),
        lambda: (LINES, LINES * 2),
        own=(history.HistoryError,),
        most=1 << 18,
    ),
    Target(
        "last-words",
        lambda data: words(data.decode("utf-8", "replace")),
        lambda: (WORDS,),
    ),
)
