"""Real TRL runs under the client: requests, one rank and two, kills in a save, resume."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.listing import listed
from controller.checkpoints.volume import Volume
from tests.real_trainers.process import PATIENCE, Start, report

pytestmark = pytest.mark.timeout(3600)

GOLD, LOSS = "eval_rewards/gold/mean", "eval_loss"
KILLS = int(os.environ.get("KILLS", "5"))  # of each kind
REQUESTS = 20


def judged(out: Path) -> dict[int, bool]:
    """Steps of the checkpoints that lie there, and whether the access Job's judge calls them whole."""
    found = listed(Volume(str(out)), LAYOUTS["HuggingFace"])
    return {one.step: one.problem is None for one in found}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("script", "metric"), [("grpo.py", GOLD), ("dpo.py", LOSS)])
def test_a_run_reports_saves_and_obeys(trainer: Start, script: str, metric: str, ranks: int) -> None:
    # A step of DPO takes hundredths of a second: the checkpoint asked for would be rotated away at once.
    run = trainer(script, ranks, EVERY="7", STEP_SECONDS="0.3")
    run.start(100_000)
    first = run.wait("two evals", lambda: len(run.evals(metric)) >= 2 and run.evals(metric))
    assert [step for step, _ in first[:2]] == [7, 14]
    # A checkpoint that is asked for comes at once, from every rank.
    before = set(run.records())
    run.ask(id=1, checkpoint=True)

    def asked_for() -> list[str]:
        return [name for name in set(run.records()) - before if int(name.split("-")[1]) % 7]

    (name,) = run.wait("the checkpoint asked for", asked_for)
    files = run.records()[name]["files"]
    if ranks > 1:
        assert {f"rng_state_{rank}.pth" for rank in range(ranks)} <= set(files)
    # So does an eval; then the end.
    run.ask(id=2, evaluate=True)
    run.wait("the eval asked for", lambda: any(step % 7 for step, _ in run.evals(metric)))
    page = run.page(metric)
    assert page is not None
    point = page.points[-1]
    assert point.samples
    if metric == GOLD:
        assert point.stderr
        assert point.proxy is not None
    run.ask(id=3, stop=True)
    run.wait("the end of the training", lambda: "TRAINED" in run.said)
    run.signal(signal.SIGTERM)
    assert run.end() == (143 if ranks == 1 else 1)  # torchrun's own is 1
    assert all(judged(run.out).values())
    report(
        f"{script}, {ranks} rank(s): evals, requests, stop; samples {point.samples}, stderr {point.stderr}"
    )


def test_two_ranks_act_in_the_same_step_though_they_hear_three_seconds_apart(trainer: Start) -> None:
    run = trainer("grpo.py", 2, EVERY="100000")
    run.start(100_000)
    run.wait("the first steps", lambda: "'loss'" in run.said)
    for number in range(1, REQUESTS + 1):
        before = set(run.records())
        earlier = number % 2
        run.ask(earlier, id=number, checkpoint=True)
        time.sleep(3.0)
        run.ask(1 - earlier, id=number, checkpoint=True)
        (name,) = run.wait(f"checkpoint {number}", lambda before=before: set(run.records()) - before)
        both = {"rng_state_0.pth", "rng_state_1.pth"}
        assert both <= set(run.records()[name]["files"]), "both ranks have written it"
    run.ask(id=REQUESTS + 1, stop=True)
    run.wait("the end of the training", lambda: "TRAINED" in run.said)
    assert not re.search("Traceback|SIGABRT", run.said)
    report(f"two ranks, requests 3 s apart: same step {REQUESTS} of {REQUESTS}")


def test_what_the_client_costs_a_step_is_printed(trainer: Start) -> None:
    run = trainer("steps.py", 2)
    run.start(0)
    # 2,000 steps, each of which needs both ranks: on a busy machine they take minutes.
    found = run.wait("the figures", lambda: re.search(r"STEP (.*) ms\n", run.said), 4 * PATIENCE)
    assert run.end() == 0
    report(f"client in the loop, two gloo ranks, medians of 1,000 steps: {found.group(1)} ms (goal: 1 ms)")


@pytest.mark.parametrize("killed", [False, True], ids=["SIGTERM", "SIGKILL-in-the-grace-period"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ended_in_a_save_the_next_start_goes_on_from_the_newest_whole(
    warmed: Start, killed: bool, ranks: int
) -> None:
    run, r = warmed("grpo.py", ranks, EVERY="2", PROMPTS="4"), random.Random(ranks)
    torn, began = 0, time.monotonic()
    for number in range(KILLS):
        run.start(100_000)
        before = set(run.out.glob("checkpoint-*"))
        # The folder of the next save is there before its files are.
        run.wait("the next save", lambda before=before: set(run.out.glob("checkpoint-*")) - before)
        run.signal(signal.SIGTERM)
        if killed:
            time.sleep(r.uniform(0.0, 0.3))
            run.kill()
        else:
            assert run.end() == 143, number
        found = judged(run.out)
        if not killed:
            assert found[max(found)], f"kill {number}: the newest checkpoint is torn"
        torn += not found[max(found)]
        # What the kill came before the record of is passed over: nothing says to the client that it is whole.
        recorded = {int(name.rpartition("-")[2]) for name in run.records()}
        whole = max((step for step, good in found.items() if good and step in recorded), default=None)
        run.start(100_000)
        resumed = run.wait("the next start", lambda: re.search(r"RESUME (\S+)", run.said))
        where = None if resumed.group(1) == "None" else int(resumed.group(1).rpartition("-")[2])
        assert where == whole, f"kill {number}: went on from {where}; there are {found}"
        run.kill()
        done = f"{number + 1} of {KILLS} kills with {ranks} rank(s), torn {torn}"
        print(f"{done}, {time.monotonic() - began:.0f} s", flush=True)  # with pytest's -s
    how = "SIGTERM, then SIGKILL after up to 0.3 s" if killed else "SIGTERM"
    report(
        f"{ranks} rank(s), {how}, {KILLS} times in a save: newest torn {torn}, "
        f"resumed from the newest whole; {(time.monotonic() - began) / KILLS:.1f} s each"
    )
