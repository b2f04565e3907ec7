"""What the oracle of `python -m tests.bench faults` says of made-up runs: it must not be blind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.faults import oracle
from tests.bench.faults.truth import Eval, Truth

NEVER = float("inf")


class Book:
    """A run's book as its trainers write it, and checkpoints beside it. A second lies between two evals."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._folder = folder
        self._now = 0.0
        self._left: list[str] = []

    def life(self, number: int, resumed: int = 0, of: int | None = None) -> None:
        self._write("life", number)
        if of is not None:
            self._write("loaded", number, files=self._files(of, resumed))
        self._write("resumed", number, step=resumed)

    def evals(self, life: int, scores: dict[int, float], keep: int = 100) -> None:
        for step, score in scores.items():
            self._now += 1.0
            self._write("saving", life, step=step)
            self._left = [*[n for n in self._left if n != f"step-{step}"][1 - keep :], f"step-{step}"]
            files = self._files(life, step)
            self._write("saved", life, step=step, name=f"step-{step}", files=files, left=list(self._left))
            eval_ = {"step": step, "score": score, "stderr": 0.01, "samples": 100, "attempt": f"1-{life}"}
            self._write("eval", life, **eval_)
            self._write("scraped", life)

    def truth(self) -> Truth:
        return Truth.of(iter(self.lines))

    def keep(self, life: int, step: int, damaged: bool = False) -> Path:
        """A copy of that checkpoint, as a pin would hold it."""
        folder = self._folder / f"{life}-{step}"
        folder.mkdir(parents=True)
        for name in ("manifest.json", "params.npz"):
            (folder / name).write_text(f"{name} {life} {step}" + ("?" if damaged else ""))
        return folder

    def _files(self, life: int, step: int) -> dict[str, str]:
        names = ("manifest.json", "params.npz")
        return {name: hashlib.sha256(f"{name} {life} {step}".encode()).hexdigest() for name in names}

    def _write(self, what: str, life: int, **facts: Any) -> None:
        self.lines.append(json.loads(json.dumps({"what": what, "life": life, "time": self._now, **facts})))


def safety(
    book: Book,
    places: Sequence[Path],
    troubles: Sequence[oracle.Span] = (),
    ignored: frozenset[int] = frozenset(),
) -> list[str]:
    verdict = oracle.Verdict()
    oracle.judge_safety(verdict, book.truth(), places, troubles, (), NEVER, lambda evals: ignored)
    return verdict.lost


def three_declines(evals: Sequence[Eval]) -> bool:
    scores = [e.score for e in evals]
    return len(scores) > 3 and all(a > b for a, b in zip(scores[-4:], scores[-3:], strict=False))


def stop(book: Book, at: float, troubles: Sequence[oracle.Span] = (), off: float | None = None) -> list[str]:
    verdict = oracle.Verdict()
    oracle.judge_stop(verdict, book.truth(), oracle.Stop(at, "r", "", off), three_declines, troubles)
    return verdict.false_stops


def test_a_best_is_lost_unless_one_at_least_as_good_is_kept_byte_for_byte(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {10: 0.5, 20: 0.9, 30: 0.6})
    assert len(safety(book, [tmp_path])) == 1
    book.keep(0, 10)
    book.keep(0, 30)
    assert len(safety(book, [tmp_path])) == 1, "what is kept is worse"
    damaged = book.keep(0, 20, damaged=True)
    assert len(safety(book, [tmp_path])) == 1, "what is kept is not what the trainer saved"
    (damaged / "manifest.json").write_text("manifest.json 0 20")
    (damaged / "params.npz").write_text("params.npz 0 20")
    assert safety(book, [tmp_path]) == []


def test_a_best_of_the_same_step_on_another_branch_is_another_best(tmp_path: Path) -> None:
    """Row 1: .60 at step 40 is kept, .90 at the same step after a restart is not."""
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {20: 0.5, 30: 0.55, 40: 0.6})
    book.life(1, resumed=20, of=0)
    book.evals(1, {30: 0.7, 40: 0.9, 50: 0.4})
    assert [(e.life, e.step) for e in book.truth().branch(1)] == [(0, 20), (1, 30), (1, 40), (1, 50)]
    book.keep(0, 40)
    assert len(safety(book, [tmp_path])) == 1
    book.keep(1, 40)
    assert safety(book, [tmp_path]) == []


def test_nothing_is_owed_for_what_rotation_took_soon_or_what_nobody_could_read(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {step: 1.0 - step / 100 for step in range(10, 60, 10)}, keep=2)
    assert safety(book, [tmp_path]) == [], "the best lay there for two seconds"
    unread = Book(tmp_path)
    unread.life(0)
    unread.evals(0, {10: 0.9, 20: 0.5})
    unread.lines = [line for line in unread.lines if line["what"] != "scraped"]
    assert safety(unread, [tmp_path]) == []
    assert safety(book, [tmp_path], ignored=frozenset({10})) == []


def test_trouble_puts_off_what_is_owed_and_does_not_excuse_it_for_ever(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {10: 0.9, 20: 0.5})
    assert safety(book, [tmp_path], troubles=[(0.0, NEVER)]) == []
    assert len(safety(book, [tmp_path], troubles=[(0.0, 500.0)])) == 1


def test_a_stop_is_false_if_the_rule_does_not_say_so_on_the_true_evals(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {10 * n: score for n, score in enumerate((0.5, 0.9, 0.8, 0.7, 0.6), 1)})
    assert stop(book, 6.0) == []
    book.evals(0, {10 * n: 0.95 + n / 100 for n in range(6, 18)})
    assert stop(book, 6.0) == []
    assert stop(book, 8.0) == [], "it may not have read the last two yet"
    assert len(stop(book, 17.5)) == 1, "it has risen again for twelve seconds"
    assert stop(book, 17.5, troubles=[(5.0, 18.0)]) == [], "nobody could read that"


def test_evals_of_a_branch_that_was_left_stop_nobody(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {10: 0.5, 20: 0.9, 30: 0.8, 40: 0.7, 50: 0.6})
    book.life(1, resumed=20, of=0)
    book.evals(1, {10 * n: 0.9 + n / 100 for n in range(3, 14)})
    assert stop(book, 5.5) == []
    assert len(stop(book, 16.0)) == 1


def test_a_run_whose_user_has_switched_the_rule_off_is_not_stopped(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {10: 0.5, 20: 0.9, 30: 0.8, 40: 0.7, 50: 0.6})
    assert stop(book, 20.0, off=18.0) == [], "it was on its way"
    assert len(stop(book, 20.0, off=5.0)) == 1


def test_what_a_status_says_of_a_checkpoint_must_be_so(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {10: 0.5, 20: 0.9})
    place = book.keep(0, 20)

    def untrue(step: int, score: float | None, path: Path = place) -> int:
        verdict = oracle.Verdict()
        oracle.judge_claims(verdict, book.truth(), [oracle.Claim("secured", path, step, score)])
        return len(verdict.untrue)

    assert untrue(20, 0.9) == 0
    assert untrue(20, None) == 0, "an unknown score says nothing"
    assert untrue(20, 0.0) == 1
    assert untrue(10, 0.5) == 1
    assert untrue(20, 0.9, tmp_path / "nowhere") == 1


def test_a_step_that_a_life_evaluates_again_counts_once(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.life(0)
    book.evals(0, {20: 0.9, 30: 0.8, 40: 0.7})
    book.life(1, resumed=40, of=0)
    book.evals(1, {40: 0.65})
    assert len(stop(book, 4.0)) == 1, "two declines, and the step that it went on from once more"
    book.evals(1, {50: 0.6})
    assert stop(book, 5.0) == []
