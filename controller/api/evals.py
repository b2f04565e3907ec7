"""Evals as one line of text each: as objects, 32 of them with long numbers take half of what a status may."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from controller.api import values
from controller.policy.types import Attempt, EvalPoint, Paired, PromptPair


def lines(points: Sequence[EvalPoint]) -> list[str]:
    """Return one line per eval: step, score, standard error, and, where they change, samples and attempt.

    ``-`` stands for what the trainer did not publish. Scores that are no finite number are not kept.
    """
    out: list[str] = []
    attempt, samples, prompts = Attempt(0), None, None
    against: Against = None
    for point in points:
        if not math.isfinite(point.score):
            continue
        stderr = point.stderr if point.stderr is not None and math.isfinite(point.stderr) else None
        words = [
            str(point.step),
            values.number(point.score),
            "-" if stderr is None else values.number(stderr),
        ]
        if (point.samples, point.attempt) != (samples, attempt):
            words.append("-" if point.samples is None else str(point.samples))
        if point.attempt != attempt:
            words.append(str(point.attempt))
        tagged, against = _tagged(point, against)
        words += tagged
        if point.prompts != prompts:
            words.append("prompts=" + ("-" if point.prompts is None else str(point.prompts)))
        finite = [p for p in point.prompt_pairs if math.isfinite(p.mean) and math.isfinite(p.variance)]
        if finite:
            words.append("pairs=" + ",".join(_pair(pair, point.prompts) for pair in finite))
        attempt, samples, prompts = point.attempt, point.samples, point.prompts
        out.append(" ".join(word for word in words if word is not None))
    return out


Against = tuple[int, int] | None  # reference step and prompts of the last differences: not said again


def _tagged(point: EvalPoint, against: Against) -> tuple[list[str], Against]:
    """Return the parts that few evals have: the proxy reward, and differences to a reference step."""
    words = []
    if point.proxy is not None and math.isfinite(point.proxy):
        words.append(f"proxy={values.number(point.proxy)}")
    pair = point.paired
    if pair is not None and math.isfinite(pair.mean) and math.isfinite(pair.variance):
        parts = [values.number(pair.mean), values.number(pair.variance)]
        if pair[:2] != against:
            parts += [str(pair.reference_step), str(pair.prompts)]
        words.append("paired=" + "/".join(str(part) for part in parts))
        against = pair.reference_step, pair.prompts
    return words, against


def _pair(pair: PromptPair, prompts: int | None) -> str:
    """Return a comparison with an earlier eval: its step, mean and variance; prompts if not all of the
    eval's."""
    parts = [str(pair.step), values.number(pair.mean), values.number(pair.variance)]
    parts += [] if pair.prompts == prompts else [str(pair.prompts)]
    return "/".join(str(part) for part in parts)


def _read_pairs(text: str, prompts: int | None) -> tuple[PromptPair, ...]:
    found = []
    for one in text.split(",") if text else ():
        step, mean, variance, *rest = one.split("/")
        number = int(rest[0]) if rest else prompts
        if number is None:
            raise ValueError(f"pairs={text}: expected the number of prompts, which the eval does not have")
        found.append(PromptPair(int(step), number, float(mean), float(variance)))
    return tuple(found)


def _read_tagged(given: Mapping[str, str], against: Against) -> tuple[float | None, Paired | None]:
    proxy = float(given["proxy"]) if "proxy" in given else None
    if "paired" not in given:
        return proxy, None
    mean, variance, *named = given["paired"].split("/")
    if named or against is None:
        step, prompts = named
        against = int(step), int(prompts)
    return proxy, Paired(*against, float(mean), float(variance))


def points(stored: Sequence[str]) -> tuple[EvalPoint, ...]:
    """Return the inverse of `lines`.

    Raises:
        ValueError: a line is not of that form; the message quotes it.
    """
    found: list[EvalPoint] = []
    attempt, samples, prompts = Attempt(0), None, None
    against: Against = None
    for line in stored:
        every = line.split(" ")
        words = [word for word in every if "=" not in word]
        if not 3 <= len(words) <= 5:
            raise ValueError(f"{line!r}: expected step, score, stderr[, samples[, attempt]]")
        if len(words) > 3:
            samples = None if words[3] == "-" else int(words[3])
        if len(words) > 4:
            attempt = Attempt.parse(words[4])
        stderr = None if words[2] == "-" else float(words[2])
        given = dict(word.split("=", 1) for word in every[len(words) :])
        proxy, paired = _read_tagged(given, against)
        if "prompts" in given:
            prompts = None if given["prompts"] == "-" else int(given["prompts"])
        pairs = _read_pairs(given.get("pairs", ""), prompts)
        against = (paired.reference_step, paired.prompts) if paired is not None else against
        found.append(
            EvalPoint(int(words[0]), float(words[1]), attempt, stderr, samples, proxy, paired, prompts, pairs)
        )
    return tuple(found)
