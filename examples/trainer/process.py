"""One trainer process: train, evaluate, save, report, obey; from its start to its exit code."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from evalstop_client.client import Differences, EvalStopClient
from evalstop_client.group import Group, Leaving, OperatorTickets, TicketFile, Tickets
from examples.engine.model import Weights
from examples.rollouts.learner import SequenceTraining
from examples.trainer.checkpoints import CheckpointError, CheckpointFolder, load, read
from examples.trainer.group_updates import GroupUpdates
from examples.trainer.policy import Parameters
from examples.trainer.settings import GROUP_AUTO, RESUME_AUTO, RESUME_FRESH, Settings
from examples.trainer.task import Floats
from examples.trainer.termination import EXIT_TERMINATED, Termination
from examples.trainer.training import Progress, Training
from examples.trainer.updates import Updates

log = logging.getLogger(__name__)

EXIT_DONE = 0


class TrainerProcess:
    """The loop around `Training` that makes it a citizen of the cluster.

    A follower (completion index above 0) computes the same run but writes and reports nothing: it stands for
    a data-parallel worker.
    """

    def __init__(self, settings: Settings, client: EvalStopClient, termination: Termination) -> None:
        self.settings = settings
        self.client = client
        self.termination = termination
        self.training: Training | SequenceTraining = _training(settings, client, termination)
        self.leads = settings.index == 0
        self.folder = (
            CheckpointFolder(settings.checkpoints, settings.keep)
            if settings.checkpoints is not None
            else None
        )
        self._saved = -1  # step of the last checkpoint
        self._evaluated = -1
        self._reference: tuple[int, Parameters | Weights | None] | None = (
            None  # step and policy, once looked for
        )

    def run(self) -> int:
        """Train to the end or to a request to leave; returns the exit code.

        Raises:
            CheckpointError: the checkpoint to resume from cannot be used.
            OSError: metrics cannot be served, or the last checkpoint cannot be written.
        """
        training, settings = self.training, self.settings
        if self.leads and self.folder is not None:
            self.folder.clean()
        self._resume()
        self.client.resumed(training.step)
        self.client.set_progress(training.step, settings.steps)
        port = self.client.serve()
        if self.leads:
            log.info("metrics at http://%s:%d/metrics, attempt %s", settings.host, port, self.client.attempt)
        if training.step == 0:
            self._save_or_warn()
            self._evaluate()
        while training.step < settings.steps:
            began = time.monotonic()
            try:
                progress = self._advance(began)
            except Leaving:
                return self._leave()
            step = training.step
            proxy, kl = float(progress.proxy[0]), float(progress.kl[0])
            # What policy gradient descends on: the reward after its KL penalty, with the sign turned.
            loss = training.recipe.kl * kl - proxy
            self.client.set_progress(step, settings.steps, proxy=proxy, kl=kl, loss=loss)
            # The checkpoint first: when the score is seen, there is something to keep.
            if step % settings.checkpoint_every == 0:
                self._save_or_warn()
            if step % settings.eval_every == 0:
                self._evaluate()
            if self._serve_requests():
                return self._stand_by()
            until = began + settings.step_seconds
            if isinstance(training, SequenceTraining):
                until = max(until, training.generated + settings.train_seconds)
            if self.termination.wait(until - time.monotonic()):
                return self._leave()
        try:
            self._save()
        finally:
            self._evaluate()
        if self.leads:
            log.info("done: step %d of %d", training.step, settings.steps)
            if isinstance(training, SequenceTraining):
                log.info("parameters sha256 %s after %d tokens", training.sha256, training.tokens)
            self.termination.wait(settings.linger_seconds)
        return EXIT_DONE

    def _advance(self, began: float) -> Progress:
        """Return one step, with its phases counted; its responses take as long as is wished."""
        training = self.training
        if isinstance(training, SequenceTraining):
            return training.advance(self._phase)
        until = began + self.settings.rollout_seconds
        return training.advance(self._phase, lambda: self.termination.wait(until - time.monotonic()))

    def _phase(self, name: str, training: bool) -> AbstractContextManager[None]:
        return self.client.phase(name, training_gpus=training)

    def _resume(self) -> None:
        """Load what this process is to start from, if anything: see `EvalStopClient.resume_path`."""
        wanted = self.settings.resume
        if wanted == RESUME_FRESH:
            return
        if wanted != RESUME_AUTO:
            self._load_from(Path(wanted))
            return
        named, folder = self.client.resume, self.settings.checkpoints
        if folder is not None:
            path = self.client.resume_path(folder, usable=_usable)
        else:
            path = named.path if named is not None else None
        if path is not None:
            self._load_from(Path(path))
        elif folder is not None and (found := CheckpointFolder(folder).latest()) is not None:
            checkpoint, state = found  # killed before the first save record was written
            self._load(checkpoint.path, checkpoint.run, checkpoint.step, state)

    def _load_from(self, path: Path) -> None:
        checkpoint = read(path)
        self._load(path, checkpoint.run, checkpoint.step, load(checkpoint))

    def _load(self, path: Path, run: Mapping[str, Any], step: int, state: Mapping[str, Floats]) -> None:
        seeds = run.get("seeds")
        if seeds is not None and seeds != [self.settings.seed]:
            raise CheckpointError(
                f"{path}: written by a run with seed {seeds}, this one has --seed {self.settings.seed}; "
                "use another --checkpoints folder or --resume fresh"
            )
        try:
            self.training.load(state, step)
        except ValueError as fault:
            raise CheckpointError(f"{path}: {fault}") from fault
        if self.leads:
            log.info("resumed from %s, step %d", path, step)

    def _evaluate(self) -> None:
        """Evaluate on held-out prompts, unless this step has been, and report it. Leader only."""
        training = self.training
        if not self.leads or self._evaluated == training.step:
            return
        self._evaluated = training.step
        named = self.client.reference
        reference = self._policy_of(named) if named is not None and named < training.step else None
        result = training.evaluate(reference)  # type: ignore[arg-type]  # of its own kind: see _policy_of
        gold, stderr = float(result.gold[0]), float(result.stderr[0])
        proxy, kl = float(result.proxy[0]), float(result.kl[0])
        differences = None
        if named is not None and result.difference is not None:
            d = result.difference[0]
            differences = Differences(named, len(d), float(d.mean()), float(d.var(ddof=1)))
        self.client.set_proxy(proxy, kl)
        self.client.report_eval(
            self.settings.metric,
            result.step,
            gold,
            stderr,
            result.samples,
            proxy=proxy,
            differences=differences,
        )
        log.info(
            "step %d of %d: %s %.4f ± %.4f, proxy %.3f, kl %.2f",
            result.step,
            self.settings.steps,
            self.settings.metric,
            gold,
            stderr,
            proxy,
            kl,
        )
        if self.settings.record is not None:
            line = {
                "step": result.step,
                "proxy": proxy,
                "gold": gold,
                "kl": kl,
                "stderr": stderr,
                "n": result.samples,
                "attempt": self.client.attempt,
                "time": time.time(),
            }
            if differences is not None:
                line["differences"] = differences._asdict()
            self.settings.record.parent.mkdir(parents=True, exist_ok=True)
            with self.settings.record.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _policy_of(self, step: int) -> Parameters | Weights | None:
        """Return the policy of an earlier step of this run, from its checkpoint; kept while it is the
        reference."""
        if self._reference is None or self._reference[0] != step:
            found = self.folder.of_step(step) if self.folder is not None else None
            policy: Parameters | Weights | None = None
            if found is not None and found[0].run.get("seeds", [self.settings.seed]) == [self.settings.seed]:
                policy = self.training.policy_of(found[1])
            self._reference = (step, policy)
            if policy is None:
                log.warning("no usable checkpoint of reference step %d: no differences to it", step)
        return self._reference[1]

    def _save(self) -> None:
        """Save this step's checkpoint unless it is saved already. Leader only."""
        step = self.training.step
        if not self.leads or self.folder is None or self._saved == step:
            return
        path = self.folder.save(
            step, self.training.state(), attempt=self.client.attempt_number, run=self.training.identity()
        )
        self._saved = step
        self.client.checkpoint_saved(step, path)

    def _save_or_warn(self) -> bool:
        """Write a checkpoint; log a failure (volume full) and return False, so that the run goes on."""
        try:
            self._save()
        except OSError as fault:
            log.error("checkpoint of step %d not written: %s", self.training.step, fault)
            return False
        return True

    def _serve_requests(self) -> bool:
        """Carry out what the operator asks for; True if it is to stop training."""
        requests = self.client.poll()
        if requests.checkpoint or requests.stop:
            self._save_or_warn()
        if requests.evaluate:
            self._evaluate()
        self.client.served(requests.id)
        return requests.stop

    def _stand_by(self) -> int:
        """Asked to stop: stay to be scraped (the served id, the last evals) until SIGTERM comes."""
        log.info("stopped on request at step %d, standing by for SIGTERM", self.training.step)
        self.termination.wait(self.settings.stop_grace_seconds)
        return EXIT_TERMINATED

    def _leave(self) -> int:
        if self.settings.checkpoint_on_term:
            self._save_or_warn()
        log.info("SIGTERM: left after step %d of %d", self.training.step, self.settings.steps)
        return EXIT_TERMINATED


def _training(
    settings: Settings, client: EvalStopClient, termination: Termination
) -> Training | SequenceTraining:
    """Return the run that the settings ask for.

    Raises:
        CheckpointError: it is to generate in pods or to train in a group, and nothing says where the
        operator is.
    """
    if settings.group is not None:
        return Training(settings.recipe, [settings.seed], _group_updates(settings, client, termination))
    if settings.rollouts == "off":
        return Training(settings.recipe, [settings.seed])
    if settings.rollouts == "local":
        return SequenceTraining(settings.sequences, settings.seed)
    from evalstop_client.rollouts import StepApi
    from examples.rollouts.pods import PodGenerator

    try:
        source = StepApi.of_pod()
    except (OSError, KeyError, ValueError) as fault:
        raise CheckpointError(
            f"--rollouts pods: run.json names no step API ({type(fault).__name__}: {fault}); "
            "the job needs spec.rollout, or use --rollouts local"
        ) from fault
    generator = PodGenerator(
        source,
        settings.rollouts_record,
        settings.starve_seconds,
        settings.train_seconds,
        settings.rollout_weights,
    )
    training = SequenceTraining(settings.sequences, settings.seed, generator)
    generator.serve(training)
    return training


def _group_updates(settings: Settings, client: EvalStopClient, termination: Termination) -> Updates:
    """Return updates by the group that the settings name."""
    assert settings.group is not None
    if settings.group == GROUP_AUTO:
        try:
            tickets: Tickets = OperatorTickets.of_pod()
        except (OSError, KeyError, ValueError) as fault:
            raise CheckpointError(
                f"--group: run.json names no group ({type(fault).__name__}: {fault}); "
                "the job needs spec.sharing, or name a file with a ticket"
            ) from fault
    else:
        tickets = TicketFile(settings.group)
    group = Group(tickets, client=client, leaves=lambda: termination.requested)
    return GroupUpdates(group, settings.train_seconds)


def _usable(path: str) -> bool:
    """Return whether a checkpoint that is whole by its save record has the content its manifest lists."""
    try:
        load(read(Path(path)))
    except CheckpointError as fault:
        log.warning("skipped: %s", fault)
        return False
    return True
