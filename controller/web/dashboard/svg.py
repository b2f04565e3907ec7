"""Matplotlib's drawings as SVG that a page can take in under a strict content security policy.

No ``style`` attribute or element is left (a policy without 'unsafe-inline' drops them), colours are the
page's own variables, so that light and dark follow the page, text is text in the page's font, and the size
is the page's.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NS = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
# Colours to draw with: each stands for a variable of the page (static/dashboard.css).
INK, MUTED, GRID, SURFACE = "#010101", "#020202", "#030303", "#040404"
SCORE, PROXY, BEST, STOP, WARN, OTHER = "#050505", "#060606", "#070707", "#080808", "#090909", "#0a0a0a"
VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    SURFACE: "--surface",
    SCORE: "--c-score",
    PROXY: "--c-proxy",
    BEST: "--c-best",
    STOP: "--c-stop",
    WARN: "--c-warn",
    OTHER: "--c-other",
}
RC: dict[Any, Any] = {
    "text.parse_math": False,  # a metric's name is no formula
    "svg.fonttype": "none",
    "svg.hashsalt": "evalstop",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "hatch.color": SURFACE,
    "hatch.linewidth": 1.5,
}
LOCK = threading.Lock()  # matplotlib's settings are the whole process's


def page_svg(figure: Figure, prefix: str, title: str, description: str) -> str:
    """Return the figure as an ``<svg>`` element. ``prefix`` makes its ids its own on the page."""
    out = io.StringIO()
    with warnings.catch_warnings():
        # Text is drawn by the browser, in its own fonts: that matplotlib's lacks a glyph matters to nobody.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    ET.register_namespace("", _NS)
    root = ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", out.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        _plain(element, prefix)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("class", "chart")
    root.set("aria-labelledby", f"{prefix}-t {prefix}-d")
    for tag, text in (("desc", description), ("title", title)):
        label = ET.Element(f"{{{_NS}}}{tag}", {"id": f"{prefix}-{tag[0]}"})
        label.text = text
        root.insert(0, label)
    return ET.tostring(root, encoding="unicode")


def _plain(element: ET.Element, prefix: str) -> None:
    style = element.attrib.pop("style", "")
    for word in style.split(";"):
        name, colon, value = word.partition(":")
        name, value = name.strip(), value.strip()
        if not colon:
            continue
        if name == "font":  # no presentation attribute of its own; family and weight are the page's
            size = re.search(r"([\d.]+)px", value)
            name, value = "font-size", size[1] if size else "10"
            if "bold" in word:
                element.set("font-weight", "600")
        element.set(name, value)
    if (href := element.attrib.pop(_LINK, None)) is not None:
        element.set("href", href)
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, f"{prefix}-{value}")
        elif value.startswith("#") and name == "href":
            element.set(name, f"#{prefix}-{value[1:]}")
        elif value.startswith("url(#"):
            element.set(name, f"url(#{prefix}-{value[5:]}")
        elif value in VARIABLES:
            element.set(name, f"var({VARIABLES[value]})")
