"""Bodies of the step API's calls, read and checked: each error names the field, its value and what would be
right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from controller import bounded
from controller.bounded import quoted
from controller.frozen import dataclass
from controller.policy.rollout import Forecast, WorkReport

MOST_BODY = 64 << 10  # bytes: 256 bins are 10 kB
MOST_STEP = 10**12
MOST_SECONDS = 1e7
MOST_PHASES = 32
MOST_TOKENS = 10**12  # of a step
MOST_FAILURES, MOST_FAILURE = 8, 200  # actors that a step may say it lost or put aside; characters of each


class BadRequest(ValueError):
    """A body that cannot be used."""


@dataclass(frozen=True, slots=True)
class Announcement:
    step: int
    begins_in: float
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class Done:
    step: int
    actor: int
    release: bool
    report: WorkReport | None
    failure: str = ""  # why its trainer lost it, or put it aside; "": it did not, or is an older client


@dataclass(frozen=True, slots=True)
class Ended:
    step: int
    seconds: float
    tokens: int
    rank: float | None
    lengths: Forecast
    phases: Mapping[str, float]
    counts: Mapping[str, int]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    address: str
    fingerprint: str
    slots: int | None
    version: int | None


def document(body: bytes) -> dict[str, Any]:
    """Return the body's object.

    Raises:
        BadRequest: it is too large, no JSON (NaN is none), or no object.
    """
    try:
        found = bounded.load(body, "body", MOST_BODY)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    if not isinstance(found, dict):
        raise BadRequest("body: expected an object")
    return found


def whole(given: Mapping[str, Any], name: str, most: int = MOST_STEP) -> int:
    value = given.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise BadRequest(f"{name}: {quoted(value)} is not allowed, expected a whole number from 0 to {most}")
    return value


def number(given: Mapping[str, Any], name: str, most: float, least: float = 0.0) -> float:
    value = given.get(name)
    if (
        isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most
    ):  # NaN, too
        raise BadRequest(
            f"{name}: {quoted(value)} is not allowed, expected a number from {least:g} to {most:g}"
        )
    return float(value)


def histogram(given: Mapping[str, Any]) -> Forecast:
    """Return bins, copies, spread and cap.

    Raises:
        BadRequest: a bin has no tokens or prompts, or there are too many.
    """
    bins = given.get("bins")
    if not isinstance(bins, list):
        raise BadRequest("bins: expected a list of [tokens, prompts]")
    found = []
    for pair in bins:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int or pair[1] > 10**9:
            raise BadRequest(f"bins: {quoted(pair)} is not allowed, expected [tokens, prompts]")
        tokens = pair[0]
        if isinstance(tokens, bool) or not isinstance(tokens, int | float) or not math.isfinite(tokens):
            raise BadRequest(f"bins: {quoted(tokens)} is not allowed, expected a number of tokens above 0")
        found.append((float(tokens), pair[1]))
    try:
        return Forecast(
            tuple(sorted(found, reverse=True)),
            whole(given, "copies"),
            number(given, "spread", 3.0),
            whole(given, "cap"),
        )
    except BadRequest:
        raise
    except ValueError as error:  # ParamError names field, value and bound
        raise BadRequest(str(error)) from None


def announcement(given: Mapping[str, Any]) -> Announcement:
    return Announcement(whole(given, "step"), number(given, "beginsIn", MOST_SECONDS), histogram(given))


def done(given: Mapping[str, Any]) -> Done:
    raw = given.get("report")
    if not isinstance(raw, dict):
        raise BadRequest("report: expected an object")
    report = None
    if raw:
        report = WorkReport(
            whole(raw, "iterations"),
            whole(raw, "tokens", MOST_TOKENS),
            number(raw, "decodeSeconds", MOST_SECONDS),
            number(raw, "grown", 1e18) if "grown" in raw else 0.0,
            number(raw, "prompts", 1e9) if "prompts" in raw else 0.0,
            number(raw, "prefillSeconds", MOST_SECONDS) if "prefillSeconds" in raw else 0.0,
        )
    release = given.get("release")
    if not isinstance(release, bool):
        raise BadRequest(f"release: {quoted(release)} is not allowed, expected true or false")
    failure = given.get("failure", "")
    if not isinstance(failure, str) or len(failure) > MOST_FAILURE:
        raise BadRequest(
            f"failure: {quoted(failure)} is not allowed, expected a text of at most {MOST_FAILURE} characters"
        )
    shown = bounded.shown(failure, MOST_FAILURE)
    return Done(whole(given, "step"), whole(given, "actor", 10**6), release, report, shown)


def ended(given: Mapping[str, Any]) -> Ended:
    phases = given.get("phases", {})
    counts = given.get("counts", {})
    if not isinstance(phases, dict) or len(phases) > MOST_PHASES:
        raise BadRequest(f"phases: expected at most {MOST_PHASES} names with s each")
    if not isinstance(counts, dict) or len(counts) > MOST_PHASES:
        raise BadRequest(f"counts: expected at most {MOST_PHASES} names with numbers")
    rank = None if given.get("rank") is None else number(given, "rank", 1.0, -1.0)
    return Ended(
        whole(given, "step"),
        number(given, "seconds", MOST_SECONDS),
        whole(given, "tokens", MOST_TOKENS),
        rank,
        histogram(given),
        {_name(k, "phases"): number(phases, k, MOST_SECONDS) for k in phases},
        {_name(k, "counts"): whole(counts, k, MOST_TOKENS) for k in counts},
        _failures(given.get("failures", [])),
    )


def registered(given: Mapping[str, Any]) -> Registered:
    address, fingerprint = given.get("address"), given.get("fingerprint")
    if not isinstance(address, str) or len(address) > 300 or not address.rpartition(":")[2].isdecimal():
        raise BadRequest(f"address: {quoted(address)} is not allowed, expected host:port")
    if (
        not isinstance(fingerprint, str)
        or len(fingerprint) != 64
        or not set(fingerprint) <= set("0123456789abcdef")
    ):
        raise BadRequest(f"fingerprint: {quoted(fingerprint)} is not allowed, expected a SHA-256 in hex")
    slots = None if given.get("slots") is None else whole(given, "slots", 10**6)
    version = None if given.get("version") is None else whole(given, "version", 2**53)
    return Registered(address, fingerprint, slots or None, version)


def _name(text: str, field: str) -> str:
    if not 0 < len(text) <= 64 or not text.isprintable():
        raise BadRequest(f"{field}: {quoted(text)} is not allowed, expected a name of 1 to 64 characters")
    return text


def _failures(given: Any) -> tuple[str, ...]:
    right = f"expected at most {MOST_FAILURES} texts of at most {MOST_FAILURE} characters"
    if not isinstance(given, list) or len(given) > MOST_FAILURES:
        raise BadRequest(f"failures: {right}")
    for one in given:
        if not isinstance(one, str) or len(one) > MOST_FAILURE:
            raise BadRequest(f"failures: {quoted(one)} is not allowed, {right}")
    return tuple(bounded.shown(one, MOST_FAILURE) for one in given)
