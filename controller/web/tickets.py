"""Tickets: who may use a rollout actor, signed by the step API and checked by the actor alone.

A trainer has no right to ask for a TokenReview and an actor neither, so the step API, which has asked, signs
what it found (Ed25519): this job, this attempt, this actor, until then. The actor knows the API's public key
and which actor it is itself, and needs nobody else to check.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from controller import bounded
from controller.frozen import dataclass

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MOST_CHARACTERS = 1024
SECONDS = 3600.0  # that a ticket is good for; every begin and watch brings a new one


class TicketError(ValueError):
    """A ticket that opens nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """``job``: uid of the RLHFJob. ``actor``: its number in the job. ``ends``: s since the epoch."""

    job: str
    attempt: int
    actor: int
    ends: float


class Signer:
    """A key pair of this process's, made when it is first needed: what makes it takes memory. Nobody else
    ever sees the private half."""

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.generate()

    @cached_property
    def public(self) -> str:
        """The public half, as text."""
        return _text(self._key.public_key().public_bytes_raw())

    def sign(self, ticket: DataclassInstance) -> str:
        """Return the ticket, of whatever kind, as a header carries it."""
        body = json.dumps(asdict(ticket), sort_keys=True, separators=(",", ":")).encode()
        return f"{_text(body)}.{_text(self._key.sign(body))}"


def opened(text: str, keys: Iterable[str], most: int, knows: str) -> dict[str, Any]:
    """Return the fields of a ticket that is signed by one of these keys.

    Args:
        text: the ticket.
        keys: of its signers.
        most: characters.
        knows: who checks, for errors.

    Raises:
        TicketError: it is signed by none of them, or no ticket.
    """
    if not 0 < len(text) <= most:
        raise TicketError(f"a ticket of {len(text)} characters, expected 1 to {most}")
    head, _, tail = text.partition(".")
    try:
        body, signature = _bytes(head), _bytes(tail)
        if not any(_signed(body, signature, key) for key in keys):
            raise TicketError(f"the ticket is not signed by the step API that {knows} knows")
        found = bounded.load(body, "the ticket", most)
    except TicketError:
        raise
    except (ValueError, TypeError):
        raise TicketError("no ticket of the step API") from None
    if not isinstance(found, dict):
        raise TicketError("no ticket of the step API")
    return found


def check(text: str, keys: Iterable[str], *, job: str, attempt: int, actor: int, now: float) -> Ticket:
    """Return the ticket that a text carries, if it is signed by one of these keys and opens this actor now.

    Raises:
        TicketError: it does not.
    """
    found = opened(text, keys, MOST_CHARACTERS, "this actor")
    try:
        ticket = Ticket(str(found["job"]), int(found["attempt"]), int(found["actor"]), float(found["ends"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        raise TicketError("no ticket of the step API") from None
    if (ticket.job, ticket.actor) != (job, actor):
        raise TicketError(
            f"the ticket is for actor {ticket.actor} of another job or number, this is actor {actor}"
        )
    if ticket.attempt != attempt:
        raise TicketError(f"the ticket is of attempt {ticket.attempt}, this actor is of attempt {attempt}")
    if not now < ticket.ends:
        raise TicketError("the ticket has ended; begin and watch of the step API bring a new one")
    return ticket


def _signed(body: bytes, signature: bytes, key: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(_bytes(key)).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii", "strict") + b"=" * (-len(text) % 4))
