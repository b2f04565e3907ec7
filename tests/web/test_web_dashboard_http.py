"""The dashboard's HTTP face: who gets what, what is refused, and what a restricted viewer never sees."""

from __future__ import annotations

import asyncio
import http.client
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import pytest

from controller.kube.errors import NotFound, Unavailable
from controller.policy.job import JobRecord, Outcome, PastGrades, StopOutcome
from controller.policy.job import conditions as c
from controller.policy.job.record import AdmissionRecord, Best, Condition, PodTrouble
from controller.policy.types import Mode
from controller.web.dashboard.access import CannotReview, KeyGate, ReviewGate, Viewer
from controller.web.dashboard.app import Dashboard
from controller.web.dashboard.feed import OPERATOR_AWAY
from controller.web.dashboard.queues import FixedAddress, Queues
from controller.web.server import WebServer
from tests.support.dashboard_scene import STOPPED, WAITING, scene
from tests.support.dashboard_world import (
    EVERYONE,
    KEY,
    LeasedApi,
    MemoryApi,
    Object,
    Running,
    conditions,
    followed_up,
    job_object,
    pool_object,
    running,
    with_record,
)
from tests.sweep.hostile import hostile

SHADOW = "phi-shadow"
VIEWS = (
    "/view/",
    "/view/jobs",
    "/view/jobs/team-a/overoptimising",
    "/view/pools",
    "/view/pools/research",
    "/view/savings",
    "/view/compare?runs=team-a/overoptimising",
)
FRAMES = tuple(path.removeprefix("/view") or "/" for path in VIEWS)


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.text = status, headers, body.decode()


def ask(board: Running, path: str, token: str | None = KEY, method: str = "GET", **headers: str) -> Answer:
    sent = {"Authorization": f"Bearer {token}"} if token is not None else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=45)
    try:
        connection.request(method, path, headers=sent)
        found = connection.getresponse()
        return Answer(found.status, found.headers, found.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def board() -> Iterator[Running]:
    with running(scene(time.time())) as found:
        yield found


@pytest.fixture(scope="module")
def restricted() -> Iterator[Running]:
    """Seen by somebody who may list RLHFJobs of team-a, and GPUPools."""
    with running(
        scene(time.time()), Viewer("system:serviceaccount:team-a:reader", frozenset({"team-a"}), True)
    ) as found:
        yield found


@pytest.mark.parametrize("path", VIEWS)
def test_data_needs_a_token(board: Running, path: str) -> None:
    for token in (None, "", "another", KEY + "x"):
        found = ask(board, path, token)
        assert found.status == 401, token
        assert found.headers["WWW-Authenticate"].startswith("Bearer")
        assert "team-a" not in found.text
        assert "evalstop dashboard" in found.text  # where to get one
    assert ask(board, path).status == 200


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNz", "bearer", "Token x", f"Bearer  {KEY}x"])
def test_other_ways_to_sign_in_are_none(board: Running, header: str) -> None:
    assert ask(board, "/view/jobs", None, Authorization=header).status == 401
    assert ask(board, f"/view/jobs?token={KEY}", None).status == 401
    assert ask(board, "/view/jobs", None, Cookie=f"token={KEY}").status == 401


@pytest.mark.parametrize("path", FRAMES)
def test_frames_carry_no_data_and_no_inline_code(board: Running, path: str) -> None:
    found = ask(board, path, None)
    assert found.status == 200
    assert "team-a" not in found.text
    assert "Set-Cookie" not in found.headers
    for inline in ("<style", "style=", " onclick", "javascript:", "<script>"):
        assert inline not in found.text
    assert "http://" not in found.text
    assert "https://" not in found.text


@pytest.mark.parametrize("path", [*FRAMES, *VIEWS, "/static/dashboard.js", "/nowhere", "/healthz"])
def test_every_answer_carries_the_security_headers(board: Running, path: str) -> None:
    found = ask(board, path)
    policy = found.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_writes(board: Running, method: str) -> None:
    for path in (*FRAMES, *VIEWS):
        found = ask(board, path, method=method)
        assert found.status == 405
        assert "changes nothing" in found.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "evil.example:80", "127.0.0.1:1", ""])
def test_names_made_to_resolve_to_this_machine_are_refused(board: Running, host: str) -> None:
    for path in ("/", "/view/jobs", "/static/dashboard.js"):
        found = ask(board, path, Host=host)
        assert found.status == 421
        assert f"open 127.0.0.1:{board.port}" in found.text
    assert ask(board, "/", Host=f"LOCALHOST:{board.port}").status == 200


def test_browsers_are_told_to_come_back_over_https_where_there_is_a_certificate(board: Running) -> None:
    async def headers(secure: bool) -> Mapping[str, str]:
        made = Dashboard(board.feed, Queues(FixedAddress()), KeyGate(KEY, EVERYONE), secure=secure)
        server = WebServer(made.app, "127.0.0.1", 0)
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}/"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.headers
        finally:
            await server.stop()

    assert asyncio.run(headers(True))["Strict-Transport-Security"] == "max-age=31536000"
    assert "Strict-Transport-Security" not in asyncio.run(headers(False))


def test_an_answer_is_sent_once_as_long_as_it_is_the_same(board: Running) -> None:
    first = ask(board, "/view/jobs")
    tag = first.headers["ETag"]
    again = ask(board, "/view/jobs", If_None_Match=tag)
    assert (again.status, again.text) == (304, "")
    obj = job_object("team-a", "came-later", created=time.time())
    board.put(obj)
    changed = ask(board, "/view/jobs", If_None_Match=tag)
    assert changed.status == 200
    assert "came-later" in changed.text
    board.call(lambda: board.api.drop("RLHFJob", "team-a", "came-later"))
    assert "private" in first.headers["Cache-Control"]
    assert first.headers["Vary"] == "Authorization"


def test_static_files_are_known_by_what_is_in_them(board: Running) -> None:
    found = ask(board, "/static/dashboard.css", None)
    tag = found.headers["ETag"].strip('"')
    assert found.headers["Content-Type"].startswith("text/css")
    assert "immutable" in ask(board, f"/static/dashboard.css?{tag}", None).headers["Cache-Control"]
    assert "immutable" not in ask(board, "/static/dashboard.css?old", None).headers["Cache-Control"]
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e/app.py", ""):
        assert ask(board, f"/static/{name}", None).status == 404


@pytest.mark.parametrize("path", VIEWS)
def test_a_viewer_sees_the_namespaces_that_they_may_list_and_no_other(restricted: Running, path: str) -> None:
    found = ask(restricted, path)
    assert found.status == 200
    # Who got its GPUs is told to those who may list that job, and to others not even in its status.
    for name in ("gemma-rm-large", "gemma-safety", "earlier-", "phi-shadow", "team-b", "team-c"):
        assert name not in found.text, name


def test_quotas_are_shown_and_others_namespaces_only_counted() -> None:
    objects = scene(time.time())
    for one in objects:
        if one["kind"] == "GPUPool":
            one["status"]["quotas"] = [
                {"namespaces": ["team-a", "team-z"], "guaranteed": 8, "used": 12, "borrowed": 4, "waiting": 2}
            ]
    with running(objects) as board:
        assert "team-a, team-z" in ask(board, "/view/pools/research").text
    with running(objects, Viewer("reader", frozenset({"team-a"}), True)) as board:
        text = ask(board, "/view/pools/research").text
        assert "team-a, 1 other<" in text
        assert "team-z" not in text


def test_a_pool_warns_of_conditions_that_do_not_hold_and_of_no_other() -> None:
    """Each healthy pool had a yellow banner: Ready: ready."""
    objects = scene(time.time())
    pool = next(one for one in objects if one["metadata"]["name"] == "research")
    held = {
        "type": "StopsHeldBack",
        "status": "False",
        "reason": "NothingHeldBack",
        "message": "no stop is held back",
    }
    pool["status"]["conditions"].append({**pool["status"]["conditions"][0], **held})
    with running(objects) as board:
        assert "banner" not in ask(board, "/view/pools/research").text
    ready = next(one for one in objects if one["metadata"]["name"] == "research")["status"]["conditions"][0]
    ready |= {"status": "False", "message": "spec.queuePolicy: no"}
    with running(objects) as board:
        assert "Ready: spec.queuePolicy: no</p>" in ask(board, "/view/pools/research").text


def test_jobs_of_other_namespaces_are_as_if_they_were_not_there(restricted: Running) -> None:
    there = ask(restricted, f"/view/jobs/{'/'.join(WAITING)}")
    absent = ask(restricted, "/view/jobs/team-b/never-was")
    assert there.status == absent.status == 404
    assert there.text.replace("gemma-rm-large", "X") == absent.text.replace("never-was", "X")
    assert "a job of another namespace" in ask(restricted, "/view/pools/research").text


def test_runs_of_other_namespaces_are_compared_as_if_they_were_not_there(restricted: Running) -> None:
    """Who knows a name could have read scores, rule and state by typing it."""
    own = "team-a/overoptimising"
    there, absent = (
        ask(restricted, f"/view/compare?runs={own},team-c/{name}") for name in (SHADOW, "never-was")
    )
    assert there.status == absent.status == 200
    assert f"Not there, or not yours to read: team-c/{SHADOW}<" in there.text
    assert there.text.replace(SHADOW, "X") == absent.text.replace("never-was", "X")
    assert f'<tr data-key="{own}">' in there.text
    alone = ask(restricted, f"/view/compare?runs=team-c/{SHADOW}").text
    assert "<svg" not in alone
    assert "<table" not in alone


def test_without_rights_it_is_said_what_to_do() -> None:
    nobody = Viewer("jane", frozenset(), False)
    with running(scene(time.time()), nobody) as board:
        for path in VIEWS:
            found = ask(board, path)
            assert found.status == 403
            assert "kubectl create rolebinding evalstop-view" in found.text
            assert "jane" in found.text
            assert "overoptimising" not in found.text


def test_without_rights_to_pools_the_jobs_are_still_shown() -> None:
    some = Viewer("jane", frozenset({"team-a"}), False)
    with running(scene(time.time()), some) as board:
        assert ask(board, "/view/jobs").status == 200
        for path in ("/view/pools", "/view/pools/research"):
            found = ask(board, path)
            assert found.status == 403
            assert "list GPUPools" in found.text
        overview = ask(board, "/view/").text
        assert "You may not list GPUPools" in overview
        assert "no run was stopped" not in overview, "that is in the pools"
        assert "kDeclines" not in overview.split("Last handovers")[1]


@pytest.mark.parametrize(
    "path",
    ["/view/jobs/team-a/none", "/view/pools/none", "/view/jobs/team-a%2Foveroptimising/x"],
)
def test_what_is_not_there_is_404_and_says_so(board: Running, path: str) -> None:
    assert ask(board, path).status == 404


@pytest.mark.parametrize("path", ["/view/jobs/team-a/overoptimising", "/view/compare"])
@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("from=300&to=200", "from &#39;300&#39; to &#39;200&#39;: expected two whole numbers"),
        ("from=abc&to=", "from &#39;abc&#39; to &#39;&#39;: expected two whole numbers"),
        ("from=10&to=200", ""),
        ("", ""),
    ],
)
def test_steps_that_are_none_are_told(board: Running, path: str, query: str, told: str) -> None:
    """The whole curve was shown instead, without a word."""
    text = ask(board, f"{path}?runs=team-a/overoptimising&{query}").text
    assert (told in text, "expected two whole numbers" in text) == (True, bool(told))


@pytest.mark.parametrize(
    "query",
    [
        "page=0", "page=99999999", "page=-1", "page=x", "sort=__class__", "sort=-", "state=evil", "q=%00%ff",
        "width=abc", "width=-5", "width=99999999999999999999", "namespace=%3Cb%3E", "q=" + "a" * 5000,
    ],
)  # fmt: skip
def test_odd_queries_do_no_harm(board: Running, query: str) -> None:
    found = ask(board, f"/view/jobs?{query}")
    assert found.status == 200
    assert "<b>" not in found.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("rule=none&run=1", "rule: &#39;none&#39; is not allowed, expected one of kDeclines"),
        ("rule=kDeclines&run=1&p.k=x", "kDeclines.k: &#39;x&#39; is not allowed, expected a whole number"),
        ("rule=kDeclines&run=1&p.k=0", "kDeclines.k: 0 is not allowed, expected"),
        ("rule=drawdown&run=1&p.maxDrop=nan", "drawdown.maxDrop: nan is not allowed"),
        ("rule=kDeclines&run=1&warmUp=-3", "warmUp: &#39;-3&#39; is not allowed, expected a number of evals"),
        ("rule=kDeclines&run=1&warmUp=99999999999", "warmUp.minEvals"),
    ],
)
def test_a_what_if_with_wrong_values_names_field_value_and_what_is_right(
    board: Running, query: str, said: str
) -> None:
    found = ask(board, f"/view/jobs/{'/'.join(STOPPED)}?{query}")
    assert found.status == 200
    assert said in found.text


def test_a_cluster_that_does_not_answer_is_told_and_what_was_known_stays_shown() -> None:
    with running(scene(time.time())) as board:
        before = ask(board, "/view/jobs")
        watch = next(w for w in board.feed._watches if str(w).startswith("rlhfjobs"))

        def breaks() -> None:
            watch.problem = Unavailable(0, "ConnectionBroken", "connection refused")

        board.call(breaks)
        after = ask(board, "/view/jobs")
        assert after.status == 200
        assert re.search(
            r"Stale since <time [^>]+>[^<]+</time>: the API server does not answer\.", after.text
        )
        assert 'data-stale="yes"' in after.text
        assert "connection refused" not in after.text, "the log has the error itself"
        assert ask(board, "/view/jobs").text == after.text, "since when does not move"
        assert "overoptimising" in before.text
        assert "overoptimising" in after.text


def test_each_page_tells_that_the_operator_is_away_and_since_when() -> None:
    """The page that compares runs had the line, and its header went on saying "live"."""
    with Running(LeasedApi(scene(time.time())), KeyGate(KEY, EVERYONE), None) as board:
        since = "2025-11-13 02:00:00 UTC"
        line = f'<time datetime="2025-11-13T02:00:00+00:00" title="{since}">{since}</time>: {OPERATOR_AWAY}.'
        for path in VIEWS:
            text = ask(board, path).text
            assert text.count("Stale since") == text.count(f"Stale since {line}") == 1, path
            assert 'data-stale="yes"' in text.partition(">")[0], f"{path}: what the header's word is by"


def test_signing_in_names_the_command_that_gives_a_token(board: Running) -> None:
    assert f"<code>{KeyGate.hint}</code>" in ask(board, "/", None).text
    assert "`evalstop dashboard`" in KeyGate.hint
    for audience, more in (("", ""), ("evalstop-dashboard", " --audience evalstop-dashboard")):
        gate = ReviewGate(None, audience)  # type: ignore[arg-type]  # nobody is asked about a frame
        with Running(MemoryApi(), gate, None) as installed:
            command = f"kubectl create token &lt;service account&gt; -n &lt;namespace&gt;{more}"
            assert f"<code>{command}</code>" in ask(installed, "/", None).text


def test_a_cluster_that_was_never_listed_is_not_shown_as_an_empty_one() -> None:
    api = MemoryApi()
    api.failure = Unavailable(0, "ConnectionBroken", "connection refused")
    with Running(api, KeyGate(KEY, Viewer("jane", frozenset(), True)), None) as board:
        found = ask(board, "/view/jobs")
        assert found.status == 503
        assert "not listed yet: the API server does not answer" in found.text
        assert ask(board, "/readyz", None).status == 503
        assert ask(board, "/healthz", None).status == 200


def test_what_the_api_server_says_of_the_dashboard_is_not_for_whoever_asks() -> None:
    class Silent(KeyGate):
        async def viewer(self, token: str, namespaces: Any, peer: str) -> Viewer:
            raise CannotReview("tokenreviews is forbidden: User system:serviceaccount:x:y at 10.0.0.1")

    with Running(MemoryApi(), Silent(KEY, Viewer("jane", None, True)), None) as board:
        found = ask(board, "/view/jobs")
        assert (found.status, "cannot be asked who you are" in found.text) == (503, True)
        assert "serviceaccount" not in found.text


def test_without_crds_it_is_said_what_to_install() -> None:
    with running([]) as board:
        watch = board.feed._watches[0]

        def missing() -> None:
            watch.problem = NotFound(404, "NotFound", "the server could not find the requested resource")

        board.call(missing)
        found = ask(board, "/view/jobs")
        assert found.status == 503
        assert "kubectl apply -f crds/" in found.text


def test_an_empty_cluster_has_pages_too() -> None:
    with running([]) as board:
        for path in VIEWS:
            one = path.partition("?")[0].count("/") > 2
            assert ask(board, path).status == (404 if one else 200)
        assert ask(board, "/readyz", None).status == 200


def test_a_status_that_cannot_be_read_does_not_hide_the_others() -> None:
    newer = job_object("team-a", "from-the-future", created=time.time())
    newer["status"] = {"evals": ["not an eval"], "summary": "Running"}
    odd: dict[str, Any] = job_object("team-a", "odd-spec", created=time.time())
    odd["spec"]["gang"] = {"replicas": "many"}
    pool = pool_object("odd")
    pool["spec"]["queuePolicy"] = {"fifo": {"x": 1}, "srtf": {}}
    pool["status"] = {"capacity": "lots"}
    with running([*scene(time.time()), newer, odd, pool]) as board:
        listed = ask(board, "/view/jobs").text
        assert "overoptimising" in listed
        assert "from-the-future" in listed
        one = ask(board, "/view/jobs/team-a/from-the-future")
        assert one.status == 200
        assert "another version of the operator" in one.text
        assert "spec.gang.replicas" in ask(board, "/view/jobs/team-a/odd-spec").text
        assert ask(board, "/view/pools/odd").status == 200
        assert "spec.queuePolicy" in ask(board, "/view/pools").text


# -- who needs a look, and what Shadow has to show --------------------


def keys(text: str) -> list[str]:
    """Return the names of the runs that a page's list has, in its order."""
    return [key.partition("/")[2] for key in re.findall(r'<(?:tr|li) data-key="([^"]+/[^"]+)"', text)]


def tiles(text: str) -> dict[str, str]:
    found = re.findall(r'class="figure">([^<]+)</span> <span class="label">([^<]+)<', text)
    return {label: figure for figure, label in found}


@pytest.mark.parametrize(("of", "count"), [(hostile, 4), (scene, 1)])
def test_the_tile_counts_the_runs_that_the_list_marks(of: Any, count: int) -> None:
    """It said 1, and five runs were in trouble."""
    with running(of(time.time())) as board:
        overview, marked = ask(board, "/view/").text, ask(board, "/view/jobs?state=attention").text
    assert tiles(overview)["need a look"] == str(count)
    assert len(keys(marked)) == count
    first = overview.partition("h-look")[2].partition("</section>")[0]
    assert sorted(keys(first)) == sorted(keys(marked))
    rows = marked.split("<tr data-key")[1:]
    assert all('<span class="note">' in row.partition("</td>")[0] for row in rows), "each tells its reason"


def crashes(pool: Object, now: float, name: str, gpus: int, since: float) -> Object:
    """A run whose pods have crashed for so many s, on so many GPUs."""
    obj = job_object("team-a", name, created=now - 9000, gpus=gpus, replicas=1)
    trouble = PodTrouble("run-0", exit_code=1, message="no", count=3, since=now - since, container="c")
    true = conditions(now - 8900, Accepted="Valid", Admitted="Admitted")
    holds = AdmissionRecord(1, ("gpu-1",), now - 8900, None, now - 8800)
    record = JobRecord(attempt=1, conditions=true, pod_trouble=trouble, admission=holds)
    return followed_up(obj, record, pool, now)


def holds_none(pool: Object, now: float, name: str, since: float) -> Object:
    """A run that asks for 64 GPUs, and has been refused for so many s."""
    refused = Condition(c.ACCEPTED, False, "PoolNotFound", "spec.pool: no", now - since, 1)
    obj = job_object("team-a", name, created=now - 9000, gpus=64, replicas=1)
    return followed_up(obj, JobRecord(conditions=(refused,)), pool, now)


def test_whose_gpus_were_held_longest_for_nothing_comes_first() -> None:
    """By GPUs times time: neither the most GPUs nor the oldest trouble alone."""
    now, pool = time.time(), pool_object()
    runs = {"most-gpus": (16, 100), "product": (4, 2000), "longer": (2, 3000)}
    objects = [crashes(pool, now, name, gpus, since) for name, (gpus, since) in runs.items()]
    with running([pool, *objects, holds_none(pool, now, "holds-none", 8000)]) as board:
        found = ask(board, "/view/").text
    assert tiles(found)["need a look"] == "4"
    assert keys(found) == ["product", "longer", "most-gpus", "holds-none"]


def in_shadow(
    pool: Object, namespace: str, name: str, verdict: Outcome, later: float, hours: float
) -> Object:
    found = StopOutcome(1.0, Mode.SHADOW, 50, Best(30, 0.6), verdict=verdict, later=Best(90, later), evals=9)
    record = JobRecord(attempt=1, outcome=found, past_grades=PastGrades(stopped=3600.0 * hours))
    return with_record(job_object(namespace, name, mode="Shadow"), record, pool)


def test_a_pool_s_page_tells_how_right_shadow_was() -> None:
    """That decides for Enforce; a viewer of some namespaces is told that it is of these."""
    pool = pool_object()
    objects = [
        pool,
        *(in_shadow(pool, "team-a", f"borne-{n}", Outcome.BORNE_OUT, 0.5, 3.0) for n in range(12)),
        in_shadow(pool, "team-a", "refuted", Outcome.REFUTED, 0.62, 0.0),
        in_shadow(pool, "team-b", "open", Outcome.OPEN, 0.5, 2.0),
    ]
    asked = "<dt>May it enforce?</dt><dd>"
    with running(objects) as board:
        told = ask(board, "/view/pools/research").text
        whole = "14 would-be stops: 12 borne out, 1 refuted by 0.02, 1 open; 38 GPU-hours."
        assert f"{asked}Shadow: {whole}</dd>" in told
    for namespace, record in (
        (
            "team-a",
            "Shadow, in your namespaces: 13 would-be stops: 12 borne out, 1 refuted by 0.02; 36 GPU-hours.",
        ),
        ("team-c", "No run in Shadow of your namespaces has come to a stop yet, so nothing tells whether"),
    ):
        with running(objects, Viewer("reader", frozenset({namespace}), True)) as board:
            assert f"{asked}{record}" in ask(board, "/view/pools/research").text
