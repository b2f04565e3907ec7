"""HTML from templates, and their filters: numbers, times and states as text.

Everything is escaped but charts, whose text `controller.web.dashboard.svg` escapes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from controller import names
from controller.objects import parse_time
from controller.policy.wording import about, counted, percent, two_digits, whole_by
from controller.web.dashboard import states
from controller.web.dashboard.access import Viewer

_HERE = "controller.web.dashboard"
UNKNOWN = "\N{EN DASH}"


def number(value: Any) -> str:
    """Return a number with four digits: an eval's noise leaves no more. A dash stands for None and NaN."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def share(value: float | None) -> str:
    """Return a share as percent: ``0.125`` -> ``12.5 %``."""
    return UNKNOWN if value is None else percent(value)


def span(seconds: float | None) -> str:
    """Return a duration in words: ``5025`` -> ``1 h 23 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"


def size(count: int | None) -> str:
    """Return a number of bytes in words: ``1500`` -> ``1.5 kB``."""
    value, unit = float(count or 0), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):  # noqa: B007
        if value < 1000:
            break
        value /= 1000
    return UNKNOWN if not count else f"{value:.3g} {unit}"


def short_digest(text: str) -> str:
    """Return as much of a digest as tells two apart: ``sha256:`` and twelve digits."""
    kind, colon, digits = text.rpartition(":")
    return f"{kind}{colon}{digits[:12]}…" if len(digits) > 12 else text


def moment(at: float | str | None) -> Markup:
    """Return a time as a ``<time>`` element.

    The page's script shows how long ago it was: so a page changes only when its data does.
    """
    if isinstance(at, str):
        at = parse_time(at)
    if at is None:
        return Markup(UNKNOWN)
    stamp = datetime.fromtimestamp(at, UTC)
    text = stamp.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        stamp.isoformat(timespec="seconds"), text, text
    )


def badge(word: str) -> Markup:
    """Return a state as a badge: shape, word, colour, and its meaning as tooltip."""
    found = states.state(word)
    return Markup('<span class="badge {}" title="{}"><span aria-hidden="true">{}</span> {}</span>').format(
        found.tone, found.meaning, found.shape, found.word
    )


def clock(at: float | None) -> str:
    """Return a time in UTC as text, for what no script looks at: ``2026-11-26 03:12:45 UTC``."""
    return UNKNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def sentence(text: str) -> str:
    """Return a text as a sentence: with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def link(key: str, viewer: Viewer | None = None) -> Markup:
    """Return the name of the job ``namespace/name``: a link, if the viewer may see that namespace."""
    namespace, slash, name = key.partition("/")
    if not slash or (viewer is not None and not viewer.sees(namespace)):
        return Markup('<span class="run-name">{}</span>').format(key)
    return Markup('<a class="run-name" href="/jobs/{}/{}">{}</a>').format(
        quote(namespace, safe=""), quote(name, safe=""), key
    )


def short_link(key: str) -> Markup:
    """Return the link to a job of a list: a long namespace is cut with an ellipsis, the name is whole."""
    namespace, _, name = key.partition("/")
    return Markup(
        '<a class="run-name" href="/jobs/{}/{}" title="{}"><span class="cut">{}</span>/<wbr>{}</a>'
    ).format(quote(namespace, safe=""), quote(name, safe=""), key, namespace, name)


def address(path: str, **query: Any) -> str:
    """Return a path with its query, without parameters that are empty."""
    kept = {key: value for key, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(kept)}" if kept else path


@cache
def static(name: str) -> tuple[bytes, str]:
    """Return a file of the page and the hash it is known by.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    if name not in {found.name for found in (resources.files(_HERE) / "static").iterdir()}:
        raise FileNotFoundError(name)
    content = (resources.files(_HERE) / "static" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


def _asset(name: str) -> str:
    return f"/static/{name}?{static(name)[1]}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["visible"] = lambda namespace, viewer: viewer.sees(namespace)
    made.filters |= {
        "number": number,
        "share": share,
        "span": span,
        "size": size,
        "short_digest": short_digest,
        "moment": moment,
        "badge": badge,
        "whole_by": whole_by,
        "counted": counted,
        "sentence": sentence,
        "two_digits": two_digits,
        "about": about,
        "clock": clock,
    }
    made.globals |= {
        "address": address,
        "asset": _asset,
        "link": link,
        "short_link": short_link,
        "states": states.STATES,
        "version": names.VERSION,
    }
    return made


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return the page that a template makes of these values."""
    return _environment().get_template(template).render(**values)


__all__ = [
    "UNKNOWN",
    "address",
    "badge",
    "escape",
    "moment",
    "number",
    "render",
    "share",
    "size",
    "span",
    "static",
]
