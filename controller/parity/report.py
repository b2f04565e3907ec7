"""Findings of a parity run as one JSON document: everything the page is drawn from, and read back by it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from controller.frozen import dataclass
from controller.parity.calibration import Calibration, Measured, measure, sampled
from controller.parity.compare import Compared, compare
from controller.parity.facts import Admitted, Facts, Words
from controller.parity.scatter import Scatter
from controller.parity.timeline import Timeline, as_dict, of_dict

FORMAT, VERSION = "evalstop-parity", 1


@dataclass(frozen=True, slots=True)
class Run:
    """One policy, as written by its user, in both."""

    policy: str
    sim: Timeline
    cluster: Timeline
    facts: tuple[Facts, ...]
    scatter: Scatter | None = None  # None: recorded by an older version


@dataclass(frozen=True, slots=True)
class Replayed:
    """The operator's decision log, decided anew."""

    decisions: int
    different: int
    problem: str = ""  # why the rest of it could not be read


@dataclass(frozen=True, slots=True)
class Report:
    """``about``: trace, jobs, nodes, speed, load, rule, command, as text and numbers."""

    about: dict[str, Any]
    calibration: Calibration
    runs: tuple[Run, ...]
    replayed: Replayed | None = None

    @property
    def compared(self) -> list[Compared]:
        return [compare(r.policy, r.sim, r.cluster, r.facts, self.calibration, r.scatter) for r in self.runs]

    @property
    def in_trial(self) -> tuple[Measured, ...]:
        """The same delays as the trial itself shows them. Nothing is simulated with them: they tell how far
        the calibration held."""
        return sampled([run.facts for run in self.runs])

    def summary(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self.about,
            "overheads": [asdict(m) for m in self.calibration.measured],
            "overheads_in_trial": [asdict(m) for m in self.in_trial],
            "policies": [one.as_dict() for one in self.compared],
            "decision_log": None if self.replayed is None else asdict(self.replayed),
        }

    def document(self) -> dict[str, Any]:
        """Return the summary, and every stay and fact: what `of_document` reads."""
        runs = [
            {
                "policy": run.policy,
                "sim": as_dict(run.sim),
                "cluster": as_dict(run.cluster),
                "facts": list(map(_plain, run.facts)),
                "scatter": None if run.scatter is None else asdict(run.scatter),
            }
            for run in self.runs
        ]
        measured_on = [list(map(_plain, arena)) for arena in self.calibration.facts]
        return {**self.summary(), "about": self.about, "calibration": measured_on, "runs": runs}


def of_document(document: dict[str, Any]) -> Report:
    """Read a recorded run back.

    Raises:
        ValueError: it is none, or of another version.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"format: expected {FORMAT!r}, as `evalstop parity` writes it")
    if document.get("version") != VERSION:
        raise ValueError(f"version: {document.get('version')!r} is not allowed, expected {VERSION}")
    try:
        runs = tuple(
            Run(
                run["policy"],
                of_dict(run["sim"]),
                of_dict(run["cluster"]),
                tuple(map(_facts, run["facts"])),
                Scatter(**scatter) if (scatter := run.get("scatter")) else None,
            )
            for run in document["runs"]
        )
        replayed = document["decision_log"]
        return Report(
            document["about"],
            measure([[_facts(one) for one in arena] for arena in document["calibration"]]),
            runs,
            None if replayed is None else Replayed(**replayed),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error


def _plain(facts: Facts) -> dict[str, Any]:
    return {**asdict(facts), "seen": []}


def _facts(fields: dict[str, Any]) -> Facts:
    found = Facts(**{**fields, "admissions": {}, "words": {}, "done": {}, "seen": set()})
    found.done = {int(number): at for number, at in fields["done"].items()}
    found.words = {int(number): _words(words) for number, words in fields["words"].items()}
    for number, admitted in fields["admissions"].items():
        words = admitted["words"]
        nodes = tuple(admitted.get("nodes", ()))  # which older recordings do not have
        given = {**admitted, "words": None if words is None else _words(words), "nodes": nodes}
        found.admissions[int(number)] = Admitted(**given)
    return found


def _words(fields: dict[str, Any]) -> Words:
    pairs = {name: tuple(tuple(pair) for pair in fields[name]) for name in ("evals", "asked")}
    return Words(**{**fields, **pairs})
