"""Published logs are read by their own columns: small files with those headers, and real ones if there."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from sim.cluster import Cluster
from sim.traces import FORMATS, TraceError, read

REAL = Path(__file__).parents[3] / "shared" / "data" / "traces"

# What each log's first rows look like, and the jobs (key, submitted, gpus, work) they are.
LOGS: dict[str, tuple[str, list[tuple[str, float, int, float]], dict[str, int]]] = {
    "philly-csv": (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,2951.5,8,23612.0,6214e9\n",
        [("11cb48/0", 1507532515, 1, 66), ("6214e9/1", 1507529583, 8, 2951.5)],
        {},
    ),
    "openb": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
        "creation_time,deletion_time,scheduled_time\n"
        "openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0\n"
        "openb-pod-0001,6000,12288,1,460,,LS,Running,427061,12902960,427061\n"
        "openb-pod-0005,20000,65536,0,0,,LS,Running,2759674,12902960,2759676\n"
        "openb-pod-0017,88000,327680,8,1000,V100M32,Burstable,Succeeded,9437497,10769854,9437500\n"
        "openb-pod-0061,11908,47104,1,1000,,BE,Pending,10001278,10001403,\n",
        [
            ("LS/openb-pod-0000", 0, 1, 12537496),
            ("LS/openb-pod-0001", 427061, 1, 12475899),
            ("Burstable/openb-pod-0017", 9437497, 8, 1332354),
        ],
        {"no GPUs": 1, "never scheduled": 1},
    ),
    "helios": (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "7,u1,vcA,4,16,1,COMPLETED,2020-04-01 00:01:00,2020-04-01 00:02:00,2020-04-01 01:02:00,3600,60\n"
        "8,u2,vcB,0,16,1,COMPLETED,2020-04-01 00:01:10,2020-04-01 00:01:10,2020-04-01 00:01:20,10,0\n"
        "9,u2,vcB,2,16,1,CANCELLED,2020-04-01 00:01:30,None,2020-04-01 00:05:20,0,230\n",
        [("vcA/7", 1585699260, 4, 3600)],
        {"no GPUs": 1, "never started": 1},
    ),
    "acme-seren": (
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
        "dlctk696s0jbvitv,uf794,1,8,128,Pretrain,FAILED,2023-05-17 11:00:58+08:00,"
        "2023-05-17 11:01:08+08:00,2023-05-17 11:01:18+08:00,10.0,10.0,80\n",
        [("uf794/dlctk696s0jbvitv", 1684292458, 8, 10)],
        {},
    ),
    "acme-kalos": (
        "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,"
        "start_time,end_time,fail_time,stop_time,duration,queue,gpu_time\n"
        "j1,u2,2,16,240,1000,100,SFT,COMPLETED,2023-05-17 11:00:58+00:00,2023-05-17 11:00:58+00:00,"
        "2023-05-17 11:01:06+00:00,,,18.0,0.0,288\n",
        [("u2/j1", 1684321258, 16, 18)],
        {},
    ),
    "pai": (
        "job_id,user,submit_time,duration,num_cpu,num_gpu,num_inst,gpu_type,group\n"
        "0,a1,1494451,3600,6.0,0.5,1,MISC,g\n"
        "1,a2,1494460,120.5,6.0,2.0,4,T4,g\n"
        "2,a2,1494461,120,6.0,0,1,CPU,g\n",
        [("a1/0", 1494451, 1, 3600), ("a2/1", 1494460, 2, 120.5)],
        {"no GPUs": 1},
    ),
    "muri": (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time\n"
        "0,1,0,5853661,dqn,128,2868294000,46122000,490\n"
        "1,8,201694500,8787693,dqn,128,4472936000,201694000,509\n",
        [("trace/0", 0.0, 1, 2868294.0), ("trace/1", 201694.5, 8, 4472936.0)],
        {},
    ),
    "evalstop-csv": (
        "job,submitted,gpus,work,priority,weight,estimate\na,0,8,3600,2,,\nteam/b,1.5,4,60,,2.5,66\n",
        [("trace/a", 0, 8, 3600), ("team/b", 1.5, 4, 60)],
        {},
    ),
}


def written(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_with_its_published_header(tmp_path: Path, name: str, packed: bool) -> None:
    content, jobs, left_out = LOGS[name]
    file = written(tmp_path, "log", gzip.compress(content.encode()) if packed else content)
    trace = read([file])
    assert trace.format == name
    assert [(job.key, job.submitted, job.gpus, job.work) for job in trace.jobs] == jobs
    assert trace.left_out == Counter(left_out)
    workload = trace.workload()
    assert workload.submitted[0] == 0
    assert list(workload.submitted) == sorted(workload.submitted)


def test_optional_columns_count_where_they_are_filled_in(tmp_path: Path) -> None:
    a, b = read([written(tmp_path, "log", LOGS["evalstop-csv"][0])]).jobs
    assert (a.priority, a.weight, a.estimate) == (2, 1.0, None)
    assert (b.priority, b.weight, b.estimate) == (0, 2.5, 66)


PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 02:00:00",
                "end_time": "2017-10-07 03:00:00",
                "detail": [{"ip": "m4", "gpus": ["gpu0"]}, {"ip": "m5", "gpus": ["gpu0"]}],
            },
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {
        "status": "Killed",
        "vc": "v",
        "jobid": "application_2",
        "attempts": [],
        "submitted_time": None,
        "user": "u",
    },
    {
        "status": "Failed",
        "vc": "v",
        "jobid": "application_3",
        "attempts": [{"start_time": "2017-10-07 02:00:00", "end_time": None, "detail": []}],
        "submitted_time": "2017-10-07 01:00:00",
        "user": "u",
    },
]


def test_phillys_job_log(tmp_path: Path) -> None:
    trace = read([written(tmp_path, "cluster_job_log", json.dumps(PHILLY, indent=4))])
    assert trace.format == "philly-json"
    [job] = trace.jobs
    assert (job.key, job.gpus, job.work, job.submitted) == ("ee9e8c/application_1", 2, 3674, 1507338699)
    assert trace.left_out == Counter({"no attempt that began and ended": 2})


def test_phillys_job_log_names_the_line_of_a_bad_job(tmp_path: Path) -> None:
    bad = json.loads(json.dumps(PHILLY))
    bad[0]["attempts"][1]["end_time"] = "2017-10-07 01:59:59"
    content = json.dumps(bad[1:] + bad[:1], indent=1)
    line = 1 + content[: content.index('{\n  "status": "Pass"')].count("\n")
    with pytest.raises(
        TraceError, match=rf"line {line}, attempts\[1\]\.end_time: '2017-10-07 01:59:59' is not"
    ):
        read([written(tmp_path, "log", content)])


@pytest.mark.parametrize(
    ("name", "jobs", "largest"),
    [
        ("philly_82k.csv.gz", 82247, 128),
        ("muri_philly_vc_trace1.csv.gz", 1494, 32),
        ("muri_philly_vc_trace4.csv.gz", 2638, 8),
    ],
)
def test_real_logs_are_read_whole(name: str, jobs: int, largest: int) -> None:
    if not (REAL / name).exists():
        pytest.skip(f"{REAL / name} is not there; the log with its published header was tested instead")
    trace = read([REAL / name])
    assert len(trace.jobs) == jobs
    assert not trace.left_out
    assert len(trace.workload()) == jobs
    assert max(job.gpus for job in trace.jobs) == largest
    if name.startswith("philly"):
        with gzip.open(REAL / name, "rt") as lines:
            next(lines)
            published = sum(float(line.split(",")[3]) for line in lines if line.strip())
        assert sum(job.gpus * job.work for job in trace.jobs) == pytest.approx(published)


def test_a_format_can_be_named_and_must_exist(tmp_path: Path) -> None:
    file = written(tmp_path, "log", LOGS["helios"][0])
    assert read([file], format="helios").format == "helios"
    with pytest.raises(TraceError, match="format: 'slurm' is not allowed, expected one of evalstop-trace"):
        read([file], format="slurm")
    assert set(LOGS) < set(FORMATS)


def test_files_are_read_together_and_ids_must_differ(tmp_path: Path) -> None:
    header, row = "job,submitted,gpus,work\n", "{},0,1,60\n"
    a = written(tmp_path, "a.csv", header + row.format("x"))
    b = written(tmp_path, "b.csv", header + row.format("y"))
    assert [job.key for job in read([a, b]).jobs] == ["trace/x", "trace/y"]
    with pytest.raises(TraceError, match=r"b2\.csv, line 2, job: 'trace/x' is in .*a\.csv already"):
        read([a, written(tmp_path, "b2.csv", header + row.format("x"))])


def test_jobs_must_fit_into_the_cluster(tmp_path: Path) -> None:
    content = "job,submitted,gpus,work\na,0,4,60\nb,1,65,60\nc,2,6,60\n"
    file = written(tmp_path, "log.csv", content)
    with pytest.raises(TraceError, match=r"log\.csv, line 3, gpus: 65 is not allowed, expected a gang"):
        read([file]).fit(Cluster.slots(64))
    trace = read([file], skip_bad=True)
    trace.fit(Cluster.of_nodes([4, 4]))  # 6 = 2 x 3, which fits
    assert [job.key for job in trace.jobs] == ["trace/a", "trace/c"]
    assert len(trace.skipped) == 1
    with pytest.raises(TraceError, match="no job fits into a cluster of 2 GPUs"):
        trace.fit(Cluster.slots(2))
    more = written(tmp_path, "more.csv", content.replace("65", "8").replace("\n", "\nx", 3))
    with pytest.raises(TraceError, match=r"more\.csv, line 3, gpus: 8 is not allowed"):
        read([written(tmp_path, "first.csv", content.replace("65", "1")), more]).fit(Cluster.slots(6))


def test_gangs_that_are_not_told_are_as_coarse_as_the_nodes(tmp_path: Path) -> None:
    header = '{"format": "evalstop-trace", "version": 1}\n'
    row = '{{"job": "{}", "submitted": 0, "gpus": 8, "work": 60{}}}\n'
    content = header + row.format("a", ', "gpus_per_replica": 2') + row.format("b", "")
    trace = read([written(tmp_path, "t.jsonl", content)])
    trace.fit(Cluster.of_nodes([4, 4]))
    assert list(trace.workload().gpus_per_replica) == [2, 4]
