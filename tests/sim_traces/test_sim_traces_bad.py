"""Bad input: each fault is an error that names file, line and field; with skip_bad it is counted instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.traces import TraceError, read

CSV = "job,submitted,gpus,work\n"
OWN = '{"format": "evalstop-trace", "version": 1}\n'
GOOD = '{"job": "a", "submitted": 0, "gpus": 1, "work": 60}\n'
TRAINER = '{"step": 10, "gold": 0.5, "time": 100.0, "attempt": "1-1"}\n'
PHILLY_HEAD = '[{"vc": "v", "jobid": "j", "submitted_time": "2017-10-07 01:00:00", '


def job(**changes: str) -> str:
    fields = {"job": '"b"', "submitted": "1", "gpus": "1", "work": "60", **changes}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items() if value) + "}\n"


def evals(at: str, scores: str) -> str:
    return OWN + job(evals='{"at": ' + at + ', "scores": ' + scores + "}")


CASES: dict[str, tuple[str, str]] = {
    "empty": ("", r"f: is empty"),
    "proxy that is no number": (
        OWN + job(evals='{"at": [1], "scores": [1], "proxies": ["high"]}'),
        r"f, line 2, evals.proxies\[0\]: 'high' is not allowed, expected a finite number or null",
    ),
    "standard error below 0": (
        OWN + job(evals='{"at": [1], "scores": [1], "stderrs": [-0.5]}'),
        r"f, line 2, evals.stderrs\[0\]: -0.5, expected at least 0",
    ),
    "differences of one prompt": (
        OWN + job(evals='{"at": [1], "scores": [1], "paired": [[0, 1, 0.5, 0.1]]}'),
        r"f, line 2, evals.paired\[0\]: .* is not allowed, expected \[reference eval, prompts, mean, var",
    ),
    "differences of too few evals": (
        OWN + job(evals='{"at": [0.5, 1], "scores": [1, 2], "paired": [null]}'),
        r"f, line 2, evals.paired: 1 for 2 evals, expected one for each or none",
    ),
    "blank": ("\n \n", r"f: is empty"),
    "header only": (CSV, r"f: no job in it"),
    "unknown columns": ("id,when\n1,2\n", r"f, line 1: no log that is known has these columns"),
    "negative duration": (CSV + "a,0,1,-5\n", r"f, line 2, work: -5 is not allowed, expected a duration of"),
    "NaN duration": (CSV + "a,0,1,nan\n", r"f, line 2, work: 'nan' is not allowed, expected a finite number"),
    "infinite duration": (CSV + "a,0,1,1e999\n", r"f, line 2, work: '1e999' is not allowed"),
    "word for a number": (CSV + "a,0,many,60\n", r"f, line 2, gpus: 'many' is not allowed, expected a whole"),
    "half a GPU": (CSV + "a,0,0.5,60\n", r"f, line 2, gpus: '0.5' is not allowed, expected a whole number"),
    "no GPUs": (CSV + "a,0,0,60\n", r"f, line 2, gpus: 0 is not allowed, expected at least 1 GPU"),
    "quote left open": (
        CSV + 'a,0,1,60\n"b,1,1,60\nc,2,1,60\n',
        r'f, line 3: a quote \("\) opens in this row and is never closed',
    ),
    "quote closed in a later row": (
        CSV + 'a,0,1,60\n"b,1,1,60\n"c,2,1,60\n',
        r"f, line 3, job: a line ends within it; the row goes on to line 4, is a quote not closed\?",
    ),
    "quote left open in the header": ('job,submitted,gpus,work,"note\na,0,1,60,x\n', r"f, line 1: a quote "),
    "control characters in an id": (
        CSV + "\x1b[31mred,0,1,60\n",
        r"f, line 2, job: 'trace/\\x1b\[31mred' is not allowed, expected an id without control characters",
    ),
    "row cut off": (CSV + "a,0,1,60\nb,1,1\n", r"f, line 3, work: there is no such column in this row"),
    "row too long": (CSV + "a,0,1,60,9\n", r"f, line 2: 5 cells under 4 columns"),
    "duplicate id": (CSV + "a,0,1,60\na,1,1,60\n", r"f, line 3, job: 'a' is not allowed, .*that of line 2"),
    "out of order": (
        CSV + "a,5,1,60\nb,4,1,60\n",
        r"f, line 3, submitted: 4 .*order of time \(line 2 has 5\)",
    ),
    "bad time": (
        "timestamp,duration,num_gpus,gpu_time,cluster\nyesterday,1,1,1,c\n",
        r"f, line 2, timestamp: 'yesterday' is not allowed, expected a time",
    ),
    "ends before it starts": (
        "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\np,1,1000,LS,0,5,9\n",
        r"f, line 2, scheduled_time and deletion_time: -4 is not allowed",
    ),
    "not JSON": (OWN + GOOD + "{oops\n", r"f, line 3: not JSON"),
    "JSON that is no object": (OWN + "[1]\n", r"f, line 2: \[1\] is not allowed, expected a JSON object"),
    "other version": (
        '{"format": "evalstop-trace", "version": 9}\n',
        r"f, line 1, version: 9 is not allowed",
    ),
    "other JSON": ('{"jobs": 3}\n', r"f, line 1, format: None is not allowed, expected a header line"),
    "unknown header field": (
        '{"format": "evalstop-trace", "version": 1, "gpus": 4}\n' + GOOD,
        r"f, line 1, gpus: unknown, expected one of format, version, cluster",
    ),
    "impossible cluster": (
        '{"format": "evalstop-trace", "version": 1, "cluster": {"gpus": 0}}\n' + GOOD,
        r"f, line 1, cluster: \{'gpus': 0\} is not allowed",
    ),
    "unknown policy": (
        '{"format": "evalstop-trace", "version": 1, "policy": {"name": "lottery"}}\n' + GOOD,
        r"f, line 1, policy: .*'lottery' is not allowed, expected one of fifo",
    ),
    "unknown parameter": (
        '{"format": "evalstop-trace", "version": 1, "rule": {"name": "kDeclines", "q": 3}}\n' + GOOD,
        r"f, line 1, rule: .*kDeclines\.q: 3 is not allowed, expected one of the parameters k, min_delta",
    ),
    "missing field": (OWN + job(work=""), r"f, line 2, work: is missing, expected a finite number"),
    "unknown field": (OWN + job(color="1"), r"f, line 2, color: unknown, expected one of job, submitted"),
    "text for a number": (OWN + job(work='"60"'), r"f, line 2, work: '60' is not allowed"),
    "truth for a number": (OWN + job(gpus="true"), r"f, line 2, gpus: True is not allowed"),
    "NaN in JSON": (OWN + job(work="NaN"), r"f, line 2, work: nan is not allowed"),
    "own out of order": (
        OWN + job(submitted="2") + job(job='"c"'),
        r"f, line 3, submitted: 1 is not allowed, expected the order of time \(line 2 has 2\)",
    ),
    "own duplicate": (OWN + GOOD + job(job='"a"'), r"f, line 3, job: 'a' is not allowed"),
    "gang that does not divide": (
        OWN + job(gpus="4", gpus_per_replica="3"),
        r"f, line 2, gpus_per_replica: 3 is not allowed, expected a divisor of gpus, 4",
    ),
    "evals not in order": (
        evals("[0.5, 0.5]", "[1, 2]"),
        r"f, line 2, evals\.at\[1\]: 0\.5, expected above 0\.5",
    ),
    "evals after the end": (evals("[0.5, 1.5]", "[1, 2]"), r"f, line 2, evals\.at\[1\]: 1\.5, expected"),
    "evals of two lengths": (evals("[0.5]", "[1, 2]"), r"f, line 2, evals: 1 time, 2 scores"),
    "eval that is text": (evals("[1.0]", '["x"]'), r"f, line 2, evals\.scores\[0\]: 'x' is not allowed"),
    "hidden truth that is none": (OWN + job(truth='{"hacks": 1, "peak": 2}'), r"f, line 2, truth: .*is not"),
    "philly cut off": (PHILLY_HEAD + '"attempts": []}, {"vc"', r"f, line 1: not JSON .*was the file cut off"),
    "philly not closed": (PHILLY_HEAD + '"attempts": []}', r"f, line 1: expected , or \] after a job"),
    "semicolons": ("job;submitted;gpus;work\na;0;1;5\n", r"; columns are parted by ';', expected a comma"),
    "philly without attempts": (PHILLY_HEAD + '"x": 1}]', r"f, line 1, attempts: is missing"),
    "philly bad time": (
        PHILLY_HEAD + '"attempts": [{"start_time": "soon", "end_time": null, "detail": []}]}]',
        r"f, line 1, attempts\[0\]\.start_time: 'soon' is not allowed",
    ),
    "trainer with one eval": (TRAINER, r"f: 1 eval after step 0, expected at least 2"),
    "trainer going back": (
        TRAINER + TRAINER,
        r"f, line 2, step: 10 is not allowed, expected a step above 10",
    ),
    "trainer's clock going back": (
        TRAINER + TRAINER.replace("10,", "20,").replace("100.0", "99.0"),
        r"f, line 2, time: 99\.0 is not allowed, expected a time not before 100\.0",
    ),
    "trainer with half a pair": (
        TRAINER + '{"step": 20, "gold": 1, "time": 1, "differences": {"reference": 10, "prompts": 1}}',
        r"f, line 2, differences: .* is not allowed, expected reference, prompts \(2 or more\), mean and",
    ),
    "trainer without a score": (TRAINER + '{"step": 20, "time": 1}', r"f, line 2, gold: None is not allowed"),
    "decision log of another version": (
        '{"v": 9, "kind": "pool", "input": {}, "now": 1, "decision": {}}\n',
        r"f, line 1, v: 9 is not allowed, expected version 5: it is of a newer evalstop",
    ),
    "decision log that lacks a field": (
        '{"v": 5, "kind": "pool", "input": {"pool": 3}, "now": 1, "decision": {}}\n',
        r"f, line 1, input: .*PoolSnapshot\.pool: expected str, got 3",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_by_file_line_and_field(tmp_path: Path, name: str) -> None:
    content, message = CASES[name]
    file = tmp_path / "f"
    file.write_text(content)
    with pytest.raises(TraceError, match=message) as caught:
        read([file])
    assert str(tmp_path) in str(caught.value)
    assert caught.value.file == file


@pytest.mark.parametrize("name", ["not UTF-8", "cut off gzip"])
def test_bytes_that_are_no_text(tmp_path: Path, name: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(CSV.encode() + b"\xff\xfe" if name == "not UTF-8" else b"\x1f\x8b\x08\x00\x00\x00")
    expected = "f, line 2: not UTF-8 text" if name == "not UTF-8" else "f: cannot be unpacked"
    with pytest.raises(TraceError, match=expected):
        read([file])


SKIPPED = {
    "csv": (CSV + "a,0,1,60\nb,1,1,-1\nc,oops,1,60\na,2,1,60\nd,0,1,60\ne,3,1,60\n", 3, ["a", "d", "e"]),
    "own": (OWN + GOOD + job(work="-1") + "{\n" + job(job='"d"'), 2, ["a", "d"]),
    "philly": (
        PHILLY_HEAD + '"attempts": 3}, {"vc": "v", "jobid": "k", "submitted_time": "2017-10-07 01:00:00",'
        ' "attempts": [{"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 01:01:00",'
        ' "detail": [{"ip": "m", "gpus": ["gpu0"]}]}]}]',
        1,
        ["k"],
    ),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_skipping_goes_on_and_counts(tmp_path: Path, name: str) -> None:
    content, bad, kept = SKIPPED[name]
    file = tmp_path / "f"
    file.write_text(content)
    trace = read([file], skip_bad=True)
    assert [found.key.partition("/")[2] for found in trace.jobs] == kept
    assert len(trace.skipped) == bad
    assert all(error.line for error in trace.skipped.errors)


def test_skipping_everything_leaves_no_trace_and_says_what_was_wrong(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text(CSV + "a,0,1,-1\n")
    with pytest.raises(TraceError, match=r"no job in it \(1 wrong, the first: .*line 2, work: -1"):
        read([file], skip_bad=True)


def test_a_refused_row_does_not_count_for_order_or_ids(tmp_path: Path) -> None:
    """The row before decides what is out of order, and a bad row was never there."""
    file = tmp_path / "f"
    file.write_text(CSV + "a,0,1,60\nb,9,1,-1\nb,1,1,60\n")
    assert [found.submitted for found in read([file], skip_bad=True).jobs] == [0, 1]
