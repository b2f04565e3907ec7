"""An onlooker of one arm: GPU-seconds from pods' requests and times, and the turns that groups report."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from controller.kube.errors import Unavailable
from controller.objects import is_terminal
from controller.web.queue_api import group_path
from deploy.local.demo.elastic.observer import PATIENCE, gpus_of

EVERY, TURNS_EVERY = 0.25, 2.0  # s between looks at pods, at turns
ANSWER = 10.0  # s for an answer of the queue API
Json = dict[str, Any]


class Turn(NamedTuple):
    """A turn that is over; s since the epoch. ``began``: with its switch; ``granted``: once the state was
    loaded."""

    job: str
    began: float
    granted: float
    ended: float
    counted: bool


def merged(known: list[Turn], newer: Iterable[Turn]) -> list[Turn]:
    """Return turns with those of a newer report, whose times may differ by how long it was on its way.

    A turn begins after the one before has ended, so it is new if its middle is later than the last end.
    """
    found = list(known)
    for turn in sorted(newer, key=lambda one: one.ended):
        if not found or (turn.began + turn.ended) / 2 > found[-1].ended:
            found.append(turn)
    return found


class Watch(threading.Thread):
    """Looks until `stop`; the first fault that it meets is raised there.

    Attributes:
        gpu_seconds: of all groups' pods, each from the look that first saw it on a node to its last.
        most: GPUs that pods requested at a time.
        turns: in their order, as far as a report told of them.
        residents: the most that a group had at a time.
    """

    def __init__(
        self,
        workers: Callable[[], list[Json]],
        others: Callable[[], list[Json]],
        queue: str,
        jobs: Mapping[str, str],
    ) -> None:
        """``workers``, ``others``: pods of groups, and of jobs; ``queue``: URL of the queue API; ``jobs``:
        names by uid, which may still be filled."""
        super().__init__(name="watch", daemon=True)
        self._workers, self._others, self._queue, self._jobs = workers, others, queue, jobs
        self._over = threading.Event()
        self._fault: BaseException | None = None
        self.gpu_seconds, self.most, self.residents = 0.0, 0, 0
        self.turns: list[Turn] = []

    def run(self) -> None:
        before, asked = time.monotonic(), float("-inf")
        try:
            while not self._over.wait(EVERY):
                try:
                    held, others = _held(self._workers()), _held(self._others())
                except Unavailable:
                    if time.monotonic() - before > PATIENCE:
                        raise
                    continue
                now = time.monotonic()
                self.gpu_seconds += held * (now - before)
                self.most = max(self.most, held + others)
                before = now
                if now - asked >= TURNS_EVERY:
                    asked = now
                    self._hear()
        except BaseException as fault:  # told by who stops it
            self._fault = fault

    def _hear(self) -> None:
        try:
            with urllib.request.urlopen(self._queue + group_path(), timeout=ANSWER) as answer:
                groups = json.load(answer)["items"]
        except (urllib.error.URLError, TimeoutError):
            return  # the operator is busy: the next report has these turns, too
        self.take(groups)

    def take(self, groups: Iterable[Json]) -> None:
        """Take up groups as the queue API tells them."""
        for group in groups:
            self.residents = max(self.residents, len(group["residents"]))
            told = [
                Turn(self._job_of(one["job"]), one["began"], one["granted"], one["ended"], one["counted"])
                for one in group["recent"]
            ]
            self.turns = merged(self.turns, told)

    def _job_of(self, job: str) -> str:
        """Return a job's name by its key, or by its residency (uid-number) once it has left."""
        return self._jobs.get(job.rpartition("-")[0], job.rpartition("/")[2])

    def check(self) -> None:
        """Raise whatever fault it met."""
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """End it. Raises: whatever fault it met."""
        self._over.set()
        self.join(30)
        self.check()


def _held(pods: Iterable[Json]) -> int:
    """Return the GPUs that pods on a node request."""
    return sum(gpus_of(pod) for pod in pods if pod["spec"].get("nodeName") and not is_terminal(pod))
