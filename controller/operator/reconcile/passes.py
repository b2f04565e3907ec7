"""Frame of every pass: its end is counted and logged, and the next one comes in time.

A reconciler returns a `Result` or raises; of back-off, metrics and health it knows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import structlog

from controller import log
from controller.api.convert import StatusError
from controller.frozen import dataclass
from controller.kube.errors import ApiError, Unavailable
from controller.kube.versioned import Stale
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import WorkQueue

_logger = log.get("evalstop.passes")

STALE_LOGGED = 2.0  # s of back-off from which a pass that stays stale is a warning
RETRY_AFTER_MOST = 60.0  # s that a server's Retry-After counts for


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a pass that did what there was to do.

    Attributes:
        outcome: "wrote", "quiet", "gone" or "invalid", for the metric.
        requeue_after: s until the next pass is due though nothing happens; None: none is.
        requeue: another pass is due now: this one changed what it was made of.
    """

    outcome: str
    requeue_after: float | None = None
    requeue: bool = False


class Partly(Exception):
    """Some jobs' records could not be written, for the reasons in ``failures``; those of all others were."""

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        super().__init__(", ".join(sorted(failures)))
        self.failures = failures


class Failing(NamedTuple):
    """A key of which no pass succeeds.

    Attributes:
        seconds: for how long.
        why: the last one did not.
        unexpected: one of them failed as none should: at no API call, and at no status.
    """

    key: str
    seconds: float
    why: str
    unexpected: bool


class Passes:
    """Makes the passes of one kind.

    Args:
        kind: "job" or "pool", for metrics and logs.
        reconcile: makes one pass over a key. It may raise `Stale`, `Partly`, ApiError, StatusError.
        queue: where the keys come from.
        metrics: of the process.
        monotonic: clock (s).
        stale_again: s after which a pass is made again that found its objects changed; None: after a
            back-off, like one that failed.
        report: told of a pass that failed as none should.
        rest: asked after each pass how long (s) its key need not be looked at again.
    """

    def __init__(
        self,
        kind: str,
        reconcile: Callable[[str], Awaitable[Result]],
        queue: WorkQueue,
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        stale_again: float | None = None,
        report: Callable[[str, Exception], Awaitable[None]] | None = None,
        rest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._kind, self._reconcile, self._queue, self._metrics = kind, reconcile, queue, metrics
        self._now, self._stale_again, self._report, self._rest = monotonic, stale_again, report, rest
        self._failing: dict[str, tuple[float, str, bool]] = {}  # since when (s), and as in `Failing`

    async def run(self, key: str) -> float:
        """Make one pass and see to the next one; never raises.

        Returns: how long (s) the key need not be looked at again.
        """
        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(**{self._kind: key}):
            try:
                result = await self._reconcile(key)
                self._succeeded(key, result)
                outcome = result.outcome
            except Exception as error:
                outcome = await self._failed(key, error)
        self._metrics.passes.labels(self._kind, outcome).inc()
        self._metrics.pass_seconds.labels(self._kind).observe(time.perf_counter() - started)
        return self._rest()

    def failing(self) -> list[Failing]:
        """Return the keys of which no pass succeeds, by name."""
        now = self._now()
        return [
            Failing(key, now - since, why, unexpected)
            for key, (since, why, unexpected) in sorted(self._failing.items())
        ]

    def unexpected(self) -> list[str]:
        """Return the keys of which passes fail as none should."""
        return [found.key for found in self.failing() if found.unexpected]

    def _succeeded(self, key: str, result: Result) -> None:
        self._queue.forget(key)
        self._failing.pop(key, None)
        if result.requeue:
            self._queue.add(key)
        self._queue.later(key, result.requeue_after)

    async def _failed(self, key: str, error: Exception) -> str:
        """Have the pass made again in time. Returns its outcome, for the metric."""
        failures = tuple(error.failures.values()) if isinstance(error, Partly) else (error,)
        stale = all(isinstance(failure, Stale) for failure in failures)
        delay, text = self._again_in(key, error, stale), str(error)
        outcome = _outcome(error)
        self._note(key, error, outcome)
        if stale:
            logged = _logger.debug if delay < STALE_LOGGED else _logger.warning
            logged("made again: what was read has changed", error=text, again_in=delay)
        elif isinstance(error, Partly):
            for job, failure in error.failures.items():
                _logger.warning(
                    "a write failed; the pass went on", job=job, error=str(failure), again_in=delay
                )
        elif isinstance(error, ApiError):
            _logger.warning("pass failed at an API call", error=text, again_in=delay)
        elif isinstance(error, StatusError):
            _logger.error("status is unreadable; it is left alone", error=text, again_in=delay)
        else:
            _logger.exception("pass failed in a way it should not", again_in=delay)
            if self._report is not None:
                await self._report(key, error)
        return outcome

    def _again_in(self, key: str, error: Exception, stale: bool) -> float:
        """Set the timer of a pass that is to be made again. Returns its delay (s)."""
        if stale and self._stale_again is not None:
            self._queue.later(key, self._stale_again)
            return self._stale_again
        delay = self._queue.retry(key)  # what stays stale must not spin, either
        if isinstance(error, ApiError) and error.retry_after is not None and error.retry_after > delay:
            delay = min(error.retry_after, RETRY_AFTER_MOST)
            self._queue.later(key, delay)
        return delay

    def _note(self, key: str, error: Exception, outcome: str) -> None:
        if outcome == "partly":
            self._failing.pop(key, None)
        elif outcome != "stale":  # things move: no failure, and no success
            expected = isinstance(error, ApiError | StatusError)
            since, _, unexpected = self._failing.get(key, (self._now(), "", False))
            why = str(error) if expected else type(error).__name__
            self._failing[key] = since, why, unexpected or not expected


def _outcome(error: Exception) -> str:
    match error:
        case Partly():
            return "partly"
        case Stale():
            return "stale"
        case Unavailable():
            return "unavailable"
        case ApiError():
            return "refused"
        case _:
            return "failed"
