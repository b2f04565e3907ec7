"""The situations of docs/understand/reliability.md by their numbers, and what brings each up often."""

from __future__ import annotations

from tests.faults.driver import Focus

ROWS: dict[str, tuple[str, Focus]] = {
    "1": (
        "a step reached again on another branch",
        Focus(("climb_again", "restart", "resume", "first_step_again", "reached_unsaved"), {"keep": (3,)}),
    ),
    "2": (
        "a newer best while a secure Job runs",
        Focus(("slow_access", "rise", "restart", "climb_again"), {"mode": ("Enforce",)}),
    ),
    "3": (
        "rotation, or a kill in a save",
        Focus(
            ("torn_save", "rotate", "busy_store", "killed_access"),
            {"layout": ("HuggingFace/FSDP", "HuggingFace")},
        ),
    ),
    "4": ("another trainer's page", Focus(("stranger",), {"jobs": (2,)})),
    "5": ("eyes closed once a stop is decided", Focus(("slow_access", "mode", "decline", "rise"), {})),
    "6": (
        "a user's stop whose retention cannot be made",
        Focus(("stop", "stop_without_space", "run_again", "decline"), {}),
    ),
    "7": ("one eval that says nothing", Focus(("outlier",), {"gate": (True,), "stderr": (0.02,)})),
    "8": (
        "the run ends, or its evaluator changes, under a secure Job",
        Focus(("evaluator", "ends", "slow_access"), {}),
    ),
    "9": ("the pool befalls something", Focus(("pool_edited",), {})),
    "10": (
        "an old verdict, or of a branch that was left",
        Focus(
            ("restart", "another", "day", "climb_again", "unseen_checkpoint"),
            {"contended": (True, False), "rule": ("declines2",), "tells": (True, False)},
        ),
    ),
    "11": (
        "leftovers, or a step written anew",
        Focus(("written_anew", "delete", "back_behind_its_pin"), {"leftovers": (True, False)}),
    ),
    "12": (
        "a guardrail's direction is corrected",
        Focus(("guardrail_turned",), {"guard": (True,), "rule": ("declines2",)}),
    ),
    "13": ("the clock steps", Focus(("clock", "crash", "away"), {})),
    "14": ("a finished child is removed", Focus(("ends", "away"), {})),
    "15": ("a stopped child is started by hand", Focus(("unsuspended", "stop"), {})),
    "16": ("a user's pin Job hangs, or a claim", Focus(("pins", "hanging_access", "claims_out"), {})),
    "17": ("resumes, and deletion under a stop", Focus(("resume", "delete", "stop", "decline"), {})),
    "19": (
        "more evals than are kept, in Shadow",
        Focus(("many", "restart"), {"mode": ("Shadow", "Enforce")}),
    ),
}


def focus_of(row: str, seed: int) -> Focus | None:
    """What the history of a seed is about when a row is looked for: every other one is about that row."""
    return ROWS[row][1] if row in ROWS and seed % 2 else None
