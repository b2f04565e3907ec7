"""Two trees whose decisions are compared: what differs is found, what only has another name is not."""

from __future__ import annotations

import importlib
import io
import json
import shutil
import sys
import types
from operator import attrgetter
from pathlib import Path

import pytest

from tests.frame import decisions, words
from tests.frame.decisions import ROOT, Failed, Pair
from tests.frame.recorder import LOOKS, Text, Words, leave_uncounted

TYPES = """
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

class Mode(StrEnum):
    SHADOW = "Shadow"

@dataclass(frozen=True)
class Kept:
    step: int

@dataclass(frozen=True)
class Record:
    kept: Kept | None
    reason: tuple = ("NoSpace", "it was kept back")
    mode: Mode = Mode.SHADOW
    params: dict = field(default_factory=dict)

@dataclass(frozen=True)
class Plan:
    record: Record
    wake: float
"""
PLAN = """
from controller.policy.types import Kept, Plan, Record

def plan(desired, record, now):
    return Plan(Record(Kept(record.kept.step + desired), params={"k": 2}), wake=now + 5.0)
"""
POOL = """
def plan(snapshot, now):
    return tuple(sorted(snapshot))
"""
WORLD = """
class World:
    def written(self, job, before, after): pass
    def told(self, job, event): pass
    def suspending(self, job, planned, reason): pass
    def starting(self, job, planned): pass
    def admitting(self, thought, admission): pass
"""
DRIVER = """
import tempfile
from collections import Counter
from types import SimpleNamespace
from controller.policy import MODULE as lifecycle
from controller.policy import pool
from controller.policy.types import TYPE, Record
from tests.faults.world import World

def drawn(seed):
    return {"seed": seed}, []

def play(config, steps):
    root = tempfile.mkdtemp(prefix="evalstop-faults-")
    world, record = World(), Record(TYPE(config["seed"]))
    for now in range(3):
        plan = lifecycle.plan(1, record, float(now))
        record = plan.record
        world.written(SimpleNamespace(name="a"), None, record)
        pool.plan({root, "b"}, float(now))
    return SimpleNamespace(violation="", at=3, counts=Counter(rise=3))
"""
LOG = """
import dataclasses, json
from types import SimpleNamespace
from controller.policy import MODULE as lifecycle
from controller.policy.types import TYPE, Mode, Record

VERSION = NUMBER

def replay(lines):
    for line in lines:
        entry = json.loads(line)
        assert entry["v"] == VERSION
        given = entry["input"]
        record = Record(TYPE(**given["record"]["kept"]), mode=Mode(given["record"]["mode"]))
        plan = lifecycle.plan(given["desired"], record, entry["now"])
        again = json.dumps(dataclasses.asdict(plan), sort_keys=True)
        yield SimpleNamespace(same=again == json.dumps(entry["decision"], sort_keys=True))
"""
AFTER = {  # the same, moved and renamed
    "Kept": "RetainedCheckpoint",
    "kept:": "retained:",
    ".kept": ".retained",
    "desired": "spec",
    "it was kept back": "it was held",
    '("NoSpace", "it was held")': 'Because("NoSpace", "it was held")',
    "@dataclass(frozen=True)\nclass Record": "class Because(NamedTuple):\n    code: str\n    message: str\n\n"
    "@dataclass(frozen=True)\nclass Record",
    '"Shadow"': '"Observe"',
}
WORDS = """
[decisions.types]
Kept = "RetainedCheckpoint"
[decisions.fields]
"Record.kept" = "retained"
"job.desired" = "spec"
[decisions.strings]
Shadow = "Observe"
[[decisions.text]]
before = "kept back"
after = "held"
[decisions.shapes]
tuples = ["Because"]
"""


def _tree(root: Path, *, moved: bool, **changed: str) -> Path:
    policy, faults = root / "controller" / "policy", root / "tests" / "faults"
    for folder in (policy, faults):
        folder.mkdir(parents=True)
        for package in (folder.parent, folder):
            (package / "__init__.py").touch()  # else this repository's package comes before it
    job = policy / ("job/plan.py" if moved else "lifecycle.py")
    pool = policy / ("pool/plan.py" if moved else "pool.py")
    names = {"MODULE": "lifecycle", "TYPE": "Kept"}
    if moved:
        names = {"MODULE": "job", "TYPE": "RetainedCheckpoint", "lifecycle.plan(": "lifecycle.plan_job("}
        names["pool.plan("] = "pool.plan_pool("
    driver, log = DRIVER, LOG.replace("NUMBER", "6" if moved else "5")
    for name, value in names.items():
        driver, log = driver.replace(name, value), log.replace(name, value)
    log = log.replace('"kept"', '"retained"').replace('"desired"', '"spec"') if moved else log
    (policy / "declog.py").write_text(log)
    job_text = PLAN.replace("def plan(", "def plan_job(") if moved else PLAN
    pool_text = POOL.replace("def plan(", "def plan_pool(") if moved else POOL
    texts = {policy / "types.py": TYPES, job: job_text, pool: pool_text}
    for path, text in texts.items():
        for old, new in (AFTER if moved else {}).items():
            text = text.replace(old, new)
        for old, new in changed.items():
            text = text.replace(old, new)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if path.name == "plan.py":  # a room with a door
            (path.parent / "__init__.py").write_text(
                f"from controller.policy.{path.parent.name}.plan import plan_{path.parent.name}\n"
            )
    (faults / "world.py").write_text(WORLD)
    (faults / "driver.py").write_text(driver)
    return root


def _words(folder: Path, text: str) -> dict[str, object]:
    path = folder / "words.toml"
    path.write_text(text)
    return words.load(path)["decisions"]


def _differ(before: Path, after: Path, table: dict[str, object]) -> list[tuple[str, str]]:
    result = decisions.histories(before, after, table, range(7, 10), 1, out=io.StringIO())
    assert result.done == 3
    assert result.counts == {"job": 9, "pool": 9, "written": 9, "end": 3}
    return sorted(result.differ)


def test_what_was_moved_and_renamed_by_the_table_is_equal(tmp_path: Path) -> None:
    before, after = _tree(tmp_path / "before", moved=False), _tree(tmp_path / "after", moved=True)
    assert _differ(before, after, _words(tmp_path, WORDS)) == []


@pytest.mark.parametrize(
    "row", [line for line in WORDS.splitlines() if " = " in line and "after" not in line]
)
def test_each_row_of_the_table_is_needed(tmp_path: Path, row: str) -> None:
    before, after = _tree(tmp_path / "before", moved=False), _tree(tmp_path / "after", moved=True)
    table = WORDS.replace(row, 'before = "nothing"' if row.startswith("before") else "")
    found = _differ(before, after, _words(tmp_path, table))
    assert [where for where, _ in found] == ["seed 7", "seed 8", "seed 9"]


def test_a_plan_that_comes_out_otherwise_is_shown_with_both_sides(tmp_path: Path) -> None:
    before = _tree(tmp_path / "before", moved=False)
    after = _tree(tmp_path / "after", moved=True, **{"now + 5.0": "now + (6.0 if now == 2.0 else 5.0)"})
    found = _differ(before, after, _words(tmp_path, WORDS))
    assert [where for where, _ in found] == ["seed 7", "seed 8", "seed 9"]
    text = found[0][1]
    assert text.startswith("record 6 of 10 and 10\n"), "job, written and pool of two passes came before"
    assert '"of": "job"' in text
    assert '-  "wake": 7.0' in text
    assert '+  "wake": 8.0' in text


UNDO_PLAN = """\
--- a/controller/policy/job/plan.py
+++ b/controller/policy/job/plan.py
@@ -4,2 +4,2 @@
 def plan_job(spec, record, now):
-    return Plan(Record(RetainedCheckpoint(record.retained.step + spec), params={"k": 2}), wake=now + 6.0)
+    return Plan(Record(RetainedCheckpoint(record.retained.step + spec), params={"k": 2}), wake=now + 5.0)
"""
UNDO_POOL = """\
--- a/controller/policy/pool/plan.py
+++ b/controller/policy/pool/plan.py
@@ -1,3 +1,3 @@
 
 def plan_pool(snapshot, now):
-    return tuple(sorted(snapshot, reverse=True))
+    return tuple(sorted(snapshot))
"""


def _meant(folder: Path, **patches: str) -> str:
    """Return the rename table with changes that were meant, written as patches into ``folder``."""
    rows = []
    for name, text in patches.items():
        (folder / f"{name}.patch").write_text(text)
        rows.append(f'"{name}.patch" = "why"\n')
    return WORDS + "[decisions.meant]\n" + "".join(rows)


def test_a_change_that_was_meant_is_named_and_hides_no_other(tmp_path: Path) -> None:
    before = _tree(tmp_path / "before", moved=False)
    later = {"now + 5.0": "now + 6.0"}
    after = _tree(tmp_path / "after", moved=True, **later)
    table = _words(tmp_path, _meant(tmp_path, wakes=UNDO_PLAN))
    result = decisions.histories(before, after, table, range(7, 10), 1, out=io.StringIO())
    assert (dict(result.meant), result.differ) == ({"wakes": 3}, [])

    both = _tree(tmp_path / "both", moved=True, **later, **{"(snapshot))": "(snapshot, reverse=True))"})
    found = _differ(before, both, table)
    assert [where for where, _ in found] == ["seed 7", "seed 8", "seed 9"]
    assert '"of": "pool"' in found[0][1], "the job's plan differs before it, and has its name"

    table = _words(tmp_path, _meant(tmp_path, wakes=UNDO_PLAN, order=UNDO_POOL))
    result = decisions.histories(before, both, table, range(7, 10), 1, out=io.StringIO())
    assert (dict(result.meant), result.differ) == ({"several": 3}, [])


def test_a_patch_that_undoes_nothing_is_an_error(tmp_path: Path) -> None:
    before, after = _tree(tmp_path / "before", moved=False), _tree(tmp_path / "after", moved=True)
    table = _words(tmp_path, _meant(tmp_path, wakes=UNDO_PLAN))
    with pytest.raises(Failed, match=r"wakes\.patch does not undo its change"):
        _differ(before, after, table)
    (tmp_path / "wakes.patch").unlink()
    with pytest.raises(ValueError, match=r"decisions\.meant: .*wakes\.patch: expected a file"):
        words.load(tmp_path / "words.toml")


@pytest.mark.parametrize(("value", "differ"), [("None", 0), ("3", 3)])
def test_a_new_field_is_left_out_while_it_has_its_default(tmp_path: Path, value: str, differ: int) -> None:
    before = _tree(tmp_path / "before", moved=False)
    after = _tree(
        tmp_path / "after",
        moved=True,
        **{
            "wake: float": "wake: float\n    residency: object = None",
            "now + 5.0": f"now + 5.0, residency={value}",
        },
    )
    table = _words(tmp_path, WORDS + '[decisions.added]\n"Plan.residency" = "why"\n')
    assert len(_differ(before, after, table)) == differ


def test_each_table_is_found_by_its_commit(tmp_path: Path) -> None:
    assert words.of_commit("f6ce8f5c" + 32 * "0") == words.TABLE
    for path in words.SINCE.glob("*.toml"):
        assert words.of_commit(path.stem + 32 * "0") == path
        assert words.load(path)["decisions"]["meant"]
    with pytest.raises(ValueError, match="at 1234567890: tables are there for f6ce8f5, 8b004488"):
        words.of_commit("1234567890" + 30 * "0")
    with pytest.raises(Failed, match="name the rename table by --words"):
        decisions.commit_of(tmp_path)


def test_a_decision_that_is_made_nowhere_is_an_error(tmp_path: Path) -> None:
    before, after = _tree(tmp_path / "before", moved=False), _tree(tmp_path / "after", moved=True)
    shutil.rmtree(after / "controller" / "policy" / "job")
    with pytest.raises(Failed, match=r"after: .*job"):
        _differ(before, after, _words(tmp_path, WORDS))


def test_a_row_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"decisions\.types\.Kept: 3: expected a text"):
        _words(tmp_path, "[decisions.types]\nKept = 3\n")
    with pytest.raises(ValueError, match="'typs': expected one of"):
        _words(tmp_path, "[decisions.typs]\n")


def test_a_value_that_may_change_is_written_anew_each_time() -> None:
    text, value = Text(Words("before", {})), ({"b": 1, "a": [2]},)
    assert text.of(value) == '[{"a":[2],"b":1}]'
    value[0]["a"].append(3)
    assert text.of(value) == '[{"a":[2,3],"b":1}]'


def test_what_only_looks_at_the_disk_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
class Disk:
    count = 0
    def operation(self, path, counted=True):
        self.count += counted

def looks(disk, fail=False):
    disk.operation(str)
    if fail:
        raise OSError("away")
"""
    module = types.ModuleType("controller.looks")
    exec(text, vars(module))
    monkeypatch.setitem(sys.modules, "controller.looks", module)
    there = leave_uncounted(
        ("controller.looks:looks", "controller.looks:gone", "controller.none:looks"),
        "controller.looks:Disk.operation",
    )
    assert there == ["controller.looks:looks"]
    disk = module.Disk()
    module.looks(disk)
    with pytest.raises(OSError, match="away"):
        module.looks(disk, fail=True)
    assert disk.count == 0
    disk.operation(str)
    assert disk.count == 1
    with pytest.raises(LookupError, match=r"Disk\.read"):
        leave_uncounted(("controller.looks:looks",), "controller.looks:Disk.read")


def test_the_functions_that_only_look_are_in_this_tree() -> None:
    for place in LOOKS:
        module, _, path = place.partition(":")
        assert callable(attrgetter(path)(importlib.import_module(module))), place


def test_this_tree_plays_as_itself_and_not_as_a_mutant(tmp_path: Path) -> None:
    """The hooks are where this tree decides, all its values have a text, histories come out alike twice."""
    mutant = tmp_path / "mutant"
    shutil.copytree(ROOT / "controller", mutant / "controller", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "examples", "deploy"):
        (mutant / name).symlink_to(ROOT / name)
    with Pair(ROOT, mutant, {}, tmp_path / "root") as pair:
        ((_, counts, _, difference),) = pair.each([5])
        module, _, name = pair.after.at["job"].partition(":")
        assert difference == ""
        assert min(counts[of] for of in ("job", "pool", "written", "event", "admitting", "starting")) > 0
        path = mutant / (module.replace(".", "/") + ".py")
        path.write_text(
            path.read_text() + f"\n_unchanged = {name}\n\n\ndef {name}(*given, **named):\n"
            "    return replace(_unchanged(*given, **named), requeue_after=1.25)\n"
        )
        pair.after.close()
        pair.after = decisions.Player(mutant, "after", {}, tmp_path / "root")
        ((_, _, _, difference),) = pair.each([5])
    assert difference.splitlines()[1] == '"of": "job",'
    assert '+  "requeue_after": 1.25' in difference


def test_a_log_is_decided_anew_by_both(tmp_path: Path) -> None:
    before, after = _tree(tmp_path / "before", moved=False), _tree(tmp_path / "after", moved=True)
    table, path = _words(tmp_path, WORDS), tmp_path / "log.jsonl"
    line = {
        "v": 5,
        "kind": "job",
        "now": 1.0,
        "input": {"desired": 2, "record": {"kept": {"step": 3}, "mode": "Shadow"}},
        "decision": {"record": {"kept": {"step": 5}, "mode": "Shadow", "params": {"k": 2}}, "wake": 6.0},
    }
    line["decision"]["record"]["reason"] = ["NoSpace", "it was kept back"]
    path.write_text(json.dumps(line) + "\n")
    result = decisions.logs(before, after, table, [path])
    assert (result.done, dict(result.counts), result.differ) == (1, {"job": 1}, [])

    other = _tree(tmp_path / "other", moved=True, **{"now + 5.0": "now + 6.0"})
    ((where, text),) = decisions.logs(before, other, table, [path]).differ
    assert where == "log.jsonl line 1"
    assert '+  "wake": 7.0' in text

    line["decision"]["wake"] = 9.0
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(Failed, match=r"log\.jsonl: line 1: .* did not write this log"):
        decisions.logs(before, after, table, [path])


def test_logs_of_the_tree_before_are_there() -> None:
    names = {path.name.partition(".")[0] for path in decisions.LOGS.glob("*.jsonl.xz")}
    assert names == {"demo", "demo-kueue", "parity", "parity-taints"}
