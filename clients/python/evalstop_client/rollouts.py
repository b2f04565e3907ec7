"""Rollouts by actor pods that come and go, in one file (docs/use/rollouts.md). Standard library only, Python
3.9.

    rollouts = Rollouts(StepApi.of_pod())                      # what run.json names
    rollouts.load(checkpoint.get("rollouts"))                  # length history: belongs into the checkpoint
    rollouts.announce(step, prompts, copies=4, most=2048, begins_in=12.0)
    responses = rollouts.generate(step, prompts, copies=4, most=2048, weights=Weights.of(content), end=END,
    seed=7) rollouts.end(step, phases={"train": 31.0})

Only token ids travel, and prompts never leave the job. A step never waits for the operator: after 2 s of
silence it goes on with the actors that it knows, and does not wait again until the operator answers. Every
token that came is kept: an actor that is lost or recalled costs recomputed prefixes and no response.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import math
import os
import queue
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

log = logging.getLogger("evalstop")

PATIENCE = 2.0  # s for which a step waits for the operator, once
WATCH = 30.0  # s for which the operator may hold a watch
SILENCE = 10.0  # s without a frame after which an actor is lost; one sends at least one each second
STALL = 120.0  # s without a token after which an actor that has responses is lost, though it lives
STARVE = 60.0  # s without an actor, or one that starts, after which a step gives up or the learner generates
EXIT_STARVED = 75  # EX_TEMPFAIL: the exit code by which a trainer that starved goes back into the queue
LOAD = 600.0  # s that an actor may take for its weights
BINS = 256  # of a histogram
FAILURES, FAILURE_LENGTH = 8, 200  # of a step that the operator is told of, and characters of each
TOKEN = "/var/run/secrets/evalstop.dev/token"  # the projected token, by default
_ANSWER = 4 << 20  # bytes of an answer, and of a frame
_WAITING = 256  # calls that are still to be made: those of 64 actors that end together, and more
_TRIES = 16  # of an address, which may stand for several processes: of three, 1 in 600 calls finds no leader
_TURN = 0.5  # s after which the dispatch looks again without news


class RolloutStarved(RuntimeError):
    """No actor was left for a while, and the learner cannot generate.

    A trainer that then ends with exit code `EXIT_STARVED` goes back into the queue.
    """


class Prompt(NamedTuple):
    """``key``: the prompt's identity over epochs, a text or a number. ``guess``: expected tokens; None:
    none."""

    key: Hashable
    tokens: Sequence[int]
    guess: float | None = None


class Weights(NamedTuple):
    """Weights as actors load them: pushed content, or a file on a volume that actors share."""

    digest: str  # SHA-256 in hex
    content: bytes | None = None
    path: str | None = None  # inside the shared folder

    @staticmethod
    def of(content: bytes) -> Weights:
        """Return weights that are pushed."""
        return Weights(hashlib.sha256(content).hexdigest(), content)


class Actor(NamedTuple):
    """An actor that is ready. ``fingerprint``: SHA-256 of its certificate. ``ticket``: what it lets in by."""

    number: int
    address: str
    fingerprint: str
    ticket: str


class Plan(NamedTuple):
    """The operator's plan of a step; without an answer one queue for whoever is there."""

    actors: int = 0
    dispatch: str = "LongestFirst"
    release: int = 0  # how many leave when they have nothing more to do, the first that are done
    cut: float = 0.7
    seconds: float | None = None
    reason: str = "Unplanned"
    message: str = "the operator did not answer"


class News(NamedTuple):
    """The operator's word on a step: its plan, all actors that are ready, who must leave, a revision, and how
    many actors are still starting."""

    plan: Plan
    actors: tuple[Actor, ...]
    leave: frozenset[int]
    revision: int
    coming: int = 0


class Source(Protocol):
    """Names the actors. Every method returns at once or within `PATIENCE`, but for `watch`."""

    def announce(self, body: Mapping[str, Any]) -> None: ...

    def begin(self, step: int) -> News | None: ...

    def watch(self, step: int, after: int) -> News | None: ...

    def done(self, body: Mapping[str, Any]) -> None: ...

    def end(self, body: Mapping[str, Any]) -> None: ...


# -- lengths -----------------------------------------------------------------------------------------------


class Lengths:
    """Lengths seen so far, by the operator's own law (controller/policy/rollout/lengths.py), held equal by a
    test.

    It stays in the job, since it is known by prompts.
    """

    SPREAD, PRIOR, STEP, MOST = 0.2, 8.0, 0.8, 8.0

    def __init__(self) -> None:
        self.means: dict[Hashable, float] = {}
        self.squares = self.degrees = 0.0
        self.bias = self.guess_bias = 1.0

    @property
    def spread(self) -> float:
        """Log-sd between copies of a prompt."""
        return math.sqrt((self.squares + self.PRIOR * self.SPREAD**2) / (self.degrees + self.PRIOR))

    def predict(self, prompts: Iterable[Prompt]) -> list[float]:
        """Return expected tokens of each prompt's responses."""
        usual = sum(self.means.values()) / len(self.means) if self.means else None
        found = []
        for prompt in prompts:
            mean, guess = self.means.get(prompt.key), prompt.guess
            if mean is not None:
                found.append(mean * self.bias)
            elif guess is not None and 0.0 < guess < math.inf:
                found.append(guess * self.guess_bias)
            else:
                found.append(1.0 if usual is None else usual * self.bias)
        return found

    def seen(self, step: Iterable[tuple[Hashable, float, Sequence[int]]]) -> None:
        """Take in a step: of each prompt its key, what was predicted, and the tokens of its copies."""
        squares, degrees = 0.0, 0
        known: list[float] = []
        new: list[float] = []
        for key, predicted, lengths in step:
            if not lengths or min(lengths) < 1:
                continue
            mean = sum(lengths) / len(lengths)
            before = self.means.get(key)
            if 0.0 < predicted < math.inf:
                ratios, bias = (new, self.guess_bias) if before is None else (known, self.bias)
                ratios.append(mean * bias / predicted)
            # As the planner has it, with a window of one epoch, to the last bit.
            self.means[key] = mean if before is None else before + (mean - before)
            if len(lengths) > 1:
                logs = [math.log(length) for length in lengths]
                middle = sum(logs) / len(logs)
                squares += sum((one - middle) ** 2 for one in logs)
                degrees += len(logs) - 1
        self.squares = 0.7 * self.squares + squares
        self.degrees = 0.7 * self.degrees + degrees
        self.bias, self.guess_bias = self._moved(self.bias, known), self._moved(self.guess_bias, new)

    def _moved(self, bias: float, ratios: Sequence[float]) -> float:
        if not ratios:
            return bias
        return bias + self.STEP * (min(self.MOST, max(1.0 / self.MOST, median(ratios))) - bias)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON can hold it; keys are texts or numbers."""
        return {
            "means": [[key, mean] for key, mean in self.means.items()],
            "squares": self.squares,
            "degrees": self.degrees,
            "bias": self.bias,
            "guessBias": self.guess_bias,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.means = {key: float(mean) for key, mean in state["means"]}
        self.squares, self.degrees = float(state["squares"]), float(state["degrees"])
        self.bias, self.guess_bias = float(state["bias"]), float(state["guessBias"])


def histogram(lengths: Sequence[float], most: int, bins: int = BINS) -> list[list[float]]:
    """Return [tokens, prompts] of at most so many bins, longest first: neighbours in rank, and their mean."""
    ordered = sorted((min(float(most), max(1.0, tokens)) for tokens in lengths), reverse=True)
    count = min(bins, len(ordered))
    found = []
    for i in range(count):
        part = ordered[i * len(ordered) // count : (i + 1) * len(ordered) // count]
        found.append([sum(part) / len(part), len(part)])
    return found


def rank_correlation(predicted: Sequence[float], actual: Sequence[float]) -> float | None:
    """Return Spearman's correlation; None for fewer than 8 pairs or all alike."""
    if len(predicted) < 8:
        return None
    a, b = _ranks(predicted), _ranks(actual)
    middle = (len(a) + 1) / 2.0
    below = math.sqrt(sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b))
    return sum((x - middle) * (y - middle) for x, y in zip(a, b)) / below if below > 0.0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + 1 + end) / 2.0
        begin = end
    return ranks


# -- the operator ------------------------------------------------------------------------------------------


class StepApi:
    """The operator's step API. What it does not answer within `PATIENCE` is silence: a step goes on without
    it.

    Args:
        urls: of it: one of each process that may lead; 421 means another one does.
        ca: PEM text of its authority.
        token: file of the projected token (audience ``evalstop.dev/steps``).
        attempt: this one's number.
        run: ``run.json``, which is read again when no address answers: the operator may have moved, or have
            another certificate. None: there is none.
    """

    def __init__(
        self,
        urls: Sequence[str],
        ca: str,
        token: str,
        attempt: int,
        *,
        patience: float = PATIENCE,
        run: str | None = None,
    ) -> None:
        if not urls:
            raise ValueError("urls: expected at least one address of the step API, got none")
        self._urls, self._token, self.attempt, self._patience = list(urls), token, attempt, patience
        self._ca, self._run = ca, run
        self._context = ssl.create_default_context(cadata=ca)
        self.silent = False
        self._outbox: queue.Queue[Callable[[], None]] = queue.Queue(_WAITING)
        self._sender: threading.Thread | None = None
        self.refused: Counter[str] = Counter()  # by reason

    @staticmethod
    def of_run(document: Mapping[str, Any], token: str, run: str | None = None) -> StepApi:
        """Return the API that ``run.json`` names under ``steps``. ``run``: that file."""
        steps = document["steps"]
        return StepApi(steps["urls"], steps["ca"], token, int(document["attempt"]), run=run)

    @staticmethod
    def of_pod(environ: Mapping[str, str] = os.environ) -> StepApi:
        """Return the API as the pod's ``run.json`` and projected token have it.

        Raises:
            OSError, KeyError, ValueError: the pod has none; its job asks for no rollouts.
        """
        path = os.path.join(environ["EVALSTOP_RUN_DIR"], "run.json")
        with open(path, encoding="utf-8") as file:
            return StepApi.of_run(json.load(file), environ.get("EVALSTOP_STEPS_TOKEN") or TOKEN, path)

    def _moved(self) -> bool:
        """Take the addresses and the authority that ``run.json`` names now; return whether they are
        others."""
        if self._run is None:
            return False
        try:
            with open(self._run, encoding="utf-8") as file:
                steps = json.load(file)["steps"]
            urls, ca = list(steps["urls"]), str(steps["ca"])
            if ca == self._ca and set(urls) == set(self._urls):
                return False
            context = ssl.create_default_context(cadata=ca)
        except (OSError, KeyError, TypeError, ValueError) as fault:
            log.info("%s: %s: %s", self._run, type(fault).__name__, fault)
            return False
        self._urls, self._ca, self._context = urls, ca, context
        return True

    def announce(self, body: Mapping[str, Any]) -> None:
        """Say what comes. Nobody waits for the answer."""
        self._send("POST", "/v1/announce", body, wait=False)

    def begin(self, step: int) -> News | None:
        """Return the plan and the actors that are ready; None: silence, or a refusal."""
        return _news(self._send("POST", "/v1/begin", {"step": step}, wait=True))

    def watch(self, step: int, after: int) -> News | None:
        """Return what changed; None: nothing, or silence. It takes up to `WATCH`."""
        path = f"/v1/watch?attempt={self.attempt}&step={step}&after={after}"
        return _news(self._call("GET", path, None, WATCH + 5.0))

    def done(self, body: Mapping[str, Any]) -> None:
        """Say that an actor has nothing more to do."""
        self._send("POST", "/v1/done", body, wait=False)

    def end(self, body: Mapping[str, Any]) -> None:
        """Say how the step went."""
        self._send("POST", "/v1/end", body, wait=False)

    def _send(self, method: str, path: str, body: Mapping[str, Any], wait: bool) -> dict[str, Any] | None:
        """Ask in the order in which it is called, in another thread; wait for that only while the operator is
        not silent. How one step went has to be there before the next one is planned."""
        found: list[dict[str, Any] | None] = []
        over, late = threading.Event(), threading.Event()

        def ask() -> None:
            try:
                if not late.is_set():  # a plan that nobody waits for is none
                    found.append(self._call(method, path, {"attempt": self.attempt, **body}, 10.0))
            finally:
                over.set()

        try:
            self._outbox.put_nowait(ask)
        except queue.Full:
            return None  # as many hang already
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, name="evalstop-steps", daemon=True)
            self._sender.start()
        if not wait or self.silent:
            return None
        if not over.wait(self._patience):
            self.silent = True
            late.set()
            log.warning("the operator has not answered %s for %.0f s: the step goes on", path, self._patience)
            return None
        return found[0] if found else None

    def _send_all(self) -> None:
        while True:
            ask = self._outbox.get()
            try:
                ask()
            except Exception:  # the trainer goes on without an operator, and without this message
                log.exception("step API")

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> dict[str, Any] | None:
        """Return the answer; None: silence or a refusal, which the log tells."""
        answered, answer = self._call_all(method, path, body, timeout)
        if not answered and self._moved():
            answered, answer = self._call_all(method, path, body, timeout)
        self.silent = not answered
        return answer

    def _call_all(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether a leader answered at some address, and what."""
        gone: set[str] = set()
        for url in list(self._urls) * _TRIES:
            if url in gone:
                continue
            try:
                status, answer = self._ask(url, method, path, body, timeout)
            except (OSError, http.client.HTTPException, ValueError) as fault:
                log.info("step API %s: %s", url, fault)
                gone.add(url)
                continue
            if status in (421, 503):  # another one leads, or nobody yet
                continue
            if url in self._urls[1:]:
                self._urls = [url, *(other for other in self._urls if other != url)]
            if status == 200:
                return True, answer
            self.refused[str(answer.get("reason"))[:40]] += 1
            log.warning(
                "step API %s: %s %s", path.partition("?")[0], status, str(answer.get("message"))[:300]
            )
            return True, None
        return False, None

    def _ask(
        self, url: str, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(url)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=self._context)
        try:
            with open(self._token, encoding="ascii") as file:
                headers = {
                    "Authorization": f"Bearer {file.read().strip()}",
                    "Content-Type": "application/json",
                }
            text = None if body is None else json.dumps(body, allow_nan=False).encode()
            connection.request(method, parts.path.rstrip("/") + path, text, headers)
            answer = connection.getresponse()
            found = json.loads(answer.read(_ANSWER) or b"{}")
            return answer.status, found if isinstance(found, dict) else {}
        finally:
            connection.close()


def _news(answer: Mapping[str, Any] | None) -> News | None:
    """Return what an answer says; None: nothing that can be used."""
    if answer is None:
        return None
    try:
        plan = answer.get("plan") or {}
        actors = tuple(
            Actor(int(a["number"]), str(a["address"]), str(a["fingerprint"]), str(a["ticket"]))
            for a in answer["actors"]
        )
        release = plan.get("release") or ()
        return News(
            Plan(
                int(plan.get("actors") or 0),
                str(plan.get("dispatch") or "LongestFirst"),
                sum(1 for leaves in release if leaves),
                float(plan.get("cut") or 0.7),
                plan.get("seconds"),
                str(plan.get("reason") or ""),
                str(plan.get("message") or ""),
            ),
            actors,
            frozenset(int(number) for number in answer.get("leave") or ()),
            int(answer.get("revision") or 0),
            int(answer.get("coming") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        log.warning("the operator's answer cannot be used: %s: %s", type(fault).__name__, fault)
        return None


# -- one actor ---------------------------------------------------------------------------------------------


class _Pinned(http.client.HTTPSConnection):
    """A connection to exactly the certificate with that fingerprint."""

    def __init__(self, address: str, fingerprint: str, timeout: float) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # known by its fingerprint instead, below
        super().__init__(address, timeout=timeout, context=context)
        self._fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        shown = self.sock.getpeercert(True)
        if shown is None or hashlib.sha256(shown).hexdigest() != self._fingerprint:
            self.close()
            raise ConnectionError("another certificate than the operator named")


class _Faulty(Exception):
    """An actor that does what none may do; it is put aside."""


class _Refused(Exception):
    """An actor's answer that is none of success."""


class _Response:
    """One response on its way."""

    __slots__ = ("copy", "draw", "ended", "id", "link", "moves", "place", "spans", "tokens")

    def __init__(self, place: int, copy: int, draw: tuple[int, int, int, int]) -> None:
        self.place, self.copy, self.draw = place, copy, draw
        self.tokens: list[int] = []
        self.ended = False
        self.link: _Link | None = None
        self.id = ""
        self.moves = 0
        self.spans: list[tuple[_Link, int]] = []  # who went on with it, from which token


class _Link:
    """One actor in one step: a thread that loads weights and reads frames, and one that sends."""

    def __init__(self, generation: _Generation, actor: Actor) -> None:
        self._of, self.actor = generation, actor
        self.state = "loading"  # ready, leaving, done, lost, faulty
        self.live: dict[str, _Response] = {}
        self.last_seen = time.monotonic()  # of a token, or of something given
        self.names: set[str] = set()  # of all responses that it was given
        self.slots = 1
        self.given = self.finished = 0  # responses
        self.report: dict[str, Any] = {}
        self.leaves = False  # once it is done
        self.recalled = False
        self.cut = False  # it has given its last responses to others
        self.ready: float | None = None  # s after the begin
        self.left: float | None = None
        self._before: dict[str, Any] = {}
        self.asked, self.asking_seconds = 0, 0.0  # requests for responses, and s until each was accepted
        self._outbox: deque[tuple[str, Any, float]] = deque()
        self._sending: _Pinned | None = None
        self._closed = False
        self._reading: _Pinned | None = None
        for work in (self._read, self._send):
            threading.Thread(target=work, name=f"actor-{actor.number}", daemon=True).start()

    @property
    def asks(self) -> bool:
        """Return whether something is still to be sent to it."""
        return bool(self._outbox)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.live)) if self.state == "ready" else 0

    # Called with the generation's lock held.

    def give(self, responses: Sequence[_Response]) -> None:
        """Have responses generated here, from the tokens that they have."""
        requests = []
        for response in responses:
            response.moves += 1
            response.id = f"{self._of.step}.{response.place}.{response.copy}.{response.moves}"
            response.link = self
            response.spans.append((self, len(response.tokens)))
            self.live[response.id] = response
            self.names.add(response.id)
            prompt = self._of.prompts[response.place]
            requests.append(
                {
                    "id": response.id,
                    "prompt": list(prompt.tokens),
                    "tokens": list(response.tokens),
                    "most": self._of.most,
                    "draw": list(response.draw),
                    "temperature": self._of.temperature,
                }
            )
        self.last_seen = time.monotonic()
        self.given += len(responses)
        self._post("/v1/generate", {"version": self._of.version, "requests": requests})

    def call_back(self) -> None:
        """Have its responses ended here; they come back with all their tokens."""
        if self.live:
            self._post("/v1/abort", {"ids": list(self.live)})

    def forget(self, name: str) -> None:
        """Have a response ended here whose tokens nobody wants."""
        self.live.pop(name, None)
        self._post("/v1/abort", {"ids": [name]})

    def finish(self) -> None:
        """Ask for its report and close."""
        self._post("/v1/report", None)

    def _post(self, path: str, body: Any) -> None:
        self._outbox.append((path, body, time.monotonic()))

    def close(self) -> None:
        self._closed = True

    # In its threads.

    def _connect(self, timeout: float) -> _Pinned:
        return _Pinned(self.actor.address, self.actor.fingerprint, timeout)

    def _ask(
        self,
        connection: _Pinned,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        given = {
            "Authorization": f"Bearer {self.actor.ticket}",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, content, given)
        answer = connection.getresponse()
        text = answer.read(_ANSWER)
        found = json.loads(text or b"{}")
        if answer.status != 200:
            raise _Refused(f"{path}: {answer.status} {str(found.get('message'))[:300]}")
        return found if isinstance(found, dict) else {}

    def _load(self) -> None:
        weights, version = self._of.weights, self._of.version
        connection = self._connect(LOAD)
        try:
            self._ask(connection, "POST", "/v1/abort", {"ids": None})  # of an earlier life of the trainer
            if weights.content is not None:
                headers = {
                    "Content-Type": "application/octet-stream",
                    "X-Weights-Version": str(version),
                    "X-Weights-Digest": weights.digest,
                }
                found = self._ask(connection, "POST", "/v1/weights", weights.content, headers)
            else:
                body = {"path": weights.path, "version": version, "digest": weights.digest}
                found = self._ask(connection, "POST", "/v1/weights", body)
            if (found.get("version"), found.get("digest")) != (version, weights.digest):
                raise _Faulty(f"it has weights {found.get('version')!r}, expected {version}")
            self._before = self._ask(connection, "GET", "/v1/report")
        finally:
            connection.close()
        slots = self._before.get("slots")
        self.slots = slots if type(slots) is int and slots > 0 else self._of.slots

    def _read(self) -> None:
        try:
            self._load()
            last: int | None = None
            failures = 0
            while not self._closed:
                failures += 1
                try:
                    for frame in self._frames(last):
                        last, failures = frame.get("frame"), 0
                        if "error" in frame:
                            raise _Refused(str(frame["error"])[:300])
                        self._of.take(self, frame)
                        if self._closed:
                            return
                except (OSError, http.client.HTTPException):
                    if failures > 1:
                        raise
                if failures > 1:
                    raise ConnectionError("it sends no frames")
        except _Faulty as fault:
            self._of.changed(self, "faulty", str(fault))
        except (OSError, http.client.HTTPException, ValueError, TypeError, AttributeError, _Refused) as fault:
            self._of.changed(self, "lost", f"{type(fault).__name__}: {fault}")

    def _frames(self, after: int | None) -> Iterable[dict[str, Any]]:
        connection = self._connect(SILENCE)
        try:
            path = "/v1/frames" if after is None else f"/v1/frames?after={after}"
            connection.request("GET", path, None, {"Authorization": f"Bearer {self.actor.ticket}"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise _Refused(f"{path}: {answer.status} {answer.read(500)!r}")
            if after is None:
                self._of.changed(self, "reading")
            while line := answer.readline(_ANSWER):
                if not line.endswith(b"\n"):
                    return  # cut off: it comes again
                yield json.loads(line)
        finally:
            connection.close()

    def _send(self) -> None:
        connection: _Pinned | None = None
        while not self._closed:
            with self._of.lock:
                while not self._outbox and not self._closed:
                    self._of.lock.wait(1.0)
                if self._closed:
                    break
                path, body, since = self._outbox.popleft()
            try:
                if connection is None:
                    connection = self._connect(SILENCE)
                found = self._ask(connection, "GET" if body is None else "POST", path, body)
                if path == "/v1/generate":
                    self.asked += 1
                    self.asking_seconds += time.monotonic() - since
                elif path == "/v1/report":
                    self._of.finished(self, _difference(self._before, found))
                    break
            except (OSError, http.client.HTTPException, ValueError, AttributeError, _Refused) as fault:
                if path == "/v1/report":
                    self._of.finished(self, {})
                else:
                    self._of.changed(self, "lost", f"{type(fault).__name__}: {fault}")
                break
        if connection is not None:
            connection.close()


_COUNTERS = ("iterations", "tokens", "grown", "decodeSeconds", "prompts", "prefillTokens", "prefillSeconds")


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return what an actor did in the step, of those counters that are numbers."""
    found = {}
    for name in _COUNTERS:
        a, b = before.get(name, 0), after.get(name, 0)
        if (
            all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in (a, b))
            and b >= a
        ):
            found[name] = b - a
    return found


# -- one step ----------------------------------------------------------------------------------------------


class _Generation:
    """One step's generation: responses, actors, and who does what."""

    def __init__(
        self,
        rollouts: Rollouts,
        step: int,
        prompts: Sequence[Prompt],
        predicted: Sequence[float],
        *,
        copies: int,
        most: int,
        weights: Weights,
        version: int,
        end: int | None,
        vocabulary: int | None,
        seed: int,
        temperature: float,
    ) -> None:
        self.step, self.prompts, self.most = step, prompts, most
        self.begun = time.monotonic()
        self.weights, self.version, self.temperature = weights, version, temperature
        self.slots = 64  # of an actor that does not say
        self._end, self._vocabulary = end, vocabulary
        self._rollouts = rollouts
        self.lock = threading.Condition()
        self.responses = [
            [_Response(place, copy, (seed, step, _number(prompt.key), copy)) for copy in range(copies)]
            for place, prompt in enumerate(prompts)
        ]
        self.left = len(prompts) * copies
        self.links: dict[int, _Link] = {}
        self.aside: set[tuple[int, str]] = set()  # of this step: number and fingerprint
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []  # which actors were lost or put aside, and why
        self.plan = Plan()
        self.leave: frozenset[int] = frozenset()
        self._loose: list[_Response] = []  # begun elsewhere: they go first
        order = sorted(range(len(prompts)), key=lambda i: (-predicted[i], i))
        self._order, self._predicted = order, predicted
        self._queue: deque[int] = deque(order)
        self._groups: deque[list[int]] = deque()
        self._released = 0
        self._hoped = -math.inf  # when the operator last said that actors are still starting
        self._over = False

    # What links tell.

    def changed(self, link: _Link, state: str, why: str = "") -> None:
        with self.lock:
            if state == "reading":
                link.ready = link.ready if link.ready is not None else time.monotonic() - self.begun
                if link.state == "loading":
                    link.state = "leaving" if link.actor.number in self.leave else "ready"
            elif state in ("lost", "faulty") and link.state not in ("lost", "faulty", "done"):
                self._drop(link, state, why)
            self.lock.notify_all()

    def take(self, link: _Link, frame: Mapping[str, Any]) -> None:
        """Take in a frame.

        Raises:
            _Faulty: it has what no frame may have.
        """
        with self.lock:
            if link.state in ("lost", "faulty", "done"):
                return
            tokens, ended = frame.get("tokens"), frame.get("ended")
            if not isinstance(tokens, dict) or not isinstance(ended, dict):
                raise _Faulty("a frame without tokens")
            if (tokens or ended) and frame.get("version") != self.version:
                raise _Faulty(f"tokens by weights {frame.get('version')!r}, expected {self.version}")
            if tokens or ended:
                link.last_seen = time.monotonic()
            for name, new in tokens.items():
                self._append(link, name, new)
            for name, why in ended.items():
                self._ended(link, name, why)
            self.lock.notify_all()

    def _append(self, link: _Link, name: str, new: Any) -> None:
        response = link.live.get(name)
        if response is None:
            if name not in link.names and str(name).startswith(f"{self.step}."):
                raise _Faulty(f"tokens of a response that it does not have, {name[:40]!r}")
            return
        if not isinstance(new, list) or len(response.tokens) + len(new) > self.most:
            raise _Faulty(f"more than {self.most} tokens of a response")
        top = self._vocabulary
        for token in new:
            if type(token) is not int or token < 0 or (top is not None and token >= top):
                raise _Faulty(f"an invented token, {token!r}")
        if self._end is not None and self._end in new[:-1]:
            raise _Faulty("tokens after the end token")
        response.tokens.extend(new)
        self.counts["tokens"] += len(new)

    def _ended(self, link: _Link, name: str, why: Any) -> None:
        response = link.live.pop(name, None)
        if response is None:
            return
        last = response.tokens[-1] if response.tokens else None
        complete = len(response.tokens) >= self.most or (self._end is not None and last == self._end)
        if why == "abort":
            if not complete:
                response.link = None
                self._loose.append(response)
                self.counts["moved"] += 1
                return
        elif why == "stop" and self._end is not None and last != self._end:
            link.live[name] = response
            raise _Faulty("a response that stopped without the end token")
        elif why == "length" and len(response.tokens) < self.most:
            link.live[name] = response
            raise _Faulty(f"a response that ended with {len(response.tokens)} of {self.most} tokens")
        elif not response.tokens:
            link.live[name] = response
            raise _Faulty("a response without tokens")
        response.ended = True
        link.finished += 1
        self.left -= 1

    def finished(self, link: _Link, report: dict[str, Any]) -> None:
        """Take an actor's report: it has nothing more to do."""
        with self.lock:
            link.report = report
            link.state = "done"
            link.left = time.monotonic() - self.begun
            link.close()
            self.lock.notify_all()
        self._rollouts.source.done(
            {"step": self.step, "actor": link.actor.number, "release": link.leaves, "report": report}
        )

    def _drop(self, link: _Link, state: str, why: str) -> None:
        """Put an actor aside; its responses go on elsewhere, from the tokens that came."""
        log.warning("actor %d is %s in step %d: %s", link.actor.number, state, self.step, why)
        link.state = state
        link.left = time.monotonic() - self.begun
        link.close()
        self.counts[state] += 1
        said = f"actor {link.actor.number} {state}: {why}"[:FAILURE_LENGTH]
        if len(self.failures) < FAILURES:
            self.failures.append(said)
        self.aside.add((link.actor.number, link.actor.fingerprint))
        for response in link.live.values():
            response.link = None
            self._loose.append(response)
            self.counts["moved"] += 1
        link.live.clear()
        if state == "faulty":
            self._distrust(link)
        # At once, as a step that has no other one never ends. A faulty one is of no use to anybody: the next
        # step gets another one in its place.
        self._rollouts.source.done(
            {
                "step": self.step,
                "actor": link.actor.number,
                "release": state == "faulty",
                "report": {},
                "failure": said,
            }
        )

    def _distrust(self, link: _Link) -> None:
        """Take back every token that an actor gave in this step: what it said before may be as wrong."""
        for response in (r for row in self.responses for r in row):
            at = next((i for i, (who, _) in enumerate(response.spans) if who is link), None)
            if at is None:
                continue
            start = response.spans[at][1]
            if response.ended:
                response.ended = False
                self.left += 1
                self._loose.append(response)
            elif response.link is not None:
                response.link.forget(response.id)
                self._loose.append(response)
            response.link = None
            self.counts["distrusted"] += len(response.tokens) - start
            self.counts["tokens"] -= len(response.tokens) - start
            del response.tokens[start:], response.spans[at:]

    # What the operator tells.

    def take_news(self, news: News) -> None:
        with self.lock:
            if news.coming:
                self._hoped = time.monotonic()
            self.leave = news.leave
            for actor in news.actors:
                known = self.links.get(actor.number)
                if known is not None and known.actor.fingerprint == actor.fingerprint:
                    known.actor = actor  # a new ticket
                    if actor.number not in news.leave and known.state == "done" and self._unassigned():
                        self.links[actor.number] = _Link(self, actor)
                elif (actor.number, actor.fingerprint) not in self.aside and actor.number not in news.leave:
                    if known is not None and known.state not in ("lost", "faulty", "done"):
                        self._drop(known, "lost", "it is another process now")
                    self.links[actor.number] = _Link(self, actor)
            for number in news.leave:
                link = self.links.get(number)
                if link is not None and link.state in ("loading", "ready"):
                    link.state = "leaving"
                    link.recalled = True
                    self.counts["recalled"] += 1
                    link.call_back()
            self.lock.notify_all()

    # The dispatch.

    def deal(self, plan: Plan) -> None:
        """Take up the plan's dispatch."""
        with self.lock:
            self.plan = plan
            if plan.dispatch in ("Ranked", "Even") and plan.actors > 0:
                places = self._order if plan.dispatch == "Ranked" else list(range(len(self.prompts)))
                n = plan.actors
                self._groups = deque(
                    places[i * len(places) // n : (i + 1) * len(places) // n] for i in range(n)
                )
                self._queue.clear()

    def _unassigned(self) -> bool:
        return bool(self._queue or self._loose or any(self._groups))

    def assign(self) -> None:
        """Give work to actors with free slots, and send away those that have nothing more to do."""
        ready = sorted(
            (link for link in self.links.values() if link.state == "ready"),
            key=lambda link: link.actor.number,
        )
        for link in ready:
            if self._groups and not link.given:
                self._give_places(link, self._groups.popleft())
            loose = sorted(self._loose, key=lambda r: (-len(r.tokens), r.place, r.copy))[: link.free]
            if loose and (not link.cut or all(other.cut for other in ready)):
                for response in loose:
                    self._loose.remove(response)
                link.give(loose)
            while self._queue and link.free > 0:
                self._give_places(link, [self._queue.popleft()])
        if self._groups and not any(link.state == "loading" for link in self.links.values()):
            for link in ready:  # fewer came than were planned
                if self._groups and not link.live:
                    self._give_places(link, self._groups.popleft())
        if self.plan.dispatch == "Ranked":
            self._cut([link for link in ready if link.live])
        for link in self.links.values():
            if link.live or link.asks:
                continue
            if link.state == "leaving":
                link.leaves = True
            elif link.state == "ready" and not self._unassigned():
                link.leaves = self._released < self.plan.release
                if self.left and not link.leaves:
                    continue  # another may be lost
                self._released += link.leaves
            else:
                continue
            link.state = "finishing"
            link.finish()

    def _give_places(self, link: _Link, places: Sequence[int]) -> None:
        new = [r for place in places for r in self.responses[place] if not r.ended and r.link is None]
        if new:
            link.give(new)

    def _cut(self, running: Sequence[_Link]) -> None:
        """Let the actor that is mostly done give its last responses to free slots of the others
        (RLHFless)."""
        if len(running) < 2 or self._unassigned():
            return
        free = sum(link.free for link in running)
        fits = [
            link
            for link in running
            if link.finished >= self.plan.cut * link.given
            and 0 < len(link.live) <= free - link.free
            and not link.asks
        ]
        if fits:
            mostly_done = min(fits, key=lambda link: len(link.live))
            mostly_done.cut = True
            mostly_done.call_back()

    def run(self, local: Callable[..., Any] | None, starve: float, stall: float) -> None:
        """Generate until no response is left.

        Raises:
            RolloutStarved: there was no actor for ``starve`` s, nor one that starts, and nobody else who
                generates.
        """
        alone_since = time.monotonic()
        try:
            with self.lock:
                while self.left:
                    now = time.monotonic()
                    for link in list(self.links.values()):
                        if link.live and now - link.last_seen > stall:
                            self._drop(link, "lost", f"no token for {stall:g} s")
                    self.assign()
                    if any(link.state in ("ready", "loading") for link in self.links.values()):
                        alone_since = now
                    elif now - max(alone_since, self._hoped) >= starve:
                        if local is None:
                            raise RolloutStarved(
                                f"step {self.step}: no actor for {starve:.0f} s,"
                                f" {self.left} responses are missing"
                            )
                        self._alone(local)
                        break
                    self.lock.wait(_TURN)
                self.assign()  # those that are done say so
                until = time.monotonic() + PATIENCE
                while (
                    any(link.state == "finishing" for link in self.links.values())
                    and time.monotonic() < until
                ):
                    self.lock.wait(0.1)
        finally:
            with self.lock:
                self._over = True
                for link in self.links.values():
                    link.close()
                self.lock.notify_all()

    def _alone(self, local: Callable[..., Any]) -> None:
        missing = [r for row in self.responses for r in row if not r.ended]
        found = local([(self.prompts[r.place].tokens, list(r.tokens), self.most, r.draw) for r in missing])
        for response, tokens in zip(missing, found):
            self.counts["local"] += len(tokens) - len(response.tokens)
            response.tokens, response.ended = list(tokens), True
        self.left = 0

    @property
    def over(self) -> bool:
        return self._over or not self.left


def _number(key: Hashable) -> int:
    """Return a prompt's number for its random numbers: its own, or one made of its text."""
    if isinstance(key, int) and 0 <= key < 2**62:
        return key
    return int.from_bytes(hashlib.sha256(str(key).encode()).digest()[:7], "big")


class Rollouts:
    """Generates a job's responses in actor pods.

    Args:
        source: where actors come from: `StepApi`.
        local: generates the rest of responses in this process, if it can: called with a list of (prompt,
            tokens so
            far, most tokens, draw), it returns the whole token lists. None: it cannot.
        starve: s without any actor before that, or before `RolloutStarved`.
        stall: s without a token after which an actor that has responses is given up.
    """

    def __init__(
        self,
        source: Source,
        *,
        local: Callable[..., Any] | None = None,
        starve: float = STARVE,
        stall: float = STALL,
    ) -> None:
        self.source, self.lengths = source, Lengths()
        self._local, self._starve, self._stall = local, starve, stall
        self._known: tuple[Actor, ...] = ()  # the last that the operator named
        self._last: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()  # over all steps: tokens, moved, lost, faulty, recalled, local
        self.plan = Plan()

    def state(self) -> dict[str, Any]:
        """Return what belongs into a checkpoint, as JSON can hold it."""
        return self.lengths.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint's `state`; None: afresh."""
        if state:
            self.lengths.load(state)

    def announce(
        self, step: int, prompts: Sequence[Prompt], *, copies: int, most: int, begins_in: float = 0.0
    ) -> None:
        """Say which lengths come and when generation begins, so that actors start ahead. Nobody waits."""
        known = bool(self.lengths.means) or any(prompt.guess is not None for prompt in prompts)
        bins = histogram(self.lengths.predict(prompts), most) if known else []
        self.source.announce(
            {
                "step": step,
                "beginsIn": begins_in,
                "copies": copies,
                "cap": most,
                "spread": self.lengths.spread,
                "bins": bins,
            }
        )

    def generate(
        self,
        step: int,
        prompts: Sequence[Prompt],
        *,
        copies: int,
        most: int,
        weights: Weights,
        version: int | None = None,
        end: int | None = None,
        vocabulary: int | None = None,
        seed: int = 0,
        temperature: float = 1.0,
    ) -> list[list[list[int]]]:
        """Return the token ids of each prompt's copies.

        Args:
            step: the step's number.
            prompts: what is answered.
            copies: responses of each.
            most: tokens of a response at most.
            weights: of the policy.
            version: their number; default: the step's.
            end: the end token's id, if there is one; a response ends with it or has ``most`` tokens.
            vocabulary: ids are below it; None: not checked.
            seed: of random numbers.
            temperature: that logits are divided by.

        Raises:
            RolloutStarved: no actor was left for a while, and nobody else generates.
        """
        begun = time.monotonic()
        predicted = self.lengths.predict(prompts)
        generation = _Generation(
            self,
            step,
            prompts,
            predicted,
            copies=copies,
            most=most,
            weights=weights,
            version=step if version is None else version,
            end=end,
            vocabulary=vocabulary,
            seed=seed,
            temperature=temperature,
        )
        news = self.source.begin(step)
        if news is None:
            news = News(Plan(), self._known, frozenset(), 0)
        self.plan = news.plan
        generation.deal(news.plan)
        self._take_news(generation, news)
        watching = threading.Thread(target=self._watch, args=(generation, news.revision), daemon=True)
        watching.start()
        generation.run(self._local, self._starve, self._stall)
        found = [[response.tokens for response in row] for row in generation.responses]
        lengths = [[len(tokens) for tokens in row] for row in found]
        means = [sum(row) / len(row) for row in lengths]
        self.counts.update(generation.counts)
        self._last = {
            "step": step,
            "seconds": time.monotonic() - begun,
            "tokens": sum(map(sum, lengths)),
            "copies": copies,
            "cap": most,
            "spread": self.lengths.spread,
            "bins": histogram(means, most),
            "rank": rank_correlation(predicted, means),
            "counts": dict(generation.counts),
            "failures": generation.failures,
        }
        self.record = {
            **self._last,
            "plan": news.plan._asdict(),
            "predicted": predicted,
            "lengths": lengths,
            "promptTokens": [len(prompt.tokens) for prompt in prompts],
            "actors": [
                {
                    "number": link.actor.number,
                    "slots": link.slots,
                    "state": link.state,
                    "ready": link.ready,
                    "left": link.left,
                    "recalled": link.recalled,
                    "asked": link.asked,
                    "askingSeconds": link.asking_seconds,
                    **link.report,
                }
                for link in generation.links.values()
            ],
        }
        self.lengths.seen(zip((p.key for p in prompts), predicted, lengths))
        return found

    def end(self, step: int, phases: Mapping[str, float] | None = None) -> None:
        """Say how the step went: lengths, errors, seconds of each phase. Nobody waits."""
        if self._last.get("step") == step:
            self.source.end({**self._last, "phases": dict(phases or {})})

    def _take_news(self, generation: _Generation, news: News) -> None:
        self._known = tuple(a for a in news.actors if a.number not in news.leave)
        generation.take_news(news)

    def _watch(self, generation: _Generation, revision: int) -> None:
        while not generation.over:
            begun = time.monotonic()
            news = self.source.watch(generation.step, revision)
            if news is not None:
                revision = news.revision
                if not generation.over:
                    self._take_news(generation, news)
            elif time.monotonic() - begun < 1.0:
                time.sleep(1.0)  # refused or silent: not asked without a pause
