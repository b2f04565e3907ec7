"""Scores of each prompt, kept from eval to eval, so that two evals on the same prompts can be compared.

Standard library only, Python 3.9 or newer. Of each metric the results of three evals are kept: the best so
far, the last, and the one that the operator names. They are numbers in the order of a hash of each prompt's
key: no key and no text is kept or leaves the process, on the page are sums and a digest of the set of keys.
"""

from __future__ import annotations

import base64
import json
import math
import os
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

from evalstop_client.prompt_set import digest_of, hash_of

BYTES_MAX = 1_000_000  # of the file with all results
FILE = ".evalstop/results.json"  # in the checkpoint location

PerPrompt = Mapping[Any, Union[float, Iterable[float]]]

# Why an eval is not compared with one before it; the operator has a sentence for each.
MEAN_DIFFERS = "MeanDiffers"
OTHER_SET = "OtherPromptSet"
NO_RESULTS = "NoResults"
DIRECTION = "DirectionChanged"
TOO_LARGE = "TooLarge"


class Results(NamedTuple):
    """Scores of one eval's prompts."""

    step: int
    score: float  # of the eval, as it was reported
    evaluator: str
    digest: str  # of the set of prompts, 16 hexadecimal digits
    values: Sequence[float]  # one per prompt, in the order of the hashes of their keys

    @staticmethod
    def of(step: int, score: float, evaluator: str, per_prompt: PerPrompt) -> Results:
        """From the score of each prompt, by its key; of several answers to one prompt the mean.

        Raises:
            ValueError: no prompt, or a score that is not finite, be it the eval's own.
        """
        if not math.isfinite(score):  # it would stay the best: no score is above it
            raise ValueError(f"the eval's score is {score}, expected a finite number")
        if not isinstance(per_prompt, Mapping) or not per_prompt:
            raise ValueError(
                f"per_prompt: expected the score of each prompt by its key, got {per_prompt!r:.60}"
            )
        by_hash = {}
        for key, given in per_prompt.items():
            scores = _floats(given)
            value = math.fsum(scores) / len(scores) if scores else math.nan
            if not math.isfinite(value):
                raise ValueError(f"per_prompt: the score of a prompt is {value}, expected finite numbers")
            by_hash[hash_of(key)] = value
        values = array("d", [by_hash[one] for one in sorted(by_hash)])
        return Results(step, float(score), evaluator, digest_of(by_hash), values)


def _floats(given: float | Iterable[float]) -> list[float]:
    """Return one score, or those of several answers; scalars and arrays of other libraries are taken."""
    try:
        return [float(given)]  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return [float(one) for one in given]  # type: ignore[union-attr]


class Pair(NamedTuple):
    """An eval less an earlier one, prompt by prompt on the same prompts."""

    reference: int  # step of the earlier one
    prompts: int
    mean: float
    variance: float  # of one difference, with n - 1 in the denominator


class Compared(NamedTuple):
    """Comparison of an eval's results: its pairs, and why there are not more."""

    digest: str
    prompts: int
    pairs: tuple[Pair, ...]
    dropped: tuple[str, ...]


def standard_error(scores: Iterable[float]) -> float | None:
    """Return the standard error of a mean over prompts; None of fewer than two, or if one is not finite."""
    given = [float(score) for score in scores]
    if len(given) < 2 or not all(map(math.isfinite, given)):
        return None
    mean = math.fsum(given) / len(given)
    return math.sqrt(math.fsum((score - mean) ** 2 for score in given) / (len(given) - 1) / len(given))


def error_of(score: float, per_prompt: PerPrompt) -> float | None:
    """Return the standard error of an eval from what its prompts scored; None if it is not their mean."""
    means = []
    for given in per_prompt.values():
        answers = _floats(given)
        if not answers:
            return None
        means.append(math.fsum(answers) / len(answers))
    if not means or not math.isclose(math.fsum(means) / len(means), score, rel_tol=1e-4, abs_tol=1e-6):
        return None
    return standard_error(means)


def gathered(rows: Iterable[tuple[Hashable, Hashable, float]]) -> dict[Hashable, list[float]]:
    """Return the scores of each prompt from rows (prompt, answer, score) in any order.

    A row whose prompt and answer have come before is a duplicate, with which samplers fill the last batch.
    """
    seen = set()
    found: dict[Hashable, list[float]] = {}
    for prompt, answer, score in rows:
        if (prompt, answer) not in seen:
            seen.add((prompt, answer))
            found.setdefault(prompt, []).append(float(score))
    return found


def compare(now: Results, before: Results) -> Pair | str:
    """Return the pair of two evals, or the reason why there is none."""
    if now.digest != before.digest or len(now.values) != len(before.values):
        return OTHER_SET
    count = len(now.values)
    differences = [a - b for a, b in zip(now.values, before.values)]
    mean = math.fsum(differences) / count
    variance = math.fsum((d - mean) ** 2 for d in differences) / (count - 1) if count > 1 else 0.0
    # The scores may be rounded, or a float32's: by less than what could matter beside the noise.
    allowed = 1e-6 * (abs(now.score) + abs(before.score)) + 0.01 * math.sqrt(variance / count)
    if count < 2 or not abs(mean - (now.score - before.score)) <= allowed:
        return MEAN_DIFFERS
    return Pair(before.step, count, mean, variance)


class _Kept(NamedTuple):
    """The results kept of one metric. ``best`` None: none is yet, or which way is better is not known."""

    minimize: bool | None = None
    best: Results | None = None
    last: Results | None = None
    named: Results | None = None

    def every(self) -> tuple[Results, ...]:
        """Return those there are, each once, by step."""
        found = {one.step: one for one in (self.best, self.last, self.named) if one is not None}
        return tuple(found[step] for step in sorted(found))

    def only(self, steps: Iterable[int]) -> _Kept:
        best, last, named = (
            one if one is not None and one.step in steps else None
            for one in (self.best, self.last, self.named)
        )
        return self._replace(best=best, last=last, named=named)


class Memory:
    """The results of a run's metrics. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def add(
        self, metric: str, now: Results, *, minimize: bool | None, named: int | None, began: int
    ) -> Compared:
        """Compare an eval with those kept, and keep it.

        Args:
            metric: its name.
            now: its results.
            minimize: whether lower is better; None: not known, so that no best is kept.
            named: the step that the operator names, if any.
            began: step at which this process started; later ones are of a branch that was left.
        """
        before = self._kept.get(metric, _Kept())
        dropped = []
        if before.minimize is not None and minimize is not None and before.minimize != minimize:
            dropped.append(DIRECTION)
            before = before._replace(best=None)
        one_scale = [one.step for one in before.every() if one.evaluator == now.evaluator]
        kept = before.only([step for step in one_scale if step < now.step])
        by_step = {one.step: one for one in kept.every()}
        if named is not None and named in by_step:
            kept = kept._replace(named=by_step[named])
        elif named is not None and named < now.step:
            dropped.append(NO_RESULTS)
        if not before.every() and began > 0 and named is None:
            dropped.append(NO_RESULTS)
        pairs = []
        for one in kept.every():
            found = compare(now, one)
            if isinstance(found, str):
                dropped.append(found)
            else:
                pairs.append(found)
        best = kept.best
        if minimize is not None and (
            best is None or (now.score < best.score if minimize else now.score > best.score)
        ):
            best = now
        self._kept[metric] = _Kept(minimize, best, now, kept.named)
        if len(self.text("").encode()) > BYTES_MAX:
            del self._kept[metric]
            dropped.append(TOO_LARGE)
        return Compared(now.digest, len(now.values), tuple(pairs), tuple(sorted(set(dropped))))

    def text(self, uid: str) -> str:
        """Return all of it as JSON, for `Memory.read`."""
        metrics = {}
        for metric, kept in self._kept.items():
            roles = {"best": kept.best, "last": kept.last, "named": kept.named}
            metrics[metric] = {
                "minimize": kept.minimize,
                "results": [_packed(one) for one in kept.every()],
                **{role: one.step for role, one in roles.items() if one is not None},
            }
        return json.dumps({"uid": uid, "metrics": metrics}, sort_keys=True)

    def save(self, location: Path, uid: str) -> None:
        """Write all of it, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        final = location / FILE
        draft = final.with_name(f".tmp-results-{os.getpid()}")
        draft.write_text(self.text(uid))
        draft.replace(final)

    def load(self, location: Path, uid: str, began: int) -> None:
        """Take what an earlier process of the same run kept, but for what lies beyond ``began``.

        A file that is not there, not this run's or not whole is passed over; what is known already stays.
        """
        try:
            with (location / FILE).open("rb") as file:
                raw = file.read(BYTES_MAX + 4096)
            document = json.loads(raw)
            if document["uid"] != uid:
                return
            for metric, given in document["metrics"].items():
                results = {one.step: one for one in map(_unpacked, given["results"]) if one.step <= began}
                roles = (results.get(given.get(role)) for role in ("best", "last", "named"))
                minimize = given["minimize"]
                self._kept.setdefault(
                    str(metric), _Kept(None if minimize is None else bool(minimize), *roles)
                )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return


def _packed(one: Results) -> dict[str, object]:
    values = base64.b64encode(array("d", one.values).tobytes()).decode()
    return {**one._asdict(), "values": values}


def _unpacked(given: Mapping[str, object]) -> Results:
    values = array("d")
    values.frombytes(base64.b64decode(str(given["values"])))
    step, score = int(str(given["step"])), float(str(given["score"]))
    if not values or not all(map(math.isfinite, (score, *values))):
        raise ValueError("values: expected finite numbers")
    return Results(step, score, str(given["evaluator"]), str(given["digest"]), values)
