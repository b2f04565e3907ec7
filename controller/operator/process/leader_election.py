"""Leader election by a Lease: take, renew and release it; no status is written without it.

`controller.kube.lease` has the rules, this is their body. A process leads once at most: whoever loses the
Lease ends, and its next life is a candidate like any other. So no state of an earlier term can act in a later
one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from controller import log, names
from controller.kube.client import Api
from controller.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, NotLeading, Refused
from controller.kube.lease import Candidacy, LeaseView, RefusedNote, Timing, UnwrittenNote
from controller.kube.resources import LEASES

_logger = log.get("evalstop.leadership")

RELEASE_TIMEOUT = 2.0  # s for giving the Lease back at the end
LOG_AGAIN = 30.0  # s between log lines about the same trouble


def steady() -> float:
    """Monotonic seconds that go on while the machine sleeps: its lease runs out in its sleep, too."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeadershipLost(Exception):
    """Leadership was lost; the message says how that was found."""


class Term(Protocol):
    """One term of leadership, as the engine sees it."""

    @property
    def epoch(self) -> int | None:
        """Number of the term, for every status write; None: there is no election, statuses keep theirs."""

    @property
    def leads(self) -> bool: ...

    def check(self) -> None:
        """Do nothing if a write may be sent now. Raises NotLeading if not."""

    async def begin(self) -> None:
        """Wait until the term begins."""

    async def rise_above(self, epoch: int) -> None:
        """Give the term a number above ``epoch``, which some status already carries."""

    def note_later_term(self, why: str) -> None:
        """Note that the API server says that a later term has begun."""

    async def run(self) -> None:
        """Take the Lease and keep it. Raises LeadershipLost."""

    async def release(self) -> None:
        """End the term; another candidate need not wait."""

    def problem(self) -> str | None:
        """Return why this process could not lead if it had to; None: it could, or does."""

    def role(self) -> str:
        """Return who leads, for people."""

    def tell(
        self, refused: Callable[[], RefusedNote | None], unwritten: Callable[[], UnwrittenNote | None]
    ) -> None:
        """Have viewers be told from now on of rights that the leader is refused, and of statuses."""


class Unopposed:
    """No election (``EVALSTOP_LEADER_ELECT=false``): the only replica leads from its start."""

    epoch: int | None = None
    leads = True

    def check(self) -> None:
        return

    async def begin(self) -> None:
        return

    async def rise_above(self, epoch: int) -> None:
        return

    def note_later_term(self, why: str) -> None:
        return

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def release(self) -> None:
        return

    def problem(self) -> str | None:
        return None

    def role(self) -> str:
        return "leader: no election is held"

    def tell(
        self, refused: Callable[[], RefusedNote | None], unwritten: Callable[[], UnwrittenNote | None]
    ) -> None:
        return  # without a Lease there is no place for it but /readyz


class Leadership:
    """A candidate for the Lease ``namespace/name``, and its one term as leader.

    Args:
        api: for the Lease alone: its time limit is short, and it is not asked whether this process leads.
        identity, timing: see `Candidacy`. monotonic, clock: this process's clocks (s).
        serves: the namespaces that it serves; (): all.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing,
        monotonic: Callable[[], float] = steady,
        clock: Callable[[], float] = time.time,
        serves: Sequence[str] = (),
    ) -> None:
        self._serves = ",".join(serves) or None
        self._api, self._namespace, self._name = api, namespace, name
        self._candidacy = Candidacy(identity, timing)
        self._timing, self._now, self._clock = timing, monotonic, clock
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()
        self._why_ended = ""
        self._problem: str | None = "its Lease has not been read yet"
        self._logged: tuple[str, float] = ("", 0.0)
        self._acquired = ""
        self._one_write = asyncio.Lock()
        self._refused: Callable[[], RefusedNote | None] = lambda: None
        self._unwritten: Callable[[], UnwrittenNote | None] = lambda: None

    # -- what the engine asks ------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return self._candidacy.identity

    @property
    def epoch(self) -> int | None:
        return self._candidacy.epoch

    @property
    def leads(self) -> bool:
        return self._candidacy.leads(self._now())

    def check(self) -> None:
        late = self._now() - self._candidacy.until
        if late < 0:
            return
        raise NotLeading(
            f"{self._which} is not this process's"
            + (
                f" any more: not renewed for {late + self._timing.deadline:.1f} s"
                if self._begun.is_set()
                else ""
            )
        )

    async def begin(self) -> None:
        await self._begun.wait()

    def note_later_term(self, why: str) -> None:
        self._end(f"the API server refuses what this term (epoch {self.epoch}) writes: {why}")

    def problem(self) -> str | None:
        return None if self.leads else self._problem

    def role(self) -> str:
        if self.leads:
            return f"leader: this process ({self.identity}), term {self.epoch}"
        holder = self._candidacy.seen.holder if self._candidacy.seen is not None else ""
        return f"standby: {holder or 'nobody'} holds {self._which}"

    def tell(
        self, refused: Callable[[], RefusedNote | None], unwritten: Callable[[], UnwrittenNote | None]
    ) -> None:
        self._refused, self._unwritten = refused, unwritten

    # -- the life of a candidate ---------------------------------------------------------------------------

    async def run(self) -> None:
        await self._campaign()
        self._begun.set()
        _logger.info("leads from now on", lease=self._which, identity=self.identity, epoch=self.epoch)
        await self._keep()

    async def _campaign(self) -> None:
        while True:
            try:
                if await self._try():
                    return
                self._problem = None
            except ApiError as error:
                self._trouble(error)
            await asyncio.sleep(self._pause())

    async def _try(self) -> bool:
        """Look at the Lease, and take it if that is allowed."""
        seen = await self._read()
        if not self._candidacy.may_take(self._now()):
            return False
        try:
            await self._write(seen, self._candidacy.next_epoch, taking=True)
        except (Conflict, AlreadyExists):
            return False  # another candidate was faster
        return True

    def _pause(self) -> float:
        """Until the next look: at random, so that candidates do not come in step, but not past the moment at
        which the Lease may be taken."""
        usual = self._timing.retry * random.uniform(0.8, 1.2)
        return max(0.05, min(usual, self._candidacy.free_at() - self._now()))

    async def _keep(self) -> None:
        """Renew until that fails for as long as the term lasts."""
        while True:
            await self._sleep(self._timing.retry)
            try:
                async with asyncio.timeout(self._left()):
                    await self._renew(self._candidacy.epoch)
                    self._problem = None
            except (ApiError, TimeoutError) as error:
                self._trouble(error)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not past the end of the term. Raises LeadershipLost at its end."""
        try:
            async with asyncio.timeout(max(0.0, min(seconds, self._left()))):
                await self._ended.wait()
        except TimeoutError:
            if self._candidacy.leads(self._now()):
                return
            why = self._problem or "this process was held up"
            self._end(f"{self._which} was not renewed for {self._timing.deadline:g} s: {why}")
        raise LeadershipLost(self._why_ended)

    def _left(self) -> float:
        return self._candidacy.until - self._now()

    async def _renew(self, epoch: int) -> None:
        """Renew, with an epoch of at least that of the term.

        Raises:
            ApiError: try again.
            LeadershipLost: the Lease is gone or another's.
        """
        async with self._one_write:
            # While this one waited its turn, the term may have been given a higher number.
            epoch = max(epoch, self._candidacy.epoch)
            if taken := await self._over_ours(lambda seen: self._write(seen, epoch)):
                self._end(f"{self._which} is lost: {taken}")
                raise LeadershipLost(self._why_ended)

    async def _over_ours(self, write: Callable[[LeaseView], Awaitable[object]]) -> str:
        """Write over our own Lease, whatever its version: somebody may have written into it, or the answer to
        a write of ours was lost. Returns whose it is instead; "": it was written."""
        found = self._candidacy.seen
        try:
            if found is not None:
                await write(found)
                return ""
        except (Conflict, NotFound):
            found = await self._read()
        if found is None:
            return "it was deleted"
        if not self._candidacy.still_mine(found):
            return f"{found.holder or 'nobody'} has it"
        await write(found)
        return ""

    async def rise_above(self, epoch: int) -> None:
        """See Term. Also waits until a leader of another Lease, if there is one, must have noticed: numbers
        above a Lease's own mean that it was deleted, or that objects were restored from elsewhere."""
        if epoch < self._candidacy.epoch:
            return
        _logger.warning(
            "statuses carry a later term's number than the Lease: it was deleted, or they were restored",
            lease=self._which,
            epoch=self.epoch,
            found=epoch,
        )
        while self._candidacy.epoch <= epoch:
            try:
                await self._renew(epoch + 1)
            except ApiError as error:
                self._trouble(error)
                await asyncio.sleep(self._timing.retry)
        await asyncio.sleep(self._timing.duration)

    async def release(self) -> None:
        """Give the Lease back, if it is ours; the API client ends with it."""
        try:
            await self._give_back()
        finally:
            await self._api.close()

    async def _give_back(self) -> None:
        if not self.leads:
            return
        self._candidacy.step_down()
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                taken = await self._over_ours(lambda seen: self._patch(seen, spec))
        except (ApiError, TimeoutError) as error:
            _logger.warning("the lease is not given back; it runs out", lease=self._which, error=str(error))
        else:
            if taken:
                _logger.warning("the lease is not given back", lease=self._which, why=taken)
            else:
                _logger.info("the lease is given back", lease=self._which)

    # -- the Lease -----------------------------------------------------------------------------------------

    async def _read(self) -> LeaseView | None:
        try:
            found = LeaseView.of(await self._api.get(LEASES, self._name, self._namespace))
        except NotFound:
            found = None
        self._candidacy.saw(found, self._now())
        return found

    async def _write(self, seen: LeaseView | None, epoch: int, *, taking: bool = False) -> None:
        """Take or renew: only over what was read. Raises Conflict, AlreadyExists, NotFound."""
        stamp = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if taking:
            self._acquired = stamp
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.duration,
            "leaseTransitions": epoch,
            "acquireTime": self._acquired,
            "renewTime": stamp,
        }
        sent = self._now()
        if seen is None:
            answer = await self._api.create(LEASES, self._manifest(spec))
        else:
            answer = await self._patch(seen, spec, self._refused(), self._unwritten())
        self._candidacy.wrote(LeaseView.of(answer), sent)

    async def _patch(
        self,
        seen: LeaseView,
        spec: Mapping[str, Any],
        refused: RefusedNote | None = None,
        unwritten: UnwrittenNote | None = None,
    ) -> dict[str, Any]:
        """Write over what was read, with what this process serves, and is refused; what another one said of
        itself goes."""
        said = {
            names.ANNOTATION_NAMESPACES: self._serves,
            names.ANNOTATION_REFUSED: refused.written() if refused is not None else None,
            names.ANNOTATION_UNWRITTEN: unwritten.written() if unwritten is not None else None,
        }
        body = {"metadata": {"annotations": said}, "spec": spec}
        return await self._api.merge_patch(
            LEASES, self._name, body, self._namespace, version=seen.version, uid=seen.uid
        )

    def _manifest(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace, "labels": labels}
        if self._serves is not None:
            metadata["annotations"] = {names.ANNOTATION_NAMESPACES: self._serves}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": dict(spec),
        }

    # -- trouble -------------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        self._candidacy.step_down()
        self._why_ended = self._why_ended or why
        self._ended.set()

    def _trouble(self, error: Exception) -> None:
        self._problem = self._explain(error)
        now = self._now()
        if self._logged[0] != self._problem or now - self._logged[1] >= LOG_AGAIN:
            self._logged = (self._problem, now)
            _logger.error("cannot hold the lease", problem=self._problem)

    def _explain(self, error: Exception) -> str:
        if isinstance(error, Refused) and error.status == 403:
            return (
                f"no right to {self._which} ({error.message}): apply Role evalstop-leader (get, create, "
                "patch), or set EVALSTOP_LEADER_ELECT=false where there is one replica only"
            )
        if isinstance(error, NotFound):  # creating into a namespace that is not there
            return (
                f"{self._which}: {error.message}; EVALSTOP_LEASE_NAMESPACE names the operator's own namespace"
            )
        return f"{self._which}: {str(error) or type(error).__name__}"

    @property
    def _which(self) -> str:
        return f"Lease {self._namespace}/{self._name}"
