"""Register with the step API, which says whose actor this is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.actor.app import ActorIdentity, Sidecar
from controller.actor.engines import EngineError
from controller.web.registration import NotReady, Registrar

KEYS_KEPT = 3  # of APIs: tickets of the leader before are good until they end


class Registration(Registrar):
    """Tells the step API where this actor is and what its engine reports, and learns whose actor it is.

    Args:
        sidecar: this one.
        urls, ca, token: as `Registrar` takes them.
        address: host and port at which clients reach the sidecar.
        fingerprint: of its certificate.
    """

    def __init__(
        self, sidecar: Sidecar, urls: Sequence[str], ca: str, token: str, address: str, fingerprint: str
    ) -> None:
        super().__init__(urls, "/v1/actors", ca, token, "evalstop.actor")
        self._sidecar, self._address, self._fingerprint = sidecar, address, fingerprint

    async def body(self) -> Mapping[str, Any]:
        try:
            report = await self._sidecar.engine.report()
        except EngineError as error:
            raise NotReady(str(error)) from None
        return {
            "address": self._address,
            "fingerprint": self._fingerprint,
            "slots": report.get("slots"),
            "version": self._sidecar.version,
        }

    def take(self, answer: Mapping[str, Any]) -> None:
        identity, key = self._sidecar.identity, answer.get("key")
        job, attempt, actor = answer.get("job"), answer.get("attempt"), answer.get("actor")
        if not (
            isinstance(key, str) and isinstance(job, str) and type(attempt) is int and type(actor) is int
        ):
            raise ValueError("the step API's answer: expected key, job, attempt and actor")
        keys = (key, *(k for k in identity.keys if k != key))[:KEYS_KEPT]
        self._sidecar.identity = ActorIdentity(job, attempt, actor, keys)
