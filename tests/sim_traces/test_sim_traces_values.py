"""Values that look like numbers and cannot be used: refused by file, line and field, or skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cluster import Cluster
from sim.traces import TraceError, read

CSV = "job,submitted,gpus,work,weight,estimate,gpus_per_replica\n"
HEAD = '{"format": "evalstop-trace", "version": 1'
OWN = HEAD + "}\n"
HUGE, LONGER = "9" * 400, "9" * 5000  # beyond every float; beyond what Python reads as an integer
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"


def csv(**changes: str) -> str:
    cells = {
        "job": "b",
        "submitted": "1",
        "gpus": "8",
        "work": "60",
        "weight": "",
        "estimate": "",
        "each": "",
    }
    return ",".join({**cells, **changes}.values()) + "\n"


def own(**changes: str) -> str:
    fields = {"job": '"b"', "submitted": "1", "gpus": "8", "work": "60", **changes}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}\n"


ROWS = {
    "weight 0 in CSV": (CSV, csv(weight="0"), "weight: 0 is not allowed, expected a finite number above 0"),
    "weight below 0 in CSV": (CSV, csv(weight="-1"), "weight: -1 is not allowed"),
    "weight 0": (OWN, own(weight="0"), "weight: 0 is not allowed, expected a finite number above 0"),
    "estimate below 0 in CSV": (CSV, csv(estimate="-5"), "estimate: -5 is not allowed, expected a duration"),
    "estimate below 0": (OWN, own(estimate="-5"), "estimate: -5 is not allowed, expected a duration"),
    "gang that does not divide in CSV": (
        CSV,
        csv(each="3"),
        "gpus_per_replica: 3 is not allowed, expected a divisor of gpus, 8",
    ),
    "gang of 0": (OWN, own(gpus_per_replica="0"), "gpus_per_replica: 0 is not allowed, expected a divisor"),
    "work of 400 digits in CSV": (CSV, csv(work=HUGE), "work: '999"),
    "work of 400 digits": (OWN, own(work=HUGE), "work: inf is not allowed, expected a finite number"),
    "work of 5000 digits in CSV": (CSV, csv(work=LONGER), "work: '999"),
    "work of 5000 digits": (OWN, own(work=LONGER), "work: inf is not allowed, expected a finite number"),
    "GPUs of 400 digits": (OWN, own(gpus=HUGE), "gpus: inf is not allowed, expected a whole number"),
    "work beyond the ages": (OWN, own(work="1e300"), r"work: 1e\+300 is not allowed, expected a duration"),
    "time beyond the ages in CSV": (
        CSV,
        csv(submitted="1e300"),
        "submitted: 1.* is not allowed, expected a fin",
    ),
    "a name twice": (OWN, own(work='1, "work": 2'), "the name 'work' is there twice in one object"),
    "a name twice inside": (
        OWN,
        own(evals='{"at": [1], "at": [0.5], "scores": [1]}'),
        "the name 'at' is there twice in one object",
    ),
    "half a character": (OWN, own(job='"\\ud800"'), r"job: '\\ud800' is not allowed, expected text"),
    "nested without end": (OWN, "[" * 100_000 + "\n", "nested deeper than 200 levels"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_refused_by_name_and_can_be_skipped(tmp_path: Path, name: str) -> None:
    head, row, message = ROWS[name]
    good = csv(job="good") if head is CSV else own(job='"good"')
    file = tmp_path / "f"
    file.write_text(head + good + row)
    with pytest.raises(TraceError, match=f"f, line 3(: |, ){message}"):
        read([file])
    trace = read([file], skip_bad=True)
    assert [job.key for job in trace.jobs] == ["trace/good"]
    assert len(trace.skipped) == 1


HEADERS = {
    "modifiers that are no list": (
        HEAD + ', "rule": {"name": "kDeclines"}, "modifiers": 5}',
        r"modifiers: 5 is not allowed, expected a list",
    ),
    "a modifier that is none": (
        HEAD + ', "rule": {"name": "kDeclines"}, "modifiers": [3]}',
        r"modifiers\[0\]: 3 is not allowed",
    ),
    "run that is no object": (HEAD + ', "run": 5}', "run: 5 is not allowed, expected an object"),
    "setting that is no object": (HEAD + ', "run": {"setting": 5}}', "run.setting: 5 is not allowed"),
    "delays that are no object": (
        HEAD + ', "run": {"setting": {"latencies": [1]}}}',
        r"run.setting.latencies: \[1\] is not allowed",
    ),
    "a delay that does not exist": (
        HEAD + ', "run": {"setting": {"latencies": {"lag": 1}}}}',
        "run.setting.latencies.lag: unknown, expected one of start_delay",
    ),
    "a delay below 0": (
        HEAD + ', "run": {"setting": {"latencies": {"start_delay": -1}}}}',
        "run.setting.latencies: .*start_delay: -1.0 is not allowed",
    ),
    "a delay that is text": (
        HEAD + ', "run": {"setting": {"latencies": {"start_delay": "long"}}}}',
        "run.setting.latencies: .*start_delay: 'long' is not allowed",
    ),
    "modifiers without a rule": (
        HEAD + ', "modifiers": [{"name": "warmUp"}]}',
        "modifiers: there is no rule for them",
    ),
    "guardrails without a rule": (
        HEAD + ', "guardrails": {"safety": {"name": "drawdown"}}}',
        "guardrails: there is no rule for them",
    ),
    "a name twice": (HEAD + ', "version": 1}', "the name 'version' is there twice"),
    "a version of 5000 digits": (HEAD[:-1] + LONGER + "}", "version: inf is not allowed"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_refused_by_name_even_where_rows_are_skipped(tmp_path: Path, name: str) -> None:
    header, message = HEADERS[name]
    file = tmp_path / "f"
    file.write_text(header + "\n" + own())
    with pytest.raises(TraceError, match=f"f, line 1(: |, ){message}"):
        read([file], skip_bad=True)


def test_a_column_of_a_name_that_is_there_already_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("job,submitted,gpus,work,work\na,0,1,60,61\n")
    with pytest.raises(TraceError, match="f, line 1, work: is there twice, expected one column of that name"):
        read([file])


def test_a_job_of_an_earlier_file_is_a_bad_row(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(OWN + own(job='"a"'))
    two.write_text(OWN + own(job='"a"') + own(job='"b"'))
    with pytest.raises(TraceError, match=r"two, line 2, job: 'trace/a' is in .*one already"):
        read([one, two])
    trace = read([one, two], skip_bad=True)
    assert [(job.key, job.file) for job in trace.jobs] == [("trace/a", one), ("trace/b", two)]
    assert len(trace.skipped) == 1


def test_rows_without_an_id_are_numbered_on_from_file_to_file(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text(PHILLY)
    assert [job.key for job in read(files).jobs] == ["11cb48/0", "11cb48/1"]


def test_what_files_say_of_their_cluster_holds_once_and_is_not_ignored_in_silence(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("none", "eight", "four")]
    files[0].write_text(OWN + own(job='"a"'))
    files[1].write_text(HEAD + ', "cluster": {"gpus": 8}, "policy": {"name": "las"}}\n' + own(job='"b"'))
    files[2].write_text(HEAD + ', "cluster": {"gpus": 4}, "policy": {"name": "las"}}\n' + own(job='"c"'))
    trace = read(files)
    assert trace.cluster is not None
    assert trace.policy is not None
    assert (trace.cluster.gpus, trace.policy.name) == (8, "las")
    assert trace.notes == [f"{files[2]} names another cluster than a file before it, whose holds."]


def test_a_job_of_more_gpus_than_can_be_counted_out_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text(CSV + csv(job="a") + csv(gpus="9" * 300))
    trace = read([file], skip_bad=True)
    trace.fit(Cluster.of_nodes([8]))
    assert [job.key for job in trace.jobs] == ["trace/a"]
    [error] = trace.skipped.errors
    assert "expected a gang that fits into the empty cluster of 8 GPUs on 1 node" in str(error)
    assert len(str(error)) < 500
