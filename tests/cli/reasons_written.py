"""Every reason that the operator may write into a condition which is not True, found in its source.

Reasons stand in calls of ``conditions.set``, in pairs of a code and a message, and in the enums of what a
scrape and an access Job may answer. Verdicts of stop rules are not among them: those say how a run does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from controller.checkpoints.errors import Reason
from controller.policy.job.types import Hindrance, ScrapeOutcome

ROOT = Path(__file__).resolve().parents[2] / "controller"
CODE = re.compile(r"(?:[A-Z]+[a-z0-9]+)+[A-Z]*")
_ROOMS = {"c": "conditions"}  # modules by the names under which they are imported
# Files whose pairs of a code and a message end in a condition of an RLHFJob.
PAIRS = (
    "api/convert.py",
    "checkpoints/access_jobs.py",
    "checkpoints/places.py",
    "delegates/kueue.py",
    "delegates/kueue_queues.py",
    "operator/reconcile/actions.py",
    "operator/state/locations.py",
    "operator/state/steps.py",
    "workloads/child.py",
    "workloads/dryrun.py",
    "workloads/referred.py",
)
# A workload's end; and why an act was not done: conditions of nobody.
NOT_CODES = {"Answered", "Complete", "Failed", "Leftover", "NameTaken", "NoPool", "QueueLabelKept", "Demoted"}
# Conditions of a WorkerGroup: what to do about those, `GROUP_CURES` says.
NOT_CODES |= {"GrantsTurns", "Reports", "WaitingForNodes"}


def written() -> dict[str, str]:
    """Reason: where it stands."""
    found = {str(one): "ScrapeOutcome" for one in ScrapeOutcome if one is not ScrapeOutcome.OK}
    found |= {str(one): "checkpoints.errors.Reason" for one in Reason}
    found |= {str(one): "Hindrance" for one in Hindrance}
    rooms = ("", "job", "pool", "fleet", "node")
    policy = sorted(path for room in rooms for path in (ROOT / "policy" / room).glob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in (*policy, *(ROOT / name for name in PAIRS))}
    constants = {name: code for path in policy for name, code in _constants(path.stem, trees[path])}
    for path, tree in trees.items():
        imported = _imported(path.stem, tree, constants)
        for code in (*_set_in(path.stem, tree, constants | imported), *_pairs_in(path.stem, tree, imported)):
            found[code] = path.name
    return {code: where for code, where in found.items() if code not in NOT_CODES}


def _constants(module: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for code in _codes(node.value, {}):
                yield f"{module}.{node.targets[0].id}", code


def _imported(module: str, tree: ast.AST, constants: dict[str, str]) -> dict[str, str]:
    """Constants of other modules that a module imports by their names."""
    return {
        f"{module}.{one.asname or one.name}": constants[name]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for one in node.names
        if (name := f"{node.module.rpartition('.')[2]}.{one.name}") in constants
    }


def _codes(node: ast.expr, constants: dict[str, str], module: str = "") -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value] if CODE.fullmatch(node.value) else []
    if isinstance(node, ast.IfExp):
        return _codes(node.body, constants, module) + _codes(node.orelse, constants, module)
    if isinstance(node, ast.Call):  # as in ``SHOWN.get(operation, REASON)``
        return [code for given in node.args for code in _codes(given, constants, module)]
    name = ""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        name = f"{_ROOMS.get(node.value.id, node.value.id)}.{node.attr}"
    elif isinstance(node, ast.Name):
        name = f"{module}.{node.id}"
    return [constants[name]] if name in constants else []


def _set_in(module: str, tree: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """Of ``conditions.set(type, status, reason, …)`` where the status is not True for certain, and what a
    variable of that name may be."""
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id == "reason":
            yield from _codes(node.value, constants, module)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "set" or len(node.args) < 3:
            continue
        status = node.args[1]
        if not (isinstance(status, ast.Constant) and status.value is True):
            yield from _codes(node.args[2], constants, module)


def _pairs_in(module: str, tree: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """A code with a message next to it: in a tuple, or as arguments; ``constants`` may stand for it."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Tuple):
            parts = node.elts
        elif isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Attribute) and node.func.attr in ("set", "event")
        ):
            parts = node.args
        for code, text in pairwise(parts):
            if _is_text(text):
                yield from _codes(code, constants, module)


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value
    return isinstance(node, ast.JoinedStr | ast.Name | ast.BinOp)
