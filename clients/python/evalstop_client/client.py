"""The trainer's side of the trainer contract (docs/use/trainer-contract.md), in one file.

Standard library only, Python 3.9 or newer. A trainer says what it measured; the operator scrapes it:

    client = EvalStopClient()                       # $EVALSTOP_RUN_DIR and $POD_IP are set in the pod
    start = client.resume_path("/checkpoints/a")    # where this process goes on; None: afresh
    client.serve()                                  # /metrics on port 9400, in a daemon thread
    client.checkpoint_saved(400, "/checkpoints/a/checkpoint-400")  # once all ranks have saved
    client.report_eval("gold_reward", step=400, score=1.83, stderr=0.03, samples=1024)

Thread-safe. Everything a scrape shows is copied under one lock, so a sample is never half of one report and
half of the next. In processes that do not speak for the job (`speaks_for_the_job`) all reports are no-ops.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from evalstop_client.phases import Phases
    from evalstop_client.prompts import Compared, Memory, PerPrompt

EVAL_SCORE = "rlhf_eval_score"
EVAL_STDERR = "rlhf_eval_score_stderr"
EVAL_SAMPLES = "rlhf_eval_samples"
EVAL_PROMPTS = "rlhf_eval_prompts"
EVAL_PROXY = "rlhf_eval_proxy_reward"
PAIRED_PROMPTS = "rlhf_paired_prompts"
PAIRED_MEAN = "rlhf_paired_mean"
PAIRED_VARIANCE = "rlhf_paired_variance"
PAIR_PROMPTS = "rlhf_prompt_pair_prompts"
PAIR_MEAN = "rlhf_prompt_pair_mean"
PAIR_VARIANCE = "rlhf_prompt_pair_variance"
PAIRS_DROPPED = "rlhf_prompt_pairs_dropped"
EVALS_TOTAL = "rlhf_evals_total"
PROXY_REWARD = "rlhf_proxy_reward"
KL = "rlhf_kl"
LOSS = "rlhf_loss"
STEP = "rlhf_step"
TOTAL_STEPS = "rlhf_total_steps"
CHECKPOINT_STEP = "rlhf_checkpoint_step"
RESUMED_STEP = "rlhf_resumed_step"
REQUEST_SERVED = "rlhf_request_served"
EVALUATOR_INFO = "rlhf_evaluator_info"
RUN_INFO = "rlhf_run_info"
PHASE_SECONDS = "rlhf_phase_seconds_total"
STEP_SECONDS = "rlhf_step_seconds"

EVALS_KEPT = 32  # evals per metric that stay exposed, so that missed scrapes lose none
PAIRS_KEPT = 8  # newest evals per metric whose pairs stay exposed: ten lines of the page each
METRICS_KEPT = 32  # metrics with evals: the operator reads no more names
EVAL_BYTES = 128 * 1024  # of the page, in evals: with more the oldest go. The operator reads twice as much
DEFAULT_PORT = 9400
RUN_DIR_ENV = "EVALSTOP_RUN_DIR"
LIFE_ENV = "EVALSTOP_LIFE"  # whose life an evaluation process has: `EvalStopClient.environment`
RESUMED_ENV = "EVALSTOP_RESUMED_STEP"  # and the step that one started from
RUN_KEY = "run.json"
_RUN_FILE_LIMIT = 64 * 1024  # bytes; the operator's file has about 200
SAVES_FOLDER = ".evalstop/saves"  # in the checkpoint location: one save record for each finished save
RECORDS_KEPT = 16  # save records whose checkpoint is gone that stay: an access Job may be reading one
_RECORD_LIMIT = 64 << 20  # bytes; one line of about 100 for each file of a checkpoint
SCRAPER = "evalstop"  # User-Agent of the operator's scrapes
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LIFE = re.compile(r"[0-9a-z]{1,16}")
_ATTEMPT = re.compile(r"(?P<number>\d{1,12})-(?P<life>[0-9a-z]{1,16})", re.ASCII)
_WORD = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")  # what a label's value may be
_MOST = 10**15  # steps, samples, ids: exact as a float, and more than any run has
_RECORD = re.compile(r"(?P<attempt>\d{1,12}-[0-9a-z]{1,16})-(?P<step>\d{1,12})\.json")

log = logging.getLogger("evalstop")

Location = Union[str, "os.PathLike[str]"]
Folders = Union[Location, Sequence[Location]]


class _Process:
    """This process's own id. It says nothing but "another process", so no clock and no pid is in it."""

    life = secrets.token_hex(4)

    @classmethod
    def renew(cls) -> None:
        cls.life = secrets.token_hex(4)


os.register_at_fork(after_in_child=_Process.renew)


class Resume(NamedTuple):
    """The checkpoint that the operator wants this run to go on from: its path and, if known, its step."""

    path: str
    step: int | None


class Requests(NamedTuple):
    """The operator's requests now. A flag is True until `EvalStopClient.served` names this id."""

    id: int
    evaluate: bool = False
    checkpoint: bool = False
    stop: bool = False


class Differences(NamedTuple):
    """This eval's policy less that of an earlier step, prompt by prompt, on the same fresh prompts."""

    reference: int  # that earlier step: `EvalStopClient.reference`
    prompts: int
    mean: float
    variance: float  # of one difference, with n - 1 in the denominator

    @staticmethod
    def of(reference: int, now: Sequence[float], before: Sequence[float]) -> Differences:
        """From the scores of both policies, in the order of the prompts.

        Raises:
            ValueError: not as many of each, or fewer than two.
        """
        if len(now) != len(before) or len(now) < 2:
            raise ValueError(
                f"differences: {len(now)} and {len(before)} scores, expected as many of each, at least 2"
            )
        found = [float(a) - float(b) for a, b in zip(now, before)]
        mean = math.fsum(found) / len(found)
        variance = math.fsum((d - mean) ** 2 for d in found) / (len(found) - 1)
        return Differences(reference, len(found), mean, variance)


class Saved(NamedTuple):
    """A save record: what lay in a checkpoint when all ranks had saved it."""

    uid: str  # of the RLHFJob; "" without an operator
    attempt: str  # text form, "<number>-<life>"
    step: int
    sequence: int  # counts the saves of the location, over all processes: the newest has the highest
    name: str  # of the checkpoint's folder
    files: Mapping[str, int]  # name -> bytes; inside the folder, or inside the location (several folders)

    @property
    def spread(self) -> bool:
        """Return whether it lies in folders of folders, so that `files` are named from the location."""
        return bool(self.files) and all(f"/{self.name}/" in name for name in self.files)

    def folder(self, location: Path) -> Path:
        """Return the checkpoint's folder; of several the first."""
        if not self.spread:
            return location / self.name
        before, _, _ = min(self.files).partition(f"/{self.name}/")
        return location / before / self.name

    def whole(self, location: Path) -> bool:
        """Return whether every file is there, with its size."""
        top = location if self.spread else location / self.name
        try:
            return bool(self.files) and all(
                (top / name).stat().st_size == size for name, size in self.files.items()
            )
        except OSError:
            return False

    def rotated_away(self, location: Path) -> bool:
        """Return whether rotation took the checkpoint away: none of its folders is there."""
        if not self.spread:
            return not (location / self.name).exists()
        tops = {name.partition(f"/{self.name}/")[0] for name in self.files}
        return not any((location / top / self.name).exists() for top in tops)


class _Run(NamedTuple):
    """Content of run.json."""

    uid: str
    attempt: int
    resume: Resume | None
    request: Requests
    reference: int | None = None
    scrape_interval: float = 0.0  # s; 0: not said
    minimize: frozenset[str] | None = None  # metrics of which lower is better; None: not said
    best: tuple[str, int] | None = None  # metric, and the step that is its best


_NO_RUN = _Run("", 0, None, Requests(0))


class _Handed(NamedTuple):
    """The identity that a trainer's process has handed to one that evaluates for it."""

    number: int  # of the attempt; 0: not known when it was handed over
    life: str
    resumed: int | None  # step the trainer's process started from; None: it had not said

    @staticmethod
    def of(environ: Mapping[str, str]) -> _Handed | None:
        """Return it; None: nothing was handed over. Raises ValueError that names the variable."""
        attempt, resumed = environ.get(LIFE_ENV), environ.get(RESUMED_ENV)
        if not attempt:
            return None
        found = _ATTEMPT.fullmatch(attempt)
        if found is None:
            raise ValueError(
                f"{LIFE_ENV}: {attempt!r}, expected the number of an attempt and a life, as 2-9f2c41d0; "
                "client.environment() of the trainer's process makes it"
            )
        if resumed and not (resumed.isascii() and resumed.isdigit() and len(resumed) < 16):
            raise ValueError(
                f"{RESUMED_ENV}: {resumed!r}, expected a step; client.environment() of the trainer's "
                "process makes it"
            )
        return _Handed(int(found["number"]), found["life"], int(resumed) if resumed else None)


class _Eval(NamedTuple):
    step: int
    attempt: str
    score: float
    stderr: float | None
    samples: int | None
    proxy: float | None
    differences: Differences | None
    evaluator: str
    prompts: int | None
    compared: Compared | None


def speaks_for_the_job(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is the one of its job that is scraped and writes save records.

    In an Indexed Job it is local rank 0 of the pod with completion index 0, the pod that the operator asks,
    wherever the launcher has put global rank 0; elsewhere it is global rank 0.
    """
    index = environ.get("JOB_COMPLETION_INDEX")
    if index is None:
        return environ.get("RANK", "0") == "0"
    return index == "0" and environ.get("LOCAL_RANK", "0") == "0"


def _integer(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{field}: expected an integer >= 0, got {value!r}")
    if value >= _MOST:
        raise ValueError(f"{field}: expected an integer below {_MOST}, got one of {len(str(value))} digits")
    return value


def _word(value: object, field: str, most: int) -> str:
    """Return a label's value. What the operator would refuse, the whole page with it, is refused here."""
    if not isinstance(value, str) or not 0 < len(value) <= most or not _WORD.fullmatch(value):
        raise ValueError(
            f"{field}: expected a name of 1 to {most} characters without control characters, got {value!r}"
        )
    return value


def _parse_run(text: str) -> _Run:
    """Return the run file's content. Raises ValueError that names the field, its value and what would be
    right."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object, got {type(document).__name__}")
    attempt = _integer(document.get("attempt"), "attempt")
    uid = document.get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= 64 or not _WORD.fullmatch(uid):
        raise ValueError(f"uid: expected the uid of the RLHFJob, 1 to 64 characters, got {uid!r}")
    raw, resume = document.get("resume"), None
    if raw is not None:
        if not isinstance(raw, dict) or not isinstance(raw.get("path"), str) or not raw["path"]:
            raise ValueError(f'resume: expected null or {{"path": "…", "step": N}}, got {raw!r}')
        step = raw.get("step")
        resume = Resume(raw["path"], None if step is None else _integer(step, "resume.step"))
    named = document.get("reference")
    reference = None if named is None else _integer(named, "reference")
    interval = document.get("scrapeIntervalSeconds", 0)
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0 <= interval <= 86400:
        raise ValueError(f"scrapeIntervalSeconds: expected a number of 0 to 86400, got {interval!r}")
    minimize, best = _minimize(document.get("minimize")), _best(document.get("best"))
    wanted = document.get("request")
    if wanted is None:
        return _Run(uid, attempt, resume, Requests(0), reference, float(interval), minimize, best)
    if not isinstance(wanted, dict):
        raise ValueError(f'request: expected {{"id": N, "evaluate": …}}, got {wanted!r}')
    flags: dict[str, bool] = {}
    for name in ("evaluate", "checkpoint", "stop"):
        flags[name] = wanted.get(name, False)
        if not isinstance(flags[name], bool):
            raise ValueError(f"request.{name}: expected true or false, got {flags[name]!r}")
    request = Requests(_integer(wanted.get("id"), "request.id"), **flags)
    return _Run(uid, attempt, resume, request, reference, float(interval), minimize, best)


def _minimize(given: object) -> frozenset[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"minimize: expected a list of names of metrics, got {given!r}")
    return frozenset(given)


def _best(given: object) -> tuple[str, int] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not isinstance(given.get("metric"), str):
        raise ValueError(f'best: expected null or {{"metric": "…", "step": N}}, got {given!r}')
    return given["metric"], _integer(given.get("step"), "best.step")


class EvalStopClient:
    """A trainer's side of the trainer contract.

    Args:
        run_dir: folder of ``run.json``; default ``$EVALSTOP_RUN_DIR``. None: a run without an operator.
        port: where `serve` listens; 0 takes a free port.
        host: address `serve` binds; default ``$POD_IP``, else 127.0.0.1.
        evaluator: version of what computes the scores (prompt set, judge, code), see `set_evaluator`. It is
            published with each score; scores of two versions are not comparable.
        speaks: whether this process reports for the job; default: `speaks_for_the_job`.
        serves: whether this trainer carries out requests. False: the page names no served request, so the
            operator asks for nothing. Default: True, but for a process that evaluates for the trainer's.
        life: id of this trainer process, 1 to 16 of ``0-9a-z``; default: ``$EVALSTOP_LIFE``, which a process
            that evaluates for the trainer's is given (`environment`), else one made at random. Every trainer
            process needs one of its own: launchers restart processes inside one container.
    """

    def __init__(
        self,
        run_dir: Location | None = None,
        port: int = DEFAULT_PORT,
        host: str | None = None,
        *,
        evaluator: str = "1",
        speaks: bool | None = None,
        serves: bool | None = None,
        life: str | None = None,
    ) -> None:
        if life is not None and not _LIFE.fullmatch(life):
            raise ValueError(f"life: expected 1 to 16 of 0-9a-z, got {life!r}")
        self._handed = _Handed.of(os.environ) if life is None else None
        folder = run_dir if run_dir is not None else os.environ.get(RUN_DIR_ENV) or None
        self._run_file = Path(folder) / RUN_KEY if folder is not None else None
        self._host = host or os.environ.get("POD_IP") or "127.0.0.1"
        self._port = port
        self.speaks = speaks_for_the_job() if speaks is None else speaks
        self.serves = self._handed is None if serves is None else serves
        self._life = life if self._handed is None else self._handed.life
        self._server: _Server | None = None

        self._lock = threading.Lock()  # guards everything below; held for dictionary work only
        self._run = _NO_RUN
        self._run_seen = False
        self._warned = ""
        self._evals: dict[str, deque[_Eval]] = {}
        self._totals: dict[tuple[str, str], int] = {}
        self._full_reported = False
        self._named = False  # an eval or a save record carries this attempt
        self._start_told = self._handed is not None  # or by `resumed`; what to evaluate is no start
        self._gauges: dict[str, float] = {}
        if self._handed is not None and self._handed.resumed is not None:
            self._gauges[RESUMED_STEP] = self._handed.resumed
        self._evaluator = _word(evaluator, "evaluator", 128)
        self._evaluator_whole = True  # nothing more of it follows
        self._phases: Phases | None = None  # made with the first phase
        self._place: Path | None = None  # the checkpoint location, once it is known
        self._results = threading.Lock()  # guards the memory of what each prompt scored
        self._memory: Memory | None = None  # made with the first such results
        self._loaded = False  # what an earlier process kept of them
        self._served = 0
        self._news = 0  # counts what the operator must not miss: evals and served requests
        self._read = 0  # of these, how many were on a page that it has read
        self._first = _NO_RUN  # what this process was started with; a later file is for the next one
        self._read_run()
        self._first = self._run._replace(attempt=self._number(self._run))

    # what the operator wants

    @property
    def attempt(self) -> str:
        """Value of the ``attempt`` label: ``<operator's number>-<life>``; constant once used."""
        return f"{self._first.attempt}-{self._life or _Process.life}"

    @property
    def uid(self) -> str:
        """The uid of the RLHFJob this process belongs to; empty without an operator."""
        return self._first.uid

    @property
    def attempt_number(self) -> int:
        """The operator's number alone; 0 without an operator."""
        return self._first.attempt

    @property
    def resume(self) -> Resume | None:
        """The checkpoint the operator wants this process to start from, if it names one."""
        return self._first.resume

    def environment(self) -> dict[str, str]:
        """Return environment variables by which an evaluation in a process of its own reports as this one.

        ``subprocess.run(…, env={**os.environ, **client.environment()})``: an `EvalStopClient` made there has
        this process's life, so that its evals belong to the checkpoints that this process saves. Give them
        to evaluations alone: a trainer that is started again needs a life of its own.
        """
        self._read_run()
        with self._lock:
            began = self._began()
            found = {LIFE_ENV: self.attempt}
        if began is not None:
            found[RESUMED_ENV] = str(began)
        return found

    @property
    def reference(self) -> int | None:
        """The step whose policy is to be scored beside each eval, on the same fresh prompts, if any.

        It changes while the run goes on (a new best): look before each eval, after `poll`.
        """
        with self._lock:
            return self._run.reference

    def poll(self) -> Requests:
        """Read ``run.json`` again; cheap enough for every step.

        A missing, half-written or malformed file changes nothing: the last good content stays in force and
        the fault is logged once.
        """
        self._read_run()
        with self._lock:
            request = self._run.request
            return request if request.id > self._served else Requests(request.id)

    def served(self, request_id: int) -> None:
        """Publish that every request up to this id has been carried out."""
        with self._lock:
            if request_id > self._served:
                self._served = request_id
                self._news += 1

    @property
    def scrape_interval(self) -> float:
        """Seconds between two scrapes, as the operator says; 0: it says nothing, or there is none."""
        with self._lock:
            return self._run.scrape_interval

    @property
    def all_read(self) -> bool:
        """Return whether the operator has read every eval and served request that was reported."""
        with self._lock:
            return self._read >= self._news

    def _read_run(self) -> None:
        if self._run_file is None:
            return
        try:
            with self._run_file.open("rb") as file:
                raw = file.read(_RUN_FILE_LIMIT + 1)
            if len(raw) > _RUN_FILE_LIMIT:
                raise ValueError(f"larger than {_RUN_FILE_LIMIT} bytes")
            run = _parse_run(raw.decode())
        except (OSError, ValueError, RecursionError) as fault:  # JSON and UTF-8 faults are ValueErrors
            with self._lock:
                same = self._warned == str(fault)
                self._warned = str(fault)
            if not same:
                log.warning("%s cannot be used, the last good content stays: %s", self._run_file, fault)
            return
        with self._lock:
            self._warned = ""
            self._run = run
            # A file that came late still names this run, as long as nothing was said under another name.
            if not self._run_seen and not self._named:
                self._first = self._first._replace(uid=run.uid, attempt=self._number(run))
            self._run_seen = True

    def _number(self, run: _Run) -> int:
        """Return the attempt's number: the trainer's own, where this process evaluates for it and may begin
        when the next attempt's file is there already; else that of the file."""
        handed = self._handed.number if self._handed is not None else 0
        return handed or run.attempt

    # what the trainer says

    def resumed(self, step: int) -> None:
        """Say at which step this process really starts (0: afresh). Call it before `serve`.

        Not needed if the process starts where `resume_path` says. A trainer that finds its checkpoint by
        itself (``resume_from_checkpoint=True``) has to call it: else the page of a run that was started again
        says nothing of its start.
        """
        _integer(step, "step")
        if self._server is not None:
            raise RuntimeError("resumed() after serve(): a scrape may have seen another resumed step")
        with self._lock:
            self._gauges[RESUMED_STEP] = step
            self._start_told = True

    def report_eval(
        self,
        metric: str,
        step: int,
        score: float,
        stderr: float | None = None,
        samples: int | None = None,
        *,
        proxy: float | None = None,
        differences: Differences | None = None,
        prompts: int | None = None,
        per_prompt: PerPrompt | None = None,
    ) -> bool:
        """Report one evaluation on held-out data. Returns False if it was ignored: not new, or of no sample.

        Args:
            metric: its name, as ``spec.metrics[].name`` has it.
            step: training step of the policy that was evaluated, >= 0, rising within one process life;
                counted as in `checkpoint_saved` and `set_progress`.
            score: mean over the samples. NaN is allowed and is never taken for a decline.
            stderr: standard error of the score, in the score's unit.
            samples: how many samples it is the mean of. 0 is no evaluation: ignored.
            proxy: reward-model score of the very policy that was evaluated.
            differences: to the policy of step `reference`, on the prompts of this eval.
            prompts: how many prompts it has; several answers to one count once. 0 is no evaluation: ignored.
            per_prompt: what each prompt scored, by a key that is the same in every eval, in any order; of
                several answers to a prompt all scores, or their mean. The eval is then compared with
                earlier ones on the same prompts. What cannot be used is logged, and the eval counts.

        Raises:
            ValueError: a field is not of the type or range above.
        """
        _word(metric, "metric", 200)
        _integer(step, "step")
        if samples is not None:
            _integer(samples, "samples")
        if prompts is not None:
            _integer(prompts, "prompts")
        if differences is not None and not 0 <= differences.reference < step:
            raise ValueError(
                f"differences.reference: expected a step before {step}, got {differences.reference}"
            )
        value = float(score)
        spread = None if stderr is None else float(stderr)
        reward = None if proxy is None else float(proxy)
        if not self.speaks:
            return True
        if samples == 0 or prompts == 0:
            what = "samples" if samples == 0 else "prompts"
            log.warning("eval of %s at step %d ignored: it is the mean of 0 %s", metric, step, what)
            return False
        compared = None if per_prompt is None else self._compared(metric, step, value, per_prompt)
        if compared is not None:
            prompts = compared.prompts
        with self._lock:
            kept = self._evals.get(metric, deque(maxlen=EVALS_KEPT))
            last = kept[-1].step if kept else -1
            full = not kept and len(self._evals) >= METRICS_KEPT
            if step > last and not full:
                self._evals[metric] = kept
                attempt = self.attempt
                parts = (value, spread, samples, reward, differences, self._evaluator, prompts, compared)
                kept.append(_Eval(step, attempt, *parts))
                self._totals[metric, attempt] = self._totals.get((metric, attempt), 0) + 1
                self._named = True
                self._news += 1
                return True
        if full:
            if not self._full_reported:
                self._full_reported = True
                log.warning(
                    "evals of %s ignored: %d other metrics are reported already", metric, METRICS_KEPT
                )
        else:
            log.warning("eval of %s at step %d ignored: step %d was reported already", metric, step, last)
        return False

    def _compared(self, metric: str, step: int, score: float, per_prompt: PerPrompt) -> Compared | None:
        """Return how an eval compares with earlier ones, and keep its results; None: they cannot be used."""
        with self._lock:
            kept, run = self._evals.get(metric), self._run
            place, evaluator = self._place, self._evaluator
            resumed = self._began() if self._handed is None else None  # evals of this life are none to forget
        if kept and step <= kept[-1].step:
            return None  # it is not new, and will be ignored
        try:
            from evalstop_client import prompts as results

            with self._results:
                self._memory = self._memory or results.Memory()
                if place is not None and not self._loaded:
                    self._loaded = True
                    self._memory.load(place, self.uid, step - 1 if resumed is None else int(resumed))
                now = results.Results.of(step, score, evaluator, per_prompt)
                minimize = None if run.minimize is None else metric in run.minimize
                named = run.best[1] if run.best is not None and run.best[0] == metric else None
                compared = self._memory.add(
                    metric, now, minimize=minimize, named=named, began=int(resumed or 0)
                )
                if place is not None:
                    _make_shared(place / SAVES_FOLDER)
                    self._memory.save(place, self.uid)
        except (ImportError, ValueError, TypeError, OverflowError) as fault:
            log.warning("eval of %s at step %d is not compared prompt by prompt: %s", metric, step, fault)
            return None
        except OSError as fault:
            log.warning("results of %s at step %d are not kept over a restart: %s", metric, step, fault)
        for reason in compared.dropped:
            log.warning("eval of %s at step %d is not paired: %s", metric, step, reason)
        return compared

    def set_progress(
        self,
        step: int,
        total_steps: int | None = None,
        *,
        proxy: float | None = None,
        kl: float | None = None,
        loss: float | None = None,
    ) -> None:
        """Set the step now reached, of how many, and reward-model score, KL and loss if known.

        Steps are counted as in `report_eval` and `checkpoint_saved`.
        """
        gauges: dict[str, float] = {STEP: _integer(step, "step")}
        if self._phases is not None:
            self._phases.reached(step)
        if total_steps is not None:
            gauges[TOTAL_STEPS] = _integer(total_steps, "total_steps")
        if loss is not None:
            gauges[LOSS] = float(loss)
        self._set(gauges, proxy, kl)

    def phase(self, name: str, *, training_gpus: bool = False) -> AbstractContextManager[None]:
        """Count what is done within as a phase of a step (rollout, reward, train); `set_progress` ends a
        step.

        Args:
            name: of the phase, 1 to 64 characters.
            training_gpus: whether it needs the training GPUs. Whether others could use them meanwhile, and
                for how
                long, follows from that: see ``evalstop sim sharing advise``.

        Raises:
            ValueError: it is no such name.
        """
        from evalstop_client import phases

        _word(name, "name", 64)
        if self._phases is None:
            self._phases = phases.Phases()
            reached = self._gauges.get(STEP)
            if reached is not None:
                self._phases.reached(int(reached))
        return self._phases.phase(name, training_gpus)

    def set_proxy(self, reward: float, kl: float | None = None) -> None:
        """Set the current reward-model score, and the KL to the initial policy in nats per response."""
        self._set({}, reward, kl)

    def _set(self, gauges: dict[str, float], proxy: float | None, kl: float | None) -> None:
        if proxy is not None:
            gauges[PROXY_REWARD] = float(proxy)
        if kl is not None:
            gauges[KL] = float(kl)
        with self._lock:
            self._gauges.update(gauges)

    def checkpoint_saved(
        self,
        step: int,
        path: Folders | None = None,
        *,
        location: Location | None = None,
        files: Mapping[str, int] | None = None,
        barrier: Callable[[], object] | None = None,
    ) -> None:
        """Record that the checkpoint of this step is complete: ALL ranks have saved, every file is closed.

        With ``path`` a save record is written: names and sizes of all files, the proof by which the operator
        tells this checkpoint from a torn one. A record that cannot be written is logged, and costs this
        checkpoint: it does not count as whole where the process has recorded others.

        Args:
            step: the step of the policy that was saved, the same number as in `report_eval` and
                `set_progress`.
            path: the checkpoint's folder, or its folders where each role has one of its own. One that is no
                direct part of ``location`` is recorded with names from the location on.
            location: the checkpoint location; default: the folder that ``path`` lies in. Say it for folders
                that lie deeper, or at several places.
            files: names and bytes, if they are not to be listed here.
            barrier: waits until every rank has come here, for example ``torch.distributed.barrier``. Then
                call this on every rank: the others wait, and the one that speaks records.

        Raises:
            ValueError: a field is not of the type above, or ``path`` lies outside of ``location``.
        """
        _integer(step, "step")
        if barrier is not None:
            barrier()
        if not self.speaks:
            return
        if path is not None:
            self._record(step, _folders(path), location, files)
        with self._lock:
            self._gauges[CHECKPOINT_STEP] = step

    def _lies_at(self, place: Path) -> None:
        with self._lock:
            self._place = place

    def checkpoint_begins(self, path: Folders, location: Location | None = None) -> None:
        """Forget the records of this folder before it is written, perhaps over an earlier save.

        Needed by writers that write in place, when a step is saved again after a resume: files of the same
        sizes cannot tell half of the new checkpoint beside half of the old one.
        """
        if not self.speaks:
            return
        folders = _folders(path)
        place, name = _place(folders, location), folders[0].name
        self._lies_at(place)
        for record in _records(place):
            if record.name == name:
                (place / SAVES_FOLDER / f"{record.attempt}-{record.step}.json").unlink(missing_ok=True)

    def _record(
        self,
        step: int,
        folders: Sequence[Path],
        location: Location | None,
        files: Mapping[str, int] | None,
    ) -> None:
        place = _place(folders, location)
        self._lies_at(place)
        try:
            listed = _listed(folders, place) if files is None else dict(files)
            if not listed:
                log.warning("no save record of step %d: there are no files in %s", step, folders[0])
                return
            with self._lock:
                self._named = True
            others = _records(place)
            sequence = max((record.sequence for record in others), default=0) + 1
            record = Saved(self.uid, self.attempt, step, sequence, folders[0].name, listed)
            _write_record(place, record)
            _clear_records(place, record, others)
        except OSError as fault:
            log.warning("no save record of step %d, the checkpoint may not count as whole: %s", step, fault)

    def resume_path(self, location: Location, usable: Callable[[str], bool] | None = None) -> str | None:
        """Return where this process starts; None: afresh. Asked before the first step, by every rank.

        The newest whole checkpoint of this attempt, since a restarted process must not go back to where its
        attempt began; else what ``run.json`` names; else the newest whole one of any attempt (a preempted
        run). Whole means: by its save record, every file is there with its size. Its step is published as
        that of the start (None: 0), unless `resumed` says another.

        Args:
            location: the folder the checkpoints are written to.
            usable: a further look at a folder that is whole by its record; False passes it over.
        """
        place = Path(location)
        if self.speaks:
            self._lies_at(place)
        uid, number, named = self.uid, self.attempt_number, self.resume

        def newest(records: Iterable[Saved]) -> str | None:
            for record in records:
                folder = str(record.folder(place))
                if record.whole(place) and (usable is None or usable(folder)):
                    self._begins(record.step)
                    return folder
            return None

        found = sorted(_records(place), key=lambda record: -record.sequence)
        own = [r for r in found if r.uid == uid and r.attempt.partition("-")[0] == str(number)]
        start = newest(own)
        if start is None and named is not None:
            start = str(place / named.path)
            self._begins(named.step)
        elif start is None:
            start = newest(found)
        if start is None:
            self._begins(0)
        return start

    def _begins(self, step: int | None) -> None:
        """Note where this process was told to start; None: the step is not known. What a scrape may have seen
        stays, and what the trainer says itself goes first."""
        with self._lock:
            seen = self._server is not None and self._began() is not None
            if step is not None and not seen and not self._start_told:
                self._gauges[RESUMED_STEP] = step

    def _began(self) -> int | None:
        """Return the step of the start as the page says it; None: the page says none; the lock is held.

        A process that was started again may go on from a checkpoint, one of a first attempt too, and nobody
        knows whether it does before its trainer has asked which, or has said so.
        """
        said = self._gauges.get(RESUMED_STEP)
        return None if said is None else int(said)

    @property
    def evaluator(self) -> str:
        """The version of what computes the scores."""
        with self._lock:
            return self._evaluator

    def set_evaluator(self, version: str, *, whole: bool = True) -> None:
        """Set the version of what computes the scores from now on (judge, prompts).

        It names what makes scores comparable: judge's model and prompt, prompt set, the scoring code's
        version, decoding settings. It is constant while these are: no time, commit, seed, step or id of the
        judge's answer. Scores of two versions are not compared, so with another one at each eval no rule can
        stop the run, and its best is the newest eval.

        ``whole`` False: more of it is known at the first eval only. Until then the page names none: a process
        that goes on with a run would be taken for another evaluator, and the run's evals for incomparable.
        """
        with self._lock:
            self._evaluator = _word(version, "version", 128)
            self._evaluator_whole = whole

    # what a scrape sees

    def exposition(self) -> bytes:
        """Return the body of a scrape, all of one moment: Prometheus text format 0.0.4."""
        return self._page()[0]

    def _page(self) -> tuple[bytes, int]:
        """Return the body, and how much of what the operator must not miss is on it."""
        if not self.speaks:
            return b"", 0
        with self._lock:
            evals = [(metric, tuple(kept)) for metric, kept in self._evals.items()]
            totals = dict(self._totals)
            gauges = dict(self._gauges)
            if (began := self._began()) is not None:
                gauges[RESUMED_STEP] = began
            served, news = self._served, self._news
            evaluator = self._evaluator if self._evaluator_whole or evals else None
            run, attempt = self._first, self.attempt

        page = _eval_families(evals, EVALS_KEPT)
        most = EVALS_KEPT
        while most > 1 and sum(len(line.encode()) for line in page) > EVAL_BYTES:
            most //= 2
            page = _eval_families(evals, most)
        counts = [({"metric": metric, "attempt": of}, count) for (metric, of), count in totals.items()]
        page += _family(EVALS_TOTAL, "Evaluations reported by this process.", counts, "counter")
        for name, text in _GAUGES.items():
            if name in gauges:
                page += _family(name, text, [({}, gauges[name])])
        if self._phases is not None:
            page += _phase_families(self._phases)
        if self.serves:
            page += _family(REQUEST_SERVED, "Id of the last request carried out.", [({}, served)])
        if evaluator is not None:
            page += _family(EVALUATOR_INFO, "What computes the scores.", [({"version": evaluator}, 1)])
        if run.uid:
            whose = {"uid": run.uid, "attempt": attempt}
            page += _family(RUN_INFO, "Whose page this is.", [(whose, 1)])
        return "".join(page).encode(), news

    def _was_read(self, news: int) -> None:
        """Note that the operator has read a page with so much on it."""
        with self._lock:
            self._read = max(self._read, news)

    def serve(self) -> int:
        """Answer scrapes on ``/metrics`` from a daemon thread; returns the port. A silent pod binds nothing.

        Raises:
            OSError: the address cannot be bound; the message names it.
        """
        if not self.speaks:
            return 0
        if self._server is None:
            try:
                self._server = _Server(self._host, self._port, self)
            except OSError as fault:
                raise OSError(
                    fault.errno,
                    f"metrics cannot be served on {self._host}:{self._port} ({fault.strerror}); "
                    "expected the pod's own address ($POD_IP) and a free port",
                ) from fault
            threading.Thread(
                target=self._server.serve_forever, args=(0.2,), name="evalstop-metrics", daemon=True
            ).start()
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving and free the port."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> EvalStopClient:
        self.serve()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Samples = Sequence["tuple[Mapping[str, str], float]"]  # labels and value of each


def _family(name: str, text: str, samples: _Samples, kind: str = "gauge") -> list[str]:
    """Return the lines of one metric; none if it has no sample."""
    if not samples:
        return []
    lines = [f"# HELP {name} {text}\n# TYPE {name} {kind}\n"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
        lines.append(f"{name}{{{inner}}} {_number(value)}\n" if inner else f"{name} {_number(value)}\n")
    return lines


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    number = float(value)
    if math.isnan(number):
        return "NaN"
    return repr(number) if math.isfinite(number) else ("+Inf" if number > 0 else "-Inf")


def _eval_families(evals: Sequence[tuple[str, Sequence[_Eval]]], most: int) -> list[str]:
    """Return what is known of the newest ``most`` evals of each metric, all of it under step and attempt."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {name: [] for name in _OF_AN_EVAL}
    for metric, kept in evals:
        paired = {point.step for point in kept[-PAIRS_KEPT:]}
        for point in kept[-most:]:
            key = {"metric": metric, "step": str(point.step), "attempt": point.attempt}
            found[EVAL_SCORE].append(({**key, "evaluator": point.evaluator}, point.score))
            compared = point.compared
            of = {} if compared is None else {"prompt_set": compared.digest}
            if point.prompts is not None:
                found[EVAL_PROMPTS].append(({**key, **of}, point.prompts))
            if compared is not None and point.step in paired:
                for pair in compared.pairs:
                    at = {**key, "reference": str(pair.reference)}
                    found[PAIR_PROMPTS].append(({**at, **of}, pair.prompts))
                    found[PAIR_MEAN].append((at, pair.mean))
                    found[PAIR_VARIANCE].append((at, pair.variance))
                for reason in compared.dropped:
                    found[PAIRS_DROPPED].append(({**key, "reason": reason}, 1))
            beside = ((EVAL_STDERR, point.stderr), (EVAL_SAMPLES, point.samples), (EVAL_PROXY, point.proxy))
            for name, value in beside:
                if value is not None:
                    found[name].append((key, value))
            if point.differences is not None:
                reference, *numbers = point.differences
                for name, number in zip((PAIRED_PROMPTS, PAIRED_MEAN, PAIRED_VARIANCE), numbers):
                    found[name].append(({**key, "reference": str(reference)}, number))
    return [line for name, text in _OF_AN_EVAL.items() for line in _family(name, text, found[name])]


def _phase_families(phases: Phases) -> list[str]:
    """Return how long phases took so far, and of the newest steps the time away from training GPUs and on
    them."""
    totals, steps = phases.seen()
    of_phases = [({"phase": name, "gpus": gpus}, seconds) for name, gpus, seconds in totals]
    of_steps = [
        ({"step": str(one.step), "gpus": gpus}, seconds)
        for one in steps
        for gpus, seconds in (("other", one.away), ("training", one.training))
    ]
    return [
        *_family(PHASE_SECONDS, "Seconds in a phase of a step.", of_phases, "counter"),
        *_family(STEP_SECONDS, "Seconds of a step, on the training GPUs or elsewhere.", of_steps),
    ]


_OF_AN_EVAL = {
    EVAL_SCORE: "Score of one evaluation on held-out data.",
    EVAL_STDERR: "Standard error of that score.",
    EVAL_SAMPLES: "Samples that score is the mean of.",
    EVAL_PROMPTS: "Prompts of that evaluation.",
    EVAL_PROXY: "Reward-model score of the policy of that eval.",
    PAIRED_PROMPTS: "Prompts scored for the reference step too.",
    PAIRED_MEAN: "Mean difference to the reference step.",
    PAIRED_VARIANCE: "Variance of one such difference.",
    PAIR_PROMPTS: "Prompts that the eval of the reference step had too.",
    PAIR_MEAN: "Mean difference to that eval, prompt by prompt.",
    PAIR_VARIANCE: "Variance of one such difference.",
    PAIRS_DROPPED: "1: why that evaluation has no pair, or none with the best.",
}
_GAUGES = {
    STEP: "Training step reached.",
    TOTAL_STEPS: "Training steps planned.",
    PROXY_REWARD: "Reward-model score of the current policy.",
    KL: "KL divergence from the initial policy, nats per response.",
    LOSS: "Training loss of the step, falling as training gets on.",
    CHECKPOINT_STEP: "Step of the last complete checkpoint.",
    RESUMED_STEP: "Step this process resumed from; 0: started afresh.",
}


# save records


def _folders(path: Folders) -> list[Path]:
    """Return the folders of a checkpoint, absolute. Raises ValueError if they are none, or of several
    names."""
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not given or any("://" in os.fspath(one) for one in given):
        raise ValueError(f"path: expected the folder of a checkpoint on a volume, got {path!r}")
    folders = [Path(os.path.abspath(one)) for one in given]
    if len({folder.name for folder in folders}) > 1:
        raise ValueError(f"path: expected folders of one name, one for each role, got {path!r}")
    return folders


def _place(folders: Sequence[Path], location: Location | None) -> Path:
    """Return the checkpoint location: as it was said, else the folder that holds the checkpoint's."""
    if location is not None:
        place = Path(os.path.abspath(location))
    elif len(folders) == 1:
        place = folders[0].parent
    else:
        place = Path(os.path.commonpath(folders))
    for folder in folders:
        if place not in folder.parents:
            raise ValueError(f"path: expected a folder inside of the location {place}, got {folder}")
    return place


def _listed(folders: Sequence[Path], place: Path) -> dict[str, int]:
    """Return names and bytes of all files: inside the folder, or inside the location for deeper ones.

    Raises:
        OSError: one of the folders is not there, or a file went while it was looked at.
    """
    top = folders[0] if len(folders) == 1 and folders[0].parent == place else place

    def fail(fault: OSError) -> None:
        raise fault

    found: dict[str, int] = {}
    for folder in folders:
        for here, _, names in os.walk(folder, onerror=fail):
            for name in names:
                path = Path(here, name)
                found[path.relative_to(top).as_posix()] = path.stat().st_size
    return found


def _records(place: Path) -> list[Saved]:
    """Return the location's save records; what is none is passed over."""
    try:
        names = [entry.name for entry in os.scandir(place / SAVES_FOLDER)]
    except OSError:
        return []
    found = []
    for name in names:
        match = _RECORD.fullmatch(name)
        if match is None:
            continue
        try:
            with open(place / SAVES_FOLDER / name, "rb") as file:
                document = json.loads(file.read(_RECORD_LIMIT))
            files = {str(key): _integer(size, "size") for key, size in document["files"].items()}
            uid, sequence = str(document.get("uid", "")), _integer(document.get("sequence", 0), "sequence")
            folder = str(document["name"])
            found.append(Saved(uid, match["attempt"], int(match["step"]), sequence, folder, files))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # written by nobody we know, or going just now
    return found


def saved_names(location: Location) -> frozenset[str]:
    """Return the names of the checkpoints that the location has save records of."""
    return frozenset(record.name for record in _records(Path(location)))


def _write_record(place: Path, record: Saved) -> None:
    """Publish a record: whole or not at all, and durable."""
    saves = place / SAVES_FOLDER
    _make_shared(saves)
    final = saves / f"{record.attempt}-{record.step}.json"
    draft = saves / f".tmp-{record.attempt}"  # of one process, which writes one at a time
    with draft.open("w") as file:
        json.dump(record._asdict(), file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(final)
    folder = os.open(saves, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_shared(saves: Path) -> None:
    """Make the folder so that access Jobs can write beside it: they may run under another user."""
    saves.parent.parent.mkdir(parents=True, exist_ok=True)
    for folder, mode in ((saves.parent, 0o1777), (saves, 0o777)):
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        try:
            folder.chmod(mode | (folder.stat().st_mode & stat.S_ISGID))
        except OSError as fault:  # a file system without modes
            log.info("%s keeps its mode: %s", folder, fault)


def _clear_records(place: Path, newest: Saved, others: Sequence[Saved]) -> None:
    """Drop the records that this save made false, and most of those whose checkpoint is gone."""
    saves = place / SAVES_FOLDER
    without_files = 0
    for record in sorted(others, key=lambda record: -record.sequence):
        if (record.attempt, record.step) == (newest.attempt, newest.step):
            continue
        overwritten = record.name == newest.name
        without_files += record.rotated_away(place)
        if overwritten or (without_files > RECORDS_KEPT and record.rotated_away(place)):
            (saves / f"{record.attempt}-{record.step}.json").unlink(missing_ok=True)
    for draft in saves.glob(".tmp-*"):  # of processes that were killed
        draft.unlink(missing_ok=True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # peers that connect and say nothing must not hold up a scrape

    def __init__(self, host: str, port: int, client: EvalStopClient) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.client = client
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind asks DNS for the host's name, which can take seconds in a pod.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # s, for a peer that connects and says nothing
    server_version = "evalstop-client"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        body, news = self.server.client._page()
        scraped = (
            self.command != "HEAD" and self.headers.get("User-Agent") == SCRAPER and not self._peer_left()
        )
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            if scraped:
                self.server.client._was_read(news)

    do_HEAD = do_GET

    def _peer_left(self) -> bool:
        """Return whether whoever asked has closed the connection: a process that was held up for some seconds
        answers scrapes that timed out meanwhile, and nobody reads that."""
        self.connection.setblocking(False)  # with a timeout it would wait for more of the request
        try:
            left: bool = self.connection.recv(1, socket.MSG_PEEK) == b""
            return left
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(self.timeout)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
