"""A world that tries to break it (README.md): what was found once, and a minute of new histories."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from controller.policy.job import evals
from controller.policy.job.record import JobRecord, RuleRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import RunState
from controller.policy.types import Mode
from tests.faults import branches, driver, found, ledger, mutants, product
from tests.faults.cures import MUTANTS, Mutant
from tests.faults.disk import watched
from tests.faults.machine import Machine
from tests.faults.rollout_mutants import ROLLOUT_MUTANTS
from tests.faults.rows import ROWS
from tests.faults.world import World

HISTORIES = 160  # from seeds, beside hypothesis' own
FIRST = 1_000_000  # seed
FORGOTTEN = 309  # of `branches`: an eval that was borne out goes with a branch that is left


@pytest.mark.parametrize("trace", sorted(driver.TRACES.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_once_is_not_found_again(trace: Path) -> None:
    config, steps, _ = driver.load(trace)
    assert driver.play(config, steps).violation == ""


def test_a_trace_with_an_act_that_there_is_no_more_says_so() -> None:
    """It played on until that act, and was told as a failure of the product (S0)."""
    config, steps = driver.drawn(FIRST)
    with pytest.raises(ValueError, match="act 'rised': not known, expected one of another, away"):
        driver.play(config, [*steps, ("rised", 1)])


@pytest.mark.timeout(900)  # a machine that is shared may need ten times as long
def test_histories_of_seeds_hold() -> None:
    """As many as take about 35 CPU-seconds, or twice that where cores are shared; always the same ones."""
    for seed in range(FIRST, FIRST + HISTORIES):
        config, steps = driver.drawn(seed)
        outcome = driver.play(config, steps)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"


def test_the_stateful_machine_finds_nothing() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=15,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_what_is_in_safety_never_gets_worse_however_processes_come_and_go() -> None:
    assert branches.run(0, 40) == []


def test_a_rule_that_forgets_what_was_decided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(record: JobRecord, use: RuleInUse, base: Any, kept: Any, unjudged: int) -> RuleRecord:
        return use.remember(base, kept, unjudged)

    assert branches.run(FORGOTTEN, 1) == []
    monkeypatch.setattr(evals, "_remembered", forgets)
    assert branches.run(FORGOTTEN, 1) != []


def test_what_users_write_reaches_the_operator() -> None:
    """Once edits went beside the spec, and no history had a stop, a resume or a pin of a user in it."""
    world = World({**driver.drawn_config(Random(1)), "jobs": 1, "mode": "Enforce"})
    try:
        with watched(world.disk):
            world.tick(10)
            job = world.jobs["team/a"]
            world.edit(job, runState="Stopped", mode="Shadow", checkpoints__pins=[10])
            world.pool = product.edited(world.pool or {}, {"modeCap": "Off"})
            world.tick(2)
            thought = world.operator.load(job.key)
            assert thought is not None
            asked = thought.desired
            assert (asked.run_state, asked.mode, asked.pins) == (RunState.STOPPED, Mode.OFF, (10,))
            world.tick(20)
            assert job.child is not None
            assert job.child.suspended
    finally:
        world.close()


RECORD = "controller/policy/job/record.py"
KEPT = "LIVES_KEPT = 8\n"


@pytest.mark.skipif("evalstop-mutant-" not in __file__, reason="there for the runner of mutants alone")
@pytest.mark.parametrize("broken", [False, True])
def test_of_the_runner(broken: bool) -> None:
    source = (mutants.ROOT / RECORD).read_text()
    assert not broken, "it fails with or without a mutant"
    assert KEPT in source


@pytest.mark.parametrize(
    ("old", "new", "test", "how"),
    [
        (KEPT, KEPT, "", "NOT found in"),
        ("no such text", "", "", "no longer applies: controller/policy/job/record.py has 0 of"),
        (KEPT, "LIVES_KEPT = 9\n", "[False]", "found by"),
        (KEPT, KEPT, "[False]", "NOT found by"),
        (KEPT, "LIVES_KEPT = 9\n", "[True]", "NOT found: tests/faults/test_faults.py::test_of_the_runner"),
        (KEPT, "LIVES_KEPT = 9\n", "[no such]", "NOT found: tests/faults/test_faults.py::test_of_the_runner"),
    ],
)
def test_the_runner_of_mutants_is_not_blind(old: str, new: str, test: str, how: str) -> None:
    test = f"tests/faults/test_faults.py::test_of_the_runner{test}" if test else ""
    assert mutants.try_out(Mutant("of a test", "", RECORD, old, new, test), 1, limit=1.0).startswith(how)


def test_no_mutant_is_written_through_a_link_into_the_repository() -> None:
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} <= {*mutants.COPIED}


def test_the_page_shows_the_ledger_and_each_failure_is_accounted_for(tmp_path: Path) -> None:
    entries = ledger.read()
    page = (mutants.ROOT / "docs" / "reports" / "fault-runs.md").read_text()
    assert "\n".join(ledger.table(entries)).strip() in page, "python -m tests.faults --ledger"
    assert all(e.became for e in entries if e.failures)
    copy = tmp_path / "runs.json"
    copy.write_text(ledger.LEDGER.read_text())
    ledger.add(ledger.HISTORIES, 7, 16, 10, 1, copy)
    *before, added = ledger.read(copy)
    assert before == entries
    assert (added.first, added.last, added.runs, added.failures, added.became) == (7, 16, 10, 1, ledger.OPEN)


@pytest.mark.parametrize(
    ("page", "tried", "file", "flag"),
    [
        ("reports/fault-mutants.md", MUTANTS, found.FILE, ""),
        ("understand/rollouts-design.md", ROLLOUT_MUTANTS, found.ROLLOUTS, " --rollouts"),
    ],
)
def test_the_page_shows_what_finds_each_mutant(
    page: str, tried: tuple[Mutant, ...], file: Path, flag: str
) -> None:
    text, known = (mutants.ROOT / "docs" / page).read_text(), found.read(file)
    assert "\n".join(found.table(tried, known)).strip() in text, f"python -m tests.faults --found{flag}"
    assert known.keys() <= {mutant.name for mutant in tried}


def test_what_finds_a_mutant_is_written_down_and_shown(tmp_path: Path) -> None:
    copy = tmp_path / "mutants.json"
    first, second = MUTANTS[:2]
    found.add(first, "found in 7 s, seed 12: S1 a: best eval | gone", copy)
    found.add(second, "NOT found in 600 s", copy)
    added = found.read(copy)
    assert added.keys() == {first.name, second.name}
    lines = list(found.table([first, second], added))
    assert f"| 1 | {first.name} | the machine in 7 s, seed 12: S1 |" in lines[2]
    assert f"| 1 | {second.name} | NOT found in 600 s |" in lines[3]
    seconds = "after 7 s in the median, 7 s at most"
    told = f"1 found by the machine, {seconds}; 0 by a test; 1 not found."
    assert lines[-1] == told, "python -m tests.faults --found"


def test_the_table_of_rows_is_that_of_the_code() -> None:
    page = (Path(__file__).parent / "README.md").read_text()
    for row, (what, focus) in ROWS.items():
        assert f"| {row} | {what} | {', '.join(f'`{act}`' for act in focus.acts)} |" in page, row


def test_each_row_has_a_mutant_that_still_applies() -> None:
    assert {mutant.row for mutant in MUTANTS} == {str(row) for row in range(1, 20)}
    for mutant in (*MUTANTS, *ROLLOUT_MUTANTS):
        text = (mutants.ROOT / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.name
        if mutant.file.endswith(".py"):  # one that cannot be imported would be found by anything
            compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
        assert mutant.test or mutant.row in ROWS, mutant.name
        for test in mutant.test.split():
            assert (mutants.ROOT / test.partition("::")[0]).exists(), mutant.name
