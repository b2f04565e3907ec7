"""Exceptions of API calls, one class for each answer that callers treat differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller import bounded


class ApiError(Exception):
    """A refused or failed API call.

    Args:
        status: HTTP status, 0 when no answer came.
        reason: the API's CamelCase reason ("AlreadyExists").
        retry_after: seconds the server asked to wait, if it did.
        causes: (field, message) of each fault that it names of an object.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(f"{reason} ({status}): {message}" if status else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class NotFound(ApiError):
    """404: the object, or its kind, is not there."""


class Conflict(ApiError):
    """409: the object changed since it was read (resourceVersion or uid precondition)."""


class AlreadyExists(ApiError):
    """409 on create: an object of that name is there."""


class Refused(ApiError):
    """The server understood and said no (400, 403, 422): the same call again gets the same answer."""


class Gone(ApiError):
    """410: the resourceVersion or continue token asked for is too old."""


class TooLarge(ApiError):
    """The answer has more bytes than are read. Of a LIST fewer objects can be asked for."""


class NotLeading(ApiError):
    """The write was not sent: this process has no right to act now (`controller.kube.lease`)."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "NotLeading", message)


class Unavailable(ApiError):
    """No usable answer (429, 5xx, timeout, broken connection): whether the call took effect is unknown."""


class WebhookFails(Unavailable):
    """A webhook of somebody's does not answer, so the server makes or changes no such object."""


# As apiserver/pkg/admission/plugin/webhook/errors says it, and apiextensions-apiserver of conversions.
_WEBHOOK = ('failed calling webhook "', "conversion webhook for ")


_CLASSES: Mapping[int, type[ApiError]] = {400: Refused, 403: Refused, 404: NotFound, 410: Gone, 422: Refused}


# What a patch with `fieldValidation=Strict` is refused with; before it the server quotes the whole object.
_STRICT = "strict decoding error: "


_MESSAGE_MOST = 1 << 20  # bytes of a refusal; an admission webhook's may be long


def from_response(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the exception for a non-2xx answer; reads the message out of a ``Status`` object when there is
    one."""
    try:
        answer: Any = bounded.load(body, "the answer", _MESSAGE_MOST)
    except ValueError:
        answer = {"message": body[:300].decode("utf-8", "replace")}
    return from_status(status, answer, headers)


def from_status(status: int, answer: Any, headers: Mapping[str, str]) -> ApiError:
    """Return the exception for a code and, as far as it is one, a ``Status`` object."""
    reason, message = "", ""
    if isinstance(answer, dict):
        reason, message = str(answer.get("reason") or ""), str(answer.get("message") or "")
    _, strict, field = message.partition(_STRICT)
    if strict:
        message = f"{strict}{field}"
    if status == 409:
        kind: type[ApiError] = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status == 429 or status >= 500:
        kind = WebhookFails if any(word in message for word in _WEBHOOK) else Unavailable
    else:
        kind = _CLASSES.get(status, ApiError)
    wait = headers.get("Retry-After", "")
    return kind(
        status,
        reason or f"HTTP{status}",
        message or "the server gave no message",
        None if (seconds := bounded.whole(wait)) is None else float(seconds),
        _causes(answer),
    )


def _causes(answer: Any) -> tuple[tuple[str, str], ...]:
    """Return field and message of each cause in a ``Status``, as far as it is one."""
    details = answer.get("details") if isinstance(answer, dict) else None
    listed = details.get("causes") if isinstance(details, dict) else None
    return tuple(
        (str(one.get("field") or ""), str(one.get("message") or ""))
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    )
