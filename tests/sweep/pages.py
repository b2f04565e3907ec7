"""Pages of the dashboard, looked at one by one: which addresses, at which widths, in which looks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from controller.kube.errors import ApiError
from controller.web.dashboard.access import KeyGate, Viewer
from tests.support.dashboard_world import EVERYONE, KEY, LeasedApi, MemoryApi, Object, Running, running
from tests.sweep import boxes
from tests.sweep.hostile import (
    BORROWER,
    DENIED,
    GROUP,
    LENDER,
    NAMESPACE,
    POOL,
    RESIDENTS,
    crowd,
    hostile,
    long_name,
    sharers,
)
from tests.sweep.words import faults_of

WIDTHS = (390, 900, 1440)
LOOKS: dict[str, dict[str, str]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "forced colours": {"forced_colors": "active"},
    "print": {"media": "print"},
}
AXE_LOOKS = ("light", "dark")  # the looks whose colours are the page's own
USUAL = {"color_scheme": "light", "forced_colors": "none", "media": "screen"}
JOB = f"/jobs/{NAMESPACE}"
SIX = ",".join(
    f"{NAMESPACE}/{name}" for name in (long_name(3), "huge", "minimize", "outlier", "equal", long_name(5))
)
RUNS = (
    long_name(1), long_name(2), long_name(3), "equal", "not-a-number", "outlier", "huge", "tiny", "minimize",
    long_name(5), long_name(7), "loading", long_name(6), "by-its-user", long_name(9), "crashing", "unwatched",
    "refused", long_name(10),
)  # fmt: skip
OF_THE_SCENE = (
    "/", "/jobs", "/jobs?q=nothing-is-so-called", "/jobs?state=attention&sort=-below", "/pools",
    f"/pools/{POOL}",
    "/pools/empty", "/pools/new", "/savings", f"/compare?runs={quote(SIX)}", "/compare",
    "/compare?runs=" + quote(f"{NAMESPACE}/nobody"), "/nowhere/at/all", f"{JOB}/deleted",
    *(f"{JOB}/{name}" for name in RUNS),
    f"{JOB}/{long_name(3)}?from=2000&to=4000", f"{JOB}/{long_name(6)}?rule=drawdown&p.maxDrop=-1&run=1",
    f"{JOB}/{long_name(6)}?rule=kDeclines&p.k=2&run=1",
)  # fmt: skip
SHARED = (
    "/groups", f"/groups/{GROUP}", f"{JOB}/{RESIDENTS[0]}", f"{JOB}/{BORROWER}", f"{JOB}/{LENDER}",
    "/pools", f"/pools/{POOL}",
)  # fmt: skip
FEW = ("/", "/jobs", "/pools", "/savings", "/compare")
CROWDED = ("/", "/jobs", "/jobs?page=20", f"/pools/{POOL}", "/savings", f"{JOB}/thousand")


class Fault(NamedTuple):
    """Something wrong: where, in which look, and what."""

    path: str
    width: int
    look: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} at {self.width} px, {self.look}: {self.what}"


class Scene(NamedTuple):
    """A dashboard with the addresses to look at; without a key one is asked for it."""

    name: str
    board: Running
    paths: Sequence[str]
    key: str = KEY


@contextlib.contextmanager
def scenes(now: float, only: str | None = None) -> Iterator[list[Scene]]:
    """Give the scenes: hostile, empty, of one job, of 1,000, and with what may stand in a reader's way.

    ``only``: none but that of this name.
    """
    with contextlib.ExitStack() as stack:

        def on(objects: Sequence[Object], viewer: Viewer = EVERYONE, api: MemoryApi | None = None) -> Running:
            if api is None:
                return stack.enter_context(running(objects, viewer))
            return stack.enter_context(Running(api, KeyGate(KEY, viewer), None))

        scene = hostile(now)
        one = [scene[0], next(o for o in scene if o["metadata"]["name"] == long_name(2))]

        def silent() -> Running:
            api = MemoryApi(scene)
            api.failure = ApiError(0, "Timeout", "GET https://10.96.0.1:443/apis: no answer after 3 tries")
            return on([], api=api)

        def stale() -> Running:
            board = on([], api=MemoryApi(scene))
            board.call(lambda: _break(board))
            return board

        made: dict[str, tuple[Callable[[], Running], Sequence[str]]] = {
            "hostile": (lambda: on(scene), OF_THE_SCENE),
            "shared": (lambda: on(sharers(now)), SHARED),
            "none": (lambda: on([]), (*FEW, "/groups")),
            "one": (lambda: on(one), (*FEW, f"{JOB}/{long_name(2)}")),
            "1,000": (lambda: on(crowd(now)), CROWDED),
            "denied": (lambda: on(scene, DENIED), (*FEW, f"{JOB}/equal", f"/pools/{POOL}")),
            "denied all": (lambda: on(scene, Viewer("jane", frozenset(), False)), FEW),
            "not listed": (silent, ("/", "/jobs")),
            "operator away": (
                lambda: on([], api=LeasedApi(scene)),
                ("/", "/jobs", f"/pools/{POOL}", f"{JOB}/{long_name(3)}"),
            ),
            "signed out": (lambda: on(scene), ("/jobs",)),
            "stale": (stale, ("/", "/jobs", f"{JOB}/{long_name(3)}")),
        }
        yield [
            Scene(name, board(), paths, key="" if name == "signed out" else KEY)
            for name, (board, paths) in made.items()
            if only in (None, name)
        ]


def _break(board: Running) -> None:
    """From now on nothing is heard of the cluster."""
    for watch in board.feed._watches:
        watch.problem = ApiError(503, "ServiceUnavailable", "GET https://10.96.0.1:443: connection refused")


def opened(page: Any, scene: Scene, path: str) -> None:
    """Open an address and wait for what is on it."""
    page.goto(f"{scene.board.base}{path}" + (f"#key={scene.key}" if scene.key else ""))
    page.wait_for_selector("main article h1" if scene.key else "#signin:not([hidden]) h1")
    page.wait_for_function("document.fonts.status === 'loaded'")


def looked_at(page: Any, path: str, width: int, looks: Iterable[str] = ("light",)) -> list[Fault]:
    """Return the faults of what a page shows now, in each look."""
    found = []
    for look in looks:
        page.emulate_media(**{**USUAL, **LOOKS[look]})
        found += [Fault(path, width, look, f"{what}: {where}") for what, where in page.evaluate(boxes.FAULTS)]
    page.emulate_media(**USUAL)
    texts = dict.fromkeys(text for text in page.evaluate(boxes.TEXTS) if text and text.strip())
    found += [Fault(path, width, "text", fault) for fault in faults_of(texts)]
    return found


def walked(page: Any, path: str, width: int) -> list[Fault]:
    """Return what Tab does not come to, and where its focus is not seen."""
    count = page.evaluate(boxes.HOW_MANY)
    page.evaluate("document.activeElement?.blur(); scrollTo(0, 0)")
    page.evaluate(boxes.FOCUS)
    for _ in range(3):  # again where a box that scrolls is a stop of its own: it was not counted
        for _ in range(count + 2):
            page.keyboard.press("Tab")
        if not page.evaluate(boxes.MISSED):
            break
    found = [Fault(path, width, "Tab", f"never comes to {one}") for one in page.evaluate(boxes.MISSED)]
    found += [Fault(path, width, "Tab", what) for what in page.evaluate(boxes.WALKED)]
    return found


def axe_faults(
    page: Any, path: str, width: int, run: Callable[[Any], Any], looks: Iterable[str] = AXE_LOOKS
) -> list[Fault]:
    """Return what axe finds in each look; ``run``: of axe-playwright-python's `Axe`."""
    found = []
    for look in looks:
        page.emulate_media(**{**USUAL, **LOOKS[look]})
        for violation in run(page).response["violations"]:
            where = "; ".join(node["html"][:90] for node in violation["nodes"][:3])
            what = f"{violation['id']}: {violation['help']}: {where}"
            found.append(Fault(path, width, f"axe, {look}", what))
    page.emulate_media(**USUAL)
    return found
