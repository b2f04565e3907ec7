"""Continuous batching: a queue, slots, prefills, and iterations that give each live response one token.

An iteration of b live responses takes ``iteration + sequence b`` seconds at least; a prompt that gets its
first slot takes ``prefill`` seconds for each of its tokens, its other copies take none, and a response that
was begun elsewhere takes them for its tokens, too: they are computed again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from examples.engine.model import END, PROMPT_TOKENS, WORDS, Weights, sample

MOST_WAITING = 8192  # responses in the queue and in slots
MOST_LENGTH = 4096  # tokens of a response


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of an iteration, on top for each live response, and for each token of a prefill."""

    iteration: float = 0.05
    sequence: float = 0.0005
    prefill: float = 0.002


class Refused(ValueError):
    """A request that is not taken; ``status`` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Response:
    """One response. ``draw``: seed, step, prompt, copy. ``begun``: tokens that came with the request."""

    id: str
    prompt: tuple[int, ...]
    tokens: list[int]
    most: int
    draw: tuple[int, int, int, int]
    temperature: float = 1.0
    begun: int = 0

    def __post_init__(self) -> None:
        if len(self.prompt) != PROMPT_TOKENS or not all(0 <= t < WORDS for t in self.prompt):
            raise Refused(
                f"prompt: {self.prompt!r} is not allowed, expected {PROMPT_TOKENS} tokens of 0 to {WORDS - 1}"
            )
        if not all(0 <= t < WORDS for t in self.tokens):
            raise Refused(f"tokens: expected tokens of 0 to {WORDS - 1}, none of them the end token")
        if not len(self.tokens) < self.most <= MOST_LENGTH:
            raise Refused(
                f"most: {self.most!r} is not allowed, expected more than the {len(self.tokens)}"
                f" tokens there are"
                f", at most {MOST_LENGTH}"
            )
        if len(self.draw) != 4 or not all(0 <= part < 2**63 for part in self.draw):
            raise Refused("draw: expected seed, step, prompt and copy, each a whole number from 0")
        if not 0.01 <= self.temperature <= 100.0:
            raise Refused(f"temperature: {self.temperature!r} is not allowed, expected 0.01 to 100")
        self.begun = len(self.tokens)


@dataclass(slots=True)
class Counters:
    """Work done since the process began."""

    iterations: int = 0
    tokens: int = 0
    grown: int = 0
    decode_seconds: float = 0.0
    prompts: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0


@dataclass(slots=True)
class News:
    """New tokens by response, and why responses ended ("stop", "length", "abort")."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tokens or self.ended)


class Batch:
    """The engine's state. Thread-safe; `run` is its one worker."""

    def __init__(self, slots: int, times: Times, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.slots, self.times, self._now = slots, times, monotonic
        self.counters = Counters()
        self.version: int | None = None
        self.digest = ""
        self._weights: Weights | None = None
        self._waiting: deque[Response] = deque()
        self._live: list[Response] = []
        self._seen: set[tuple[int, ...]] = set()  # prompts whose prefix is computed, by these weights
        self._news = News()
        self._changed = threading.Condition()
        self._closed = False

    # -- what is asked for ---------------------------------------------------------------------------------

    def load(self, weights: Weights, version: int, digest: str) -> None:
        """Serve these weights from now on. Responses by others are dropped: nobody trains on them."""
        with self._changed:
            self._waiting.clear()
            self._live.clear()
            self._seen.clear()
            self._news = News()
            self._weights, self.version, self.digest = weights, version, digest
            self._changed.notify_all()

    def add(self, version: int, responses: Iterable[Response]) -> int:
        """Queue responses and return how many wait.

        Raises:
            Refused: other weights are served than those asked for, or too many wait.
        """
        new = list(responses)
        with self._changed:
            if self._weights is None or version != self.version:
                raise Refused(f"version: {version!r} is asked for, {self.version!r} is served", 409)
            if len(self._waiting) + len(self._live) + len(new) > MOST_WAITING:
                raise Refused(f"requests: more than {MOST_WAITING} would wait", 429)
            known = {r.id for r in self._waiting} | {r.id for r in self._live}
            self._waiting.extend(r for r in new if r.id not in known)  # asked for twice: an answer was lost
            self._changed.notify_all()
            return len(self._waiting)

    def abort(self, ids: set[str] | None) -> int:
        """End these responses, or all, and return how many there were."""
        with self._changed:
            gone = [r for r in [*self._live, *self._waiting] if ids is None or r.id in ids]
            names = {r.id for r in gone}
            self._live = [r for r in self._live if r.id not in names]
            self._waiting = deque(r for r in self._waiting if r.id not in names)
            for name in names:
                self._news.ended[name] = "abort"
            self._changed.notify_all()
            return len(names)

    def take(self, wait: float) -> tuple[News, int | None]:
        """Return what is new and the weights' version, after ``wait`` s at most where nothing is."""
        with self._changed:
            if not self._news and not self._closed:
                self._changed.wait_for(lambda: bool(self._news) or self._closed, wait)
            news, self._news = self._news, News()
            return news, self.version

    def report(self) -> dict[str, object]:
        with self._changed:
            c = self.counters
            return {
                "engine": "Plain",
                "slots": self.slots,
                "live": len(self._live),
                "waiting": len(self._waiting),
                "version": self.version,
                "digest": self.digest,
                "iterations": c.iterations,
                "tokens": c.tokens,
                "grown": c.grown,
                "decodeSeconds": c.decode_seconds,
                "prompts": c.prompts,
                "prefillTokens": c.prefill_tokens,
                "prefillSeconds": c.prefill_seconds,
            }

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- the worker ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._waiting or self._live))
                if self._closed:
                    return
                begun = self._now()
                computed = self._fill()
                seconds = computed * self.times.prefill
                if computed:
                    self.counters.prefill_tokens += computed
                    self.counters.prefill_seconds += seconds
                batch = list(self._live)
                weights, version = self._weights, self.version
                decode = self.times.iteration + self.times.sequence * len(batch)
            if weights is None or not batch:
                continue
            tokens = _next(weights, batch)  # outside of the lock: nobody waits for it
            self._pause(begun + seconds + decode)
            with self._changed:
                if version != self.version:
                    continue  # other weights came meanwhile
                self._give(batch, tokens, max(decode, self._now() - begun - seconds))
                self._changed.notify_all()

    def _fill(self) -> int:
        """Move responses from the queue into free slots; return tokens that have to be computed for them."""
        computed = 0
        while self._waiting and len(self._live) < self.slots:
            response = self._waiting.popleft()
            if response.prompt not in self._seen:
                self._seen.add(response.prompt)
                self.counters.prompts += 1
                computed += len(response.prompt)
            computed += response.begun
            self._live.append(response)
        return computed

    def _pause(self, until: float) -> None:
        with self._changed:
            while not self._closed and (left := until - self._now()) > 0:
                self._changed.wait(left)

    def _give(self, batch: list[Response], tokens: list[int], seconds: float) -> None:
        live = {id(response) for response in self._live}
        kept = 0
        for response, token in zip(batch, tokens, strict=True):
            if id(response) not in live:
                continue  # aborted in this iteration
            kept += 1
            self.counters.grown += len(response.tokens)
            response.tokens.append(token)
            self._news.tokens.setdefault(response.id, []).append(token)
            if token == END or len(response.tokens) >= response.most:
                self._news.ended[response.id] = "stop" if token == END else "length"
                self._live.remove(response)
        self.counters.iterations += 1
        self.counters.tokens += kept
        self.counters.decode_seconds += seconds


def _next(weights: Weights, batch: list[Response]) -> list[int]:
    temperatures = {response.temperature for response in batch}
    found: dict[int, int] = {}
    for temperature in temperatures:
        part = [r for r in batch if r.temperature == temperature]
        tokens = sample(
            weights,
            np.array([r.prompt for r in part]),
            np.array([r.tokens[-1] if r.tokens else r.prompt[-1] for r in part]),
            np.array([len(r.tokens) for r in part]),
            np.array([r.draw for r in part]),
            temperature,
        )
        found.update((id(r), int(token)) for r, token in zip(part, tokens, strict=True))
    return [found[id(response)] for response in batch]
