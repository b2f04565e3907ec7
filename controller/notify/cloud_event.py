"""Happenings as CloudEvents 1.0 in JSON (structured content mode). Pure."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from controller.api.values import timestamp
from controller.notify.happenings import Happening
from controller.untrusted_text import one_line

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE = "dev.evalstop.rlhfjob."
MESSAGE_MAX = 600  # characters


def cloud_event(
    one: Happening, *, namespace: str, name: str, uid: str, pool: str, source: str, link: str
) -> dict[str, Any]:
    """Return an event.

    ``source``: which EvalStop says so, as a URI reference; ``link``: address of the dashboard, "": events
    have no link. The others are the RLHFJob's.
    """
    data: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "pool": pool,
        "reason": one.reason,
        "message": one_line(one.message, MESSAGE_MAX),
        **one.more,
    }
    if link:
        data["link"] = f"{link.rstrip('/')}/jobs/{quote(namespace, safe='')}/{quote(name, safe='')}"
    return {
        "specversion": "1.0",
        "id": one.id,
        "source": source,
        "type": TYPE + one.kind,
        "subject": f"{namespace}/{name}",
        "time": timestamp(one.at),
        "datacontenttype": "application/json",
        "data": data,
    }


def body(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
