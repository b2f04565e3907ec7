"""Prometheus text -> the samples of the contract's own metrics, under caps, or a refusal that says why.

Only lines of the contract's own metrics are parsed. A trainer may expose thousands of other series on the
page, and parsing is where three quarters of the scrape loop's CPU goes. Comments are skipped too, ``# TYPE``
among them: the parser renames the samples of a declared counter, and we want the names as they were written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from prometheus_client import samples as prometheus
from prometheus_client.parser import text_string_to_metric_families

from controller import names
from controller.frozen import dataclass
from controller.policy.job import ScrapeOutcome
from controller.untrusted_text import printable

_TOTAL = "_total"
_OF_EVALS = (
    names.METRIC_EVAL_SCORE,
    names.METRIC_EVAL_STDERR,
    names.METRIC_EVAL_SAMPLES,
    names.METRIC_EVAL_PROMPTS,
    names.METRIC_EVAL_PROXY,
    names.METRIC_PAIRED_PROMPTS,
    names.METRIC_PAIRED_MEAN,
    names.METRIC_PAIRED_VARIANCE,
    names.METRIC_PROMPT_PAIR_PROMPTS,
    names.METRIC_PROMPT_PAIR_MEAN,
    names.METRIC_PROMPT_PAIR_VARIANCE,
    names.METRIC_PROMPT_PAIRS_DROPPED,
)
_WANTED = (
    *_OF_EVALS,
    names.METRIC_EVALS_TOTAL.removesuffix(_TOTAL),
    names.METRIC_PROXY_REWARD,
    names.METRIC_KL,
    names.METRIC_LOSS,
    names.METRIC_STEP,
    names.METRIC_TOTAL_STEPS,
    names.METRIC_CHECKPOINT_STEP,
    names.METRIC_RESUMED_STEP,
    names.METRIC_REQUEST_SERVED,
    names.METRIC_EVALUATOR_INFO,
    names.METRIC_RUN_INFO,
)
_WANTED_LINE = re.compile(
    rb"^[ \t]*(?:" + "|".join(map(re.escape, _WANTED)).encode() + rb")(?:_total)?(?![A-Za-z0-9_:])[^\n]*",
    re.MULTILINE,
)
_OWN_NAMES = "|".join(sorted(_WANTED, reverse=True))  # longer ones before those that they begin with
_OWN_NAME = re.compile(rf"[ \t]*({_OWN_NAMES})".encode())
_FIRST_SAMPLE = re.compile(rb"^[ \t]*[^#\s][^\n]*", re.MULTILINE)
_SAMPLE_START = re.compile(rb'[ \t]*(?:[a-zA-Z_:][a-zA-Z0-9_:]*[ \t]*[ \t{]|\{[ \t]*")')
_SAMPLE_END = re.compile(rb"[ \t}][ \t]*[-+0-9.NnIi][^ \t}]*(?:[ \t]+-?[0-9]+)?[ \t\r]*$")

_EXPECTED = "expected Prometheus text (docs/use/trainer-contract.md)"


class MetricsError(Exception):
    """A page that cannot be used: TOO_LARGE, NOT_PROMETHEUS or NOT_BY_CONTRACT, with what came and what would
    be right."""

    def __init__(self, outcome: ScrapeOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one page. Over ``points`` and ``names`` the newest evals and first names stay; else refused."""

    body_bytes: int = 1 << 20
    wanted_bytes: int = 256 << 10  # in lines of the contract's metrics: bounds the parser's time
    lines: int = 4096  # of the contract's metrics
    line_bytes: int = 2048
    label_chars: int = 256
    points: int = 4 * names.EVALS_KEPT
    names: int = names.METRICS_KEPT


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


def divided(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return lines that belong to an eval, which stay the same from scrape to scrape, and the others."""
    evals: list[str] = []
    rest: list[str] = []
    for line in lines:
        (evals if line.lstrip().startswith(_OF_EVALS) else rest).append(line)
    return evals, rest


def samples_of(lines: list[str], limits: Limits) -> list[Sample]:
    """Return the samples of such lines, in their order, named as the contract names them.

    Raises:
        MetricsError: over a limit, or not Prometheus text.
    """
    return list(_samples(lines, limits))


def refuse(message: str) -> MetricsError:
    return MetricsError(ScrapeOutcome.NOT_PROMETHEUS, message)


def refuse_labels(message: str) -> MetricsError:
    """Return that samples of the contract are there, and not labelled as it has them."""
    return MetricsError(ScrapeOutcome.NOT_BY_CONTRACT, message)


def _too_large(what: str, value: str, limit: str) -> MetricsError:
    return MetricsError(ScrapeOutcome.TOO_LARGE, f"{what}: {value}, at most {limit} are read")


def wanted_lines(body: bytes, limits: Limits) -> list[str]:
    """Return the lines of the contract's metrics, decoded; refuses what is plainly no Prometheus text."""
    if len(body) > limits.body_bytes:
        raise _too_large("metrics page too large", f"{len(body)} bytes", f"{limits.body_bytes} bytes")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(f"byte {error.start} is not UTF-8 text; {_EXPECTED}") from None
    if b"\0" in body:
        raise refuse(f"the page holds NUL bytes; {_EXPECTED}")
    if body and not body.endswith(b"\n"):
        # A value cut in half still reads as a number, so a cut page must not be read at all.
        raise refuse(f"the last line does not end in a line feed: the page is cut off; {_EXPECTED}")
    first = _FIRST_SAMPLE.search(body)
    if first and not (_SAMPLE_START.match(first[0]) and _SAMPLE_END.search(first[0][-128:])):
        raise refuse(f"the page starts with {_kind(first[0])}; {_EXPECTED}")
    lines: list[str] = []
    size = 0
    for match in _WANTED_LINE.finditer(body):
        line = match[0]
        size += len(line)
        if len(line) > limits.line_bytes:
            raise _too_large(
                f"line of {_metric(line)} too long", f"{len(line)} bytes", f"{limits.line_bytes} bytes"
            )
        if len(lines) == limits.lines or size > limits.wanted_bytes:
            raise _too_large(
                f"too many {names.METRIC_PREFIX} samples",
                f"more than {len(lines)} lines, {size} bytes",
                f"{limits.lines} lines, {limits.wanted_bytes} bytes",
            )
        lines.append(line.decode("utf-8"))
    return lines


# What a page holds is not quoted: it may be another's than the trainer's, and messages go into the status.
def _kind(line: bytes) -> str:
    """Return what sort of text a line is."""
    start = line.strip()[:1]
    return {b"<": "HTML or XML", b"{": "JSON", b"[": "JSON"}.get(start, "a line that is no sample")


def _metric(line: bytes) -> str:
    """Return the contract's metric that a line is of."""
    found = _OWN_NAME.match(line)
    return found[1].decode() if found else "a metric"


def _samples(lines: list[str], limits: Limits) -> Iterable[Sample]:
    for line in lines:
        if not line.isascii() and not line[line.rfind("}") + 1 :].isascii():
            # int() and float() read the digits of every script, Prometheus reads ASCII.
            name = _metric(line.encode())
            raise refuse(f"line of {name} has a value that is not written in ASCII; {_EXPECTED}")
    try:
        parsed = _parsed("\n".join(lines))
    except Exception:  # the page as a whole does not say which line it was
        parsed = []
    if len(parsed) != len(lines):
        parsed = [_parsed_line(line) for line in lines]
    for sample in parsed:
        for label, value in sample.labels.items():
            if len(value) > limits.label_chars:
                what = f"value of label {printable(label)!r} too long"
                raise _too_large(what, f"{len(value)} characters", f"{limits.label_chars}")
        name = sample.name
        if name.endswith(_TOTAL) and name != names.METRIC_EVALS_TOTAL:
            name = name.removesuffix(_TOTAL)  # a gauge that the trainer declared as a counter
        elif name + _TOTAL == names.METRIC_EVALS_TOTAL:
            name = names.METRIC_EVALS_TOTAL
        yield Sample(name, sample.labels, _float(sample.value))


def _parsed(text: str) -> list[prometheus.Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _parsed_line(line: str) -> prometheus.Sample:
    try:
        (sample,) = _parsed(line)
    except Exception as error:  # ValueError, IndexError or OverflowError, by the kind of rubbish
        what = f"line of {_metric(line.encode())} cannot be read ({type(error).__name__})"
        raise refuse(f"{what}; {_EXPECTED}") from None
    return sample


def _float(value: float) -> float:
    try:
        return float(value)  # the parser gives an int where the text is one, of any length
    except OverflowError:
        return math.inf


def count(value: float | None) -> int | None:
    """Return a step or a count: a whole number, not negative."""
    return int(value) if value is not None and value.is_integer() and 0 <= value < 1e15 else None


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
