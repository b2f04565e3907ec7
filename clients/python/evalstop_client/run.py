"""A run that is watched: what the adapters are made of, and what a loop of one's own uses.

    run = Run("win_rate")
    step = load(run.resume_path(folder))
    run.begin(step, total_steps)
    while step < total_steps and not run.ends:
        step = train_one_step()
        wanted = run.step(step)
        if step % 50 == 0 or wanted.checkpoint or wanted.evaluate:
            run.saved(step, save())
        if step % 50 == 0 or wanted.evaluate:
            run.evaluated(step, score, stderr, samples)
    run.finish()

Nothing here ends a run: what fails is logged once, and the training goes on.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from evalstop_client import logs as log_of
from evalstop_client import ranks as ranks_of
from evalstop_client.client import SAVES_FOLDER, EvalStopClient, Folders, Location, Requests, saved_names
from evalstop_client.prompts import PerPrompt, error_of

EXIT_STOPPED = 128 + signal.SIGTERM  # 143: no Job takes it for a run that is complete
STOP_GRACE = 300.0  # s that a run which was asked to stop waits for its SIGTERM
_VERSION_MAX = 128  # characters of an evaluator's version
_LOOK = 0.1  # s between two looks at whether something has happened

log = logging.getLogger("evalstop")


class StoppedRun(Exception):
    """The end of a run that was asked to stop, where the process is not ours to end: an actor of Ray's. Its
    driver ends with 1 then, and not with 0, which says that the run is complete."""


class _Eval(NamedTuple):
    """An eval that waits for the checkpoint of its step."""

    step: int
    logs: Mapping[str, Any]
    stderr: float | None
    samples: int | None
    proxy: float | None
    prompts: int | None
    per_prompt: PerPrompt | None


class Run:
    """One trainer process of a watched run. All ranks make one, and make the same calls.

    Args:
        metric: what the run is judged by, as ``spec.metrics[].name`` has it.
        client: the contract's client; default: made from the pod's environment.
        ranks: how the processes agree; default: by ``torch.distributed``, if it is in use.
        driver: this process drives the training alone, and its workers make no `Run` (Ray): it reports for
            the job in whichever pod it is.
        signals: whether SIGTERM is waited for (it ends the run after the step, with a checkpoint).
        stop_grace: s that a run which was asked to stop stays up until SIGTERM comes.
    """

    def __init__(
        self,
        metric: str,
        client: EvalStopClient | None = None,
        *,
        ranks: ranks_of.Ranks | None = None,
        driver: bool = False,
        signals: bool = True,
        stop_grace: float = STOP_GRACE,
    ) -> None:
        self.metric = metric
        self.client = client if client is not None else EvalStopClient(speaks=driver or None)
        self.leaving = False  # SIGTERM has come, to this rank or to another
        self.stopped = False  # the operator has asked for the end of the training
        self._ranks = ranks
        self._signals = signals
        self._grace = stop_grace
        self._reported: set[str] = set()
        self._before: dict[int, Any] = {}  # handlers that were there before
        self._agrees = True
        self.asked = 0  # id of what the last step was asked for
        self._pending: _Eval | None = None
        self._judge = ""  # the evaluator's version without settings, once there are any
        self._judged_by: dict[str, Any] = {}  # settings of the evals, by name
        self._scored: PerPrompt | None = None  # of the eval that comes next
        self._saved = -1  # step of the last whole checkpoint
        self._others: dict[str, None] = {}  # further metrics, in the order they were seen
        self._named = False  # whether the log has had the metric, or was said to lack it
        self._terminated = False  # SIGTERM has come to this very process
        self._lying: frozenset[str] = frozenset()  # checkpoints that were there at the beginning

    # where it starts

    def resume_path(self, location: Location, usable: Callable[[str], bool] | None = None) -> str | None:
        """Return the checkpoint to go on from, the same in every rank; None: start afresh.

        It is the newest whole one of this run's own attempt, else what the operator names: see
        `EvalStopClient.resume_path`. A folder that looks like a checkpoint and has no save record is passed
        over, since it may be torn.
        """
        found = None
        together = self._together()
        with self.guarded("finding the checkpoint to resume from"):
            if self.client.speaks or together.size == 1:
                found = self.client.resume_path(location, usable)
                if found is None and (left := _unrecorded(Path(location))):
                    log.warning(
                        "%s has no save record in %s (%s), so nothing says that it is whole: starting "
                        "afresh. To go on from it, load it yourself",
                        left,
                        location,
                        SAVES_FOLDER,
                    )
        with self.guarded("telling the other ranks where to resume"):
            found = together.one(found)
        return found

    def begin(self, step: int = 0, total_steps: int | None = None, location: Location | None = None) -> None:
        """Say at which step the training really starts, and answer scrapes from now on.

        Args:
            step: 0: afresh.
            total_steps: how many are planned.
            location: the folder of the checkpoints, of a trainer that writes a step's folder anew in place
                when it comes to that step again: what was recorded of it is forgotten before.
        """
        with self.guarded("reporting the first step"):
            self.client.resumed(step)
            self.client.set_progress(step, total_steps)
        with self.guarded("answering scrapes"):
            self.client.serve()
        with self.guarded("waiting for SIGTERM"):
            if self._signals and threading.current_thread() is threading.main_thread():
                self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminate)
        with self.guarded("reading save records"):
            if location is not None and self.client.speaks:
                self._lying = saved_names(location)
        with self.guarded("setting up a group with the other ranks"):
            self._ranks = self._together()
            if self._ranks.size == 1 and ranks_of.find() is None:
                self._agrees = self.client.serves = False
                log.warning(
                    "WORLD_SIZE is %s and torch.distributed is not set up: what the operator asks for is "
                    "ignored, since a rank that acts alone ends the run",
                    os.environ.get("WORLD_SIZE"),
                )

    # each step

    def step(
        self,
        step: int,
        total_steps: int | None = None,
        *,
        proxy: float | None = None,
        kl: float | None = None,
        loss: float | None = None,
        folder: Location | None = None,
    ) -> Requests:
        """Return what is to be done after this step, the same in every rank.

        What the step before was asked for has been done by now, and the operator is told so.

        Args:
            step: how many are done.
            total_steps: how many are planned.
            proxy: reward-model score of the current policy.
            kl: its KL to the initial policy, nats per response.
            loss: training loss.
            folder: where a checkpoint of this step would be written.
        """
        self.flush()
        mine = [0, int(self._terminated)]
        with self.guarded("reading the operator's requests"):
            self.client.served(self.asked)
            self.client.set_progress(step, total_steps, proxy=proxy, kl=kl, loss=loss)
            if folder is not None and Path(folder).name in self._lying:
                self.client.checkpoint_begins(folder)
            if self.client.speaks:
                wanted = self.client.poll()
                mine[0] = (wanted.id << 3) | wanted.evaluate | (wanted.checkpoint << 1) | (wanted.stop << 2)
        word, leaving = self._agreed(mine)
        self.asked = word >> 3
        self.stopped = self.stopped or bool(word & 4)
        self.leaving = self.leaving or bool(leaving)
        return Requests(self.asked, bool(word & 1), bool(word & 2) or self.ends, self.ends)

    @property
    def ends(self) -> bool:
        """Return whether the training is to end after this step: by a request, or SIGTERM to any rank."""
        return self.stopped or self.leaving

    def _agreed(self, mine: list[int]) -> list[int]:
        """Return the request that one rank has read, and whether any rank is to leave.

        Without a way to agree nothing is obeyed: a rank that acts alone ends the run.
        """
        together = self._together()
        if not self._agrees:
            return [0, mine[1]]
        with self.guarded("agreeing with the other ranks; requests are ignored from now on"):
            return together.highest(mine)
        self._agrees = False
        return [0, mine[1]]

    def saved(self, step: int, path: Folders, location: Location | None = None) -> None:
        """Record that this rank's files of the step's checkpoint are written; called by every rank.

        One rank records it when all have come here. An asynchronous save: call it when the write is through.
        """
        together = self._together()
        with self.guarded("recording a checkpoint"):
            barrier = together.barrier if together.size > 1 else None
            self.client.checkpoint_saved(step, path, location=location, barrier=barrier)
            self._saved = step
        self.flush()

    def evaluated_by(self, *, whole: bool = True, **settings: Any) -> None:
        """Add settings of the evals to the evaluator's version, so that scores under others are not compared.

        As in ``temperature=0.6, k=8, tokens=2048, prompts="aime.parquet"``; None: not known, left out. Those
        of earlier calls stay. ``whole`` False: more of them are known at the first eval only, and until then
        the page names no version. Settings are constants of the run: no seed, step or time, for evals under
        two versions are not compared (`EvalStopClient.set_evaluator`).
        """
        self._judge = self._judge or self.client.evaluator
        self._judged_by.update({name: value for name, value in settings.items() if value is not None})
        version = version_of(self._judge, self._judged_by) if self._judged_by else self._judge
        self.client.set_evaluator(version, whole=whole)

    def scored(self, per_prompt: PerPrompt) -> None:
        """Hand over what each prompt scored in the eval that is reported next, by the prompt's key.

        For trainers whose eval ends in a log: call it where the results are known. Of all ranks together, or
        the pairs are dropped. See `EvalStopClient.report_eval`.
        """
        self._scored = per_prompt

    def evaluated(
        self,
        step: int,
        score: Any,
        stderr: float | None = None,
        samples: int | None = None,
        *,
        proxy: float | None = None,
        prompts: int | None = None,
        per_prompt: PerPrompt | None = None,
    ) -> None:
        """Report an eval: at once if the step's checkpoint is saved, else with it, or with the next step.

        Args:
            step: of the policy that was evaluated.
            score: mean on held-out data, or a log of several metrics by name; what it says of the standard
                error is used too. Metrics of two logs of one step are put together.
            stderr: standard error of the score; default: that of the log, else from ``per_prompt``.
            samples: how many samples it is the mean of.
            proxy: reward-model score of the very policy that was evaluated.
            prompts: how many prompts it has; several answers to one count once.
            per_prompt: what each prompt scored, by its key; default: what was handed to `scored`.
        """
        with self.guarded("taking an eval"):
            per_prompt, self._scored = self._scored if per_prompt is None else per_prompt, None
            logs = dict(score) if isinstance(score, Mapping) else {self.metric: score}
            before = self._pending
            if before is not None and before.step == step:
                logs = {**before.logs, **logs}
                stderr = before.stderr if stderr is None else stderr
                samples = before.samples if samples is None else samples
                proxy = before.proxy if proxy is None else proxy
                prompts = before.prompts if prompts is None else prompts
                per_prompt = before.per_prompt if per_prompt is None else per_prompt
            elif before is not None:
                self.flush()
            self._pending = _Eval(step, logs, stderr, samples, proxy, prompts, per_prompt)
        if self._saved == step:
            self.flush()

    def flush(self) -> None:
        """Report the eval that waits, if one does."""
        eval_, self._pending = self._pending, None
        if eval_ is None:
            return
        with self.guarded("reporting an eval"):
            found = log_of.read(self.metric, eval_.logs, eval_.samples)
            stderr = eval_.stderr if eval_.stderr is not None else found.stderr
            if stderr is None and found.score is not None and eval_.per_prompt is not None:
                with self.guarded("computing the standard error of what each prompt scored"):
                    stderr = error_of(found.score, eval_.per_prompt)
            if found.score is not None:
                self._named = True
                self.client.report_eval(
                    self.metric,
                    eval_.step,
                    found.score,
                    stderr,
                    found.samples,
                    proxy=eval_.proxy,
                    prompts=eval_.prompts,
                    per_prompt=eval_.per_prompt,
                )
            elif not self._named and self.client.speaks:
                self._named = True
                there = ", ".join(sorted(found.others)) or "none"
                log.warning("no metric %r in the first eval; there are: %s", self.metric, there)
            self._report_others(eval_.step, found)

    def _report_others(self, step: int, found: log_of.Reading) -> None:
        """Report the further metrics: for guardrails, and for the operator to name where one is missing."""
        for name, value in found.others.items():
            if name not in self._others and len(self._others) >= log_of.MOST:
                continue
            try:
                self.client.report_eval(name, step, value, samples=found.samples)
                self._others[name] = None
            except ValueError:  # a name that no page may have
                continue

    # its end

    def finish(self) -> None:
        """End the run as the operator expects it; call it last, in every rank.

        A run that is complete stays until its last eval was read, at most two scrape intervals, and returns.
        One that was asked to stop stays until SIGTERM comes and leaves with 143. One that was ended by
        SIGTERM leaves with 143 at once.
        """
        self.flush()
        with self.guarded("waiting for the operator"):
            self.linger()
        with self.guarded("closing"):
            self.client.close()
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self.ends:
            sys.exit(EXIT_STOPPED)

    def linger(self) -> None:
        """Say that the last request was carried out, wait as `finish` does, and return."""
        self.client.served(self.asked)
        if self.leaving:
            return
        if self.stopped:
            self._wait(self._grace, lambda: self._terminated)
        elif self.client.speaks:
            longest = 2 * self.client.scrape_interval
            self._wait(longest, lambda: self.client.all_read or self._terminated)

    def not_complete(self) -> None:
        """Raise `StoppedRun` if the run was asked to stop, and SIGTERM has not come while it waited."""
        if self.stopped:
            raise StoppedRun(
                f"asked to stop, and no SIGTERM has come within {self._grace:g} s: this ends with an error, "
                "since 0 would say that the run is complete; the next start goes on from the newest whole "
                "checkpoint"
            )

    def _wait(self, seconds: float, over: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not over() and time.monotonic() < end:
            time.sleep(_LOOK)

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    # what all of it rests on

    def _together(self) -> ranks_of.Ranks:
        """Return how the ranks agree. Until ``torch.distributed`` is set up each is alone."""
        if self._ranks is not None:
            return self._ranks
        with self.guarded("setting up a group with the other ranks"):
            found = ranks_of.find()
            if found is not None and found.size > 1:
                self._ranks = found
                return found
        return ranks_of.Ranks()

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Let no error out: it is logged, once for each thing that was being done."""
        try:
            yield
        except Exception as fault:
            if what not in self._reported:
                self._reported.add(what)
                log.warning(
                    "EvalStop: %s failed, the training goes on: %s: %s", what, type(fault).__name__, fault
                )
                log.debug("EvalStop: %s", what, exc_info=True)


def version_of(version: str, settings: Mapping[str, Any]) -> str:
    """Return an evaluator's version with its settings, as in ``1;k=8;temperature=0.6``; long ones as a
    digest."""
    words = [version, *(f"{name}={settings[name]}" for name in sorted(settings))]
    text = ";".join(words)
    if len(text) <= _VERSION_MAX and text.isprintable():
        return text
    return f"{version[:64]};{blake2b(text.encode(errors='replace'), digest_size=8).hexdigest()}"


def _unrecorded(location: Path) -> str:
    """Return the name of a folder that may be a checkpoint; empty if there is none."""
    try:
        names = sorted(entry.name for entry in os.scandir(location) if entry.is_dir())
    except OSError:
        return ""
    return next((name for name in reversed(names) if not name.startswith(".")), "")
