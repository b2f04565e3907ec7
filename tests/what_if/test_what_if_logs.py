"""A pool's past from decision logs in every state in which one finds them: nothing is lost silently."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logged_world import RISE, RISE_AND_FALL, logged
from typer.testing import CliRunner

from controller.cli.main import app
from controller.policy.codec import decode
from controller.policy.decision_log import VERSION
from controller.policy.types import Mode, PolicySpec, PoolSnapshot
from sim.rules.history import read as read_evals
from sim.traces import TraceError, read
from sim.traces.decisions import read_history, stream
from sim.traces.facts import JobFacts
from sim.traces.history import History
from sim.traces.past import End
from sim.traces.past_files import merged, read_past, with_rotated
from sim.traces.trace import Trace, TraceJob


def written(file: Path, lines: list[str], end: str = "\n") -> Path:
    file.write_text("\n".join(lines) + end)
    return file


def by_key(trace: Trace) -> dict[str, TraceJob]:
    return {job.key: job for job in trace.jobs}


def told(trace: Trace, words: str) -> bool:
    return any(words in note for note in trace.notes)


def test_a_whole_log_tells_all_that_happened(tmp_path: Path, whole_log: list[str]) -> None:
    trace = read_past([written(tmp_path / "log", whole_log)])
    assert trace.cluster is not None
    assert [gpus for _, gpus in trace.cluster.nodes] == [2, 2]
    assert trace.rule is not None
    assert trace.rule.rule.name == "kDeclines"
    assert trace.history["pool"] == "p"
    assert trace.history["capacity"] == [[trace.history["from"], [2, 2]]]
    assert trace.latencies is not None
    assert trace.latencies.start_delay == 30.0
    assert trace.latencies.retain_time == 20.0
    jobs = by_key(trace)
    over, shadow, following, late = (jobs[f"ns/{name}"] for name in ("over", "shadow", "next", "late"))
    ends = [job.past.end for job in (over, shadow, following, late) if job.past is not None]
    assert ends == [End.STOPPED, End.COMPLETE, End.COMPLETE, End.RUNNING]

    assert over.past is not None
    assert (over.past.seen, over.past.length, over.past.stop_eval) == (0.5, "progress", 7)
    assert over.past.censored
    assert over.evals is not None
    assert list(over.evals.scores) == list(RISE_AND_FALL)
    assert over.evals.at[-1] == 0.5
    assert over.work == pytest.approx(2 * over.past.service / over.gpus)
    assert over.past.started == 1010.0
    assert over.past.ended is not None
    assert following.past is not None
    assert following.past.started == over.past.ended  # its GPUs were handed over
    assert following.past.waited == pytest.approx(following.past.started - following.submitted)
    assert following.evals is not None
    assert list(following.evals.scores) == list(RISE)

    assert shadow.past is not None
    assert (shadow.past.mode, shadow.past.seen, shadow.past.stop_eval) == (Mode.SHADOW, 1.0, 7)
    assert not shadow.past.censored
    assert late.past is not None
    assert (late.past.length, late.evals) == ("unknown", None)
    assert told(trace, "1 of them told no progress")


def test_a_log_that_was_cut_off_tells_all_before_the_cut(tmp_path: Path, whole_log: list[str]) -> None:
    text = "\n".join(whole_log)
    file = tmp_path / "log"
    file.write_text(text[: int(len(text) * 0.7)])
    trace = read_past([file])
    kept = file.read_text().count("\n")
    assert told(trace, f"1 of {kept + 1} lines is cut off at the end of the file and tells nothing; the")
    assert told(trace, f"log, line {kept + 1}: not JSON")
    exact = read_past([written(tmp_path / "exact", whole_log[:kept])])
    assert [(job.key, job.work, job.past) for job in trace.jobs] == [
        (job.key, job.work, job.past) for job in exact.jobs
    ]


def cut_in_the_middle(lines: list[str]) -> list[str]:
    return [*lines[:100], lines[100][:50], *lines[101:]]


def not_json(lines: list[str]) -> list[str]:
    return [*lines[:100], "\x00\x00\x00", *lines[101:]]


def field_missing(lines: list[str]) -> list[str]:
    entry = json.loads(lines[100])
    entry["input"] = {"nothing": 1}
    return [*lines[:100], json.dumps(entry), *lines[101:]]


def older(lines: list[str]) -> list[str]:
    entry = json.loads(lines[100])
    return [*lines[:100], json.dumps({**entry, "v": 1}), *lines[101:]]


def newer(lines: list[str]) -> list[str]:
    entry = json.loads(lines[100])
    return [*lines[:100], json.dumps({**entry, "v": VERSION + 1}), *lines[101:]]


def no_time(lines: list[str]) -> list[str]:
    entry = json.loads(lines[100])
    return [*lines[:100], json.dumps({**entry, "now": "soon"}), *lines[101:]]


DAMAGE: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "cut in the middle": (cut_in_the_middle, "is damaged, or cut off in the middle"),
    "not JSON": (not_json, "is damaged, or cut off in the middle"),
    "without its input": (field_missing, "is with a field that cannot be read"),
    "of an older version": (older, "is of an older version and tells nothing; the first: "),
    "of a newer version": (newer, "is of a newer version and tells nothing; the first: "),
    "without a time": (no_time, "is with a field that cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_one_bad_line_costs_one_line(tmp_path: Path, whole_log: list[str], name: str) -> None:
    damage, words = DAMAGE[name]
    trace = read_past([written(tmp_path / "log", damage(whole_log))])
    assert told(trace, words)
    assert told(trace, "log, line 101")
    assert set(by_key(trace)) == {"ns/over", "ns/shadow", "ns/next", "ns/late"}
    assert trace.history["left_out_lines"][next(iter(trace.history["left_out_lines"]))] >= 1


@pytest.mark.parametrize(
    ("version", "cure"),
    [(1, "it is of an older evalstop"), (VERSION + 1, "it is of a newer evalstop")],
)
def test_a_log_of_another_version_is_refused_by_name_with_what_to_do(
    tmp_path: Path, whole_log: list[str], version: int, cure: str
) -> None:
    lines = [json.dumps({**json.loads(line), "v": version}) for line in whole_log[:20]]
    with pytest.raises(TraceError, match=rf"log, line 1, v: {version} is not allowed, .*version 5: {cure}"):
        read_past([written(tmp_path / "log", lines)])


def test_rotated_files_come_along_in_their_order(tmp_path: Path, whole_log: list[str]) -> None:
    third = len(whole_log) // 3
    (tmp_path / "log.2.gz").write_bytes(gzip.compress("\n".join(whole_log[:third]).encode() + b"\n"))
    written(tmp_path / "log.1", whole_log[third : 2 * third])
    newest = written(tmp_path / "log", whole_log[2 * third :])
    written(tmp_path / "log.txt", ["nothing of ours"])
    assert with_rotated([newest]) == [tmp_path / "log.2.gz", tmp_path / "log.1", newest]
    whole = read_past([written(tmp_path / "whole", whole_log)])
    assert [job.past for job in read_past([newest]).jobs] == [job.past for job in whole.jobs]
    named = read_past([newest, tmp_path / "log.1", tmp_path / "log.2.gz"], rotated=False)
    assert [job.past for job in named.jobs] == [job.past for job in whole.jobs]
    as_ever = read([tmp_path / "log.2.gz", newest, tmp_path / "log.1"])
    assert [job.key for job in as_ever.jobs] == [job.key for job in whole.jobs]
    alone = read_past([newest], rotated=False)
    assert told(alone, "there before the log begins")


def test_lines_that_are_there_twice_count_once(tmp_path: Path, whole_log: list[str]) -> None:
    once = read_past([written(tmp_path / "log", whole_log)])
    copy = written(tmp_path / "copy", whole_log)
    twice = read_past([tmp_path / "log", copy])
    assert [job.past for job in twice.jobs] == [job.past for job in once.jobs]
    assert twice.history["left_out_lines"]["repeated"] >= len(whole_log)
    assert told(twice, "repeated and tell nothing.")


def test_a_log_that_begins_in_the_middle_says_so(tmp_path: Path, whole_log: list[str]) -> None:
    """``ns/over`` and ``ns/shadow`` run when it begins; what their records remember is known."""
    begin = next(n for n, line in enumerate(whole_log) if '"kind":"job"' in line and '"evals_seen":4' in line)
    trace = read_past([written(tmp_path / "log", whole_log[begin:])])
    assert told(trace, "2 jobs were there before the log begins")
    over = by_key(trace)["ns/over"]
    assert over.past is not None
    assert over.past.early
    assert over.past.started == 1010.0  # its admission remembers
    assert over.evals is not None
    assert list(over.evals.scores) == list(RISE_AND_FALL)  # and its status the last evals
    assert over.past.missed == 0


def test_evals_that_are_in_no_line_are_counted(tmp_path: Path, whole_log: list[str]) -> None:
    """The record counted seven, the log shows those of its last lines only."""
    entries = [json.loads(line) for line in whole_log]
    for entry in entries:
        parts = entry["input"]
        if entry["kind"] != "job" or parts["desired"]["key"] != "ns/over":
            continue
        parts["record"]["evals"] = parts["record"]["evals"][-2:]
        if parts["observed"]["scrape"] is not None:
            parts["observed"]["scrape"]["points"] = parts["observed"]["scrape"]["points"][-2:]
    late = [e for e in entries if e["kind"] == "pool" or e["input"]["record"]["evals_seen"] >= 5]
    trace = read_past([written(tmp_path / "log", [json.dumps(entry) for entry in late])])
    over = by_key(trace)["ns/over"]
    assert over.past is not None
    assert over.evals is not None
    assert over.past.missed == 7 - len(over.evals.at) > 0
    assert told(trace, f"{over.past.missed} evals of 1 job were made and are not here.")


def test_a_hole_in_the_log_is_told(tmp_path: Path, whole_log: list[str]) -> None:
    def at(line: str) -> float:
        return float(json.loads(line)["now"])

    start = at(whole_log[0])
    kept = [line for line in whole_log if not start + 1500 < at(line) < start + 4000]
    trace = read_past([written(tmp_path / "log", kept)])
    assert told(trace, "The log has 1 hole while jobs ran")
    assert max(end - begin for begin, end in trace.history["holes"]) > 2000


def test_several_pools_in_a_log_need_a_name(tmp_path: Path, whole_log: list[str]) -> None:
    lines = []
    for line in whole_log:
        lines.append(line)
        entry = json.loads(line)
        if entry["kind"] == "pool":
            entry["input"] |= {"pool": "q", "jobs": []}
            lines.append(json.dumps(entry))
    file = written(tmp_path / "log", lines)
    with pytest.raises(TraceError, match=r"of the pools p and q, expected only one; .*--pool NAME"):
        read_past([file])
    assert len(read_past([file], pool="p").jobs) == 4
    with pytest.raises(TraceError, match=r"no job in it that had GPUs .4 of another pool"):
        read_past([file], pool="q")
    with pytest.raises(TraceError, match="pool: 'r' is not allowed, expected one of p, q"):
        read_past([file], pool="r")


def test_a_delegate_is_not_replayed_and_that_is_told(tmp_path: Path, whole_log: list[str]) -> None:
    entries = [json.loads(line) for line in whole_log]
    for entry in entries:
        if entry["kind"] == "pool":
            entry["input"] |= {"delegate": "Kueue", "policy": {"name": "las", "params": {}}}
    trace = read_past([written(tmp_path / "log", [json.dumps(entry) for entry in entries])])
    assert trace.policy == PolicySpec("fifo", {"backfill": True})
    assert told(trace, "The pool's delegate is Kueue")


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_gzipped_log_that_is_damaged_tells_what_it_can(
    tmp_path: Path, whole_log: list[str], damage: str
) -> None:
    noise = random.Random(1).randbytes(1 << 16).hex()  # or it would be unpacked in one piece
    lines = [json.dumps({**json.loads(line), "noise": noise}) + "\n" for line in whole_log[:40]]
    packed = bytearray(gzip.compress("".join(lines).encode()))
    half = len(packed) // 2
    if damage == "flipped":
        packed[half : half + 2000] = b"\xff" * 2000
    (tmp_path / "log.gz").write_bytes(packed[:half] if damage == "cut" else packed)
    read = list(stream(tmp_path / "log.gz"))
    whole = [line for line in read if line in lines]
    assert read[: len(whole)] == lines[: len(whole)]
    assert 0 < len(whole) < len(lines)
    assert not read[-1].endswith("\n")  # counted as cut off


def test_changing_nodes_are_kept_and_the_usual_ones_replayed(tmp_path: Path, whole_log: list[str]) -> None:
    entries = [json.loads(line) for line in whole_log]
    last = entries[-1]["now"]
    for entry in entries:
        if entry["kind"] == "pool" and entry["now"] > last - 700:
            entry["input"]["nodes"] = entry["input"]["nodes"][:1]
    trace = read_past([written(tmp_path / "log", [json.dumps(entry) for entry in entries])])
    assert [nodes for _, nodes in trace.history["capacity"]] == [[2, 2], [2]]
    assert trace.cluster is not None
    assert trace.cluster.gpus == 4


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], End, float]] = {
    "failed": ({"finished": "Failed", "decision": None}, {}, End.FAILED, 1.0),
    "stopped by its user": ({"finished": None}, {"by": "User"}, End.USER, 1.0),
    "in Shadow": ({"finished": None}, {"mode": "Shadow"}, End.GONE, 1.0),
}


@pytest.mark.parametrize("name", ENDS)
def test_only_a_stop_by_a_rule_leaves_open_what_would_have_come(
    tmp_path: Path, whole_log: list[str], name: str
) -> None:
    """A user's stop, a failure: the run would have ended there under any rule."""
    record, decision, end, seen = ENDS[name]
    entries = [json.loads(line) for line in whole_log]
    for entry in entries:
        if entry["kind"] != "job" or entry["input"]["desired"]["key"] != "ns/over":
            continue
        for found in (entry["input"]["record"], entry["decision"]["record"]):
            if found["decision"] is not None:
                found["decision"] |= decision
                found |= record
    trace = read_past([written(tmp_path / "log", [json.dumps(entry) for entry in entries])])
    over = by_key(trace)["ns/over"]
    assert over.past is not None
    assert (over.past.end, over.past.seen, over.past.censored) == (end, seen, False)
    assert over.evals is not None
    assert over.evals.at[-1] == 1.0  # of the training that there was


def test_a_deleted_job_is_gone_and_one_of_another_evaluator_begins_anew(
    tmp_path: Path, whole_log: list[str]
) -> None:
    entries = [json.loads(line) for line in whole_log]
    for entry in entries:
        if entry["kind"] == "job" and entry["input"]["desired"]["key"] == "ns/next":
            entry["input"]["record"]["finished"] = entry["decision"]["record"]["finished"] = None
            entry["input"]["desired"]["deleting"] = True
            life = entry["input"]["record"]["evals"]
            if len(life) >= 4:
                number, started = life[2][2]
                scale = {"since": 1.0, "life": f"{number}-{started}", "step": 30, "kept": None}
                entry["input"]["record"]["baseline"] = entry["decision"]["record"]["baseline"] = scale
    trace = read_past([written(tmp_path / "log", [json.dumps(entry) for entry in entries])])
    following = by_key(trace)["ns/next"]
    assert following.past is not None
    assert following.past.end is End.GONE
    assert following.past.scale == 3
    assert following.evals is not None
    assert list(following.evals.scores) == list(RISE[3:])
    assert told(trace, "3 evals of 1 job are left out: scored by another evaluator")


def test_an_end_that_the_logs_last_line_decides_is_known(tmp_path: Path, whole_log: list[str]) -> None:
    """The operator stopped right after it: no line came that has it as its input."""
    entries = [json.loads(line) for line in whole_log]
    ends = (n for n, one in enumerate(entries) if (one["decision"].get("record") or {}).get("finished"))
    mine = next(n for n in ends if entries[n]["input"]["desired"]["key"] == "ns/next")
    assert entries[mine]["input"]["record"]["finished"] is None
    trace = read_past([written(tmp_path / "log", whole_log[: mine + 1])])
    following = by_key(trace)["ns/next"]
    assert following.past is not None
    assert following.past.end is End.COMPLETE
    assert following.past.ended == entries[mine]["now"]


def test_several_exports_are_one_past_and_the_newest_has_the_last_word(
    tmp_path: Path, whole_log: list[str]
) -> None:
    half = len(whole_log) // 2
    early = read_past([written(tmp_path / "early", whole_log[:half])])
    whole = read_past([written(tmp_path / "whole", whole_log)])
    both = merged([whole, early])
    assert by_key(both).keys() == by_key(whole).keys()
    assert [job.past for job in both.jobs] == [job.past for job in whole.jobs]
    assert told(both, "jobs are in more than one file; the newest counts.")
    early.history["pool"] = "q"
    with pytest.raises(TraceError, match="of the pools p and q, expected only one"):
        merged([whole, early])


class _Named(dict[str, JobFacts]):
    """Jobs that can be asked for by name, but not gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("every job that there ever was is looked at")

    items = values = keys = __iter__  # type: ignore[assignment]


def test_a_plan_costs_what_it_names_however_many_jobs_there_ever_were(
    tmp_path: Path, whole_log: list[str]
) -> None:
    plans = [entry for entry in map(json.loads, whole_log) if entry["kind"] == "pool"]
    whole, _ = read_history([written(tmp_path / "log", whole_log)])
    history = History()
    history.jobs = _Named()
    for number, entry in enumerate(plans):
        history.plan(tmp_path, number, entry["now"], decode(PoolSnapshot, entry["input"]))
    for key, facts in whole.jobs.items():
        assert history.jobs[key].ended == facts.ended
        assert history.jobs[key].held == pytest.approx(facts.held)


def test_files_that_are_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(TraceError, match="empty: is empty"):
        read_past([tmp_path / "empty"])
    with pytest.raises(TraceError, match="line 1: no log that is known has these columns"):
        read_past([written(tmp_path / "text", ["hello, world"])])


_WHOLE = logged()
_TEXT = "\n".join(_WHOLE) + "\n"


@settings(max_examples=8)
@given(st.integers(0, len(_TEXT)), st.integers(0, 2000), st.binary(max_size=3))
def test_whatever_is_cut_out_of_a_log_the_rest_is_read(
    tmp_path_factory: pytest.TempPathFactory, at: int, length: int, instead: bytes
) -> None:
    """Every line is either taken in or counted, and jobs have no more evals than were made."""
    file = tmp_path_factory.mktemp("cut") / "log"
    file.write_bytes(_TEXT[:at].encode() + instead + _TEXT[at + length :].encode())
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip()]
    history, left = read_history([file])
    assert left.lines == len(lines)
    assert left.counts.total() - left.counts["repeated"] <= 3
    for key, facts in history.jobs.items():
        if key in ("ns/over", "ns/next"):
            made = RISE_AND_FALL if key == "ns/over" else RISE
            assert [p.score for p in facts.points] == list(made[: len(facts.points)])


def completed_unread(lines: list[str], end: str = "Complete") -> list[str]:
    """``ns/next`` had 250 steps, of which 100 were seen; then it ended."""
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        if entry["kind"] != "job" or entry["input"]["desired"]["key"] != "ns/next":
            continue
        scrape = entry["input"]["observed"]["scrape"]
        if scrape is not None and scrape["total_steps"]:
            scrape["total_steps"] = 250
        for record in (entry["input"]["record"], entry["decision"].get("record") or {}):
            if record.get("progress"):
                record["progress"]["total_steps"] = 250
            if record.get("finished"):
                record["finished"] = end
    return [json.dumps(entry) for entry in entries]


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_run_that_ended_short_of_its_total_keeps_the_steps_of_its_evals(
    tmp_path: Path, whole_log: list[str], end: str
) -> None:
    log = written(tmp_path / "log", completed_unread(whole_log, end))
    done = CliRunner().invoke(app, ["export", str(log), "--out", str(tmp_path / "trace")])
    assert done.exit_code == 0, done.output
    for source in (log, tmp_path / "trace"):  # an exported trace tells the same
        done = CliRunner().invoke(app, ["export", str(source), "--evals", "--out", str(tmp_path / "e.csv")])
        assert done.exit_code == 0, done.output
        series = {one.id: one for one in read_evals(tmp_path / "e.csv")}
        assert series["ns/next"].steps == tuple(range(10, 101, 10))
        assert series["ns/next"].total == 250
        assert series["ns/over"].steps == tuple(range(10, 71, 10))  # stopped half way
        assert series["ns/shadow"].steps == tuple(range(10, 71, 10))  # seen to its end


def test_a_run_that_completed_unread_is_known_in_its_first_part_only(
    tmp_path: Path, whole_log: list[str]
) -> None:
    trace = read_past([written(tmp_path / "log", completed_unread(whole_log))])
    whole = by_key(read_past([written(tmp_path / "whole", whole_log)]))["ns/next"]
    job = by_key(trace)["ns/next"]
    assert job.past is not None
    assert (job.past.end, job.past.seen, job.past.length) == (End.COMPLETE, 0.4, "run")
    assert not job.past.whole
    assert job.work == whole.work  # its length was seen, though what it made then was not
    assert job.evals is not None
    assert job.evals.at[-1] == 0.4
    assert told(trace, "1 of 4 jobs came to its end unread, before all steps were seen; its evals are the")
    assert not told(read_past([tmp_path / "whole"]), "unread")
