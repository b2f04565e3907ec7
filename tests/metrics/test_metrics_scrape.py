"""The guarded GET against real servers that are slow, huge, hostile, or none at all."""

import asyncio
import contextlib
import dataclasses
import importlib
import re
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from bad_trainers import BOMB, CHUNKED, ENDLESS, MILLION_SAMPLES, PAGE, Manner, answer, raw, serving, silent
from hypothesis import given
from hypothesis import strategies as st

from controller.metrics import AddressPolicy, Scraper, Target, parse
from controller.metrics.fetch import HEAD_BYTES
from controller.metrics.fetch import _request as request_of
from controller.metrics.scrape import _encoded as encoded
from controller.policy.job.types import ScrapeOutcome, ScrapeView

Run = Callable[[Any], Any]
OPEN = AddressPolicy.parse("Loopback")
TIMEOUT = 0.4  # s, for a whole scrape that is to time out
PATIENCE = 20.0  # s, for the others: this machine may be busy
TRIES = 20  # until there is a connection, where that is not what is tried


async def scrape(port: int, addresses: AddressPolicy = OPEN, limit: float = PATIENCE) -> ScrapeView:
    scraper = Scraper(addresses, timeout=limit, connect_timeout=limit / 2, wall=lambda: 7.0)
    return await scraper.scrape(Target("127.0.0.1", port, "gold"))


# The operator's loop is uvloop's; its transports are not asyncio's.
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def scrape_of(manner: Manner, timeout: float = PATIENCE, run: Run = asyncio.run) -> tuple[ScrapeView, int]:
    async def main() -> tuple[ScrapeView, int]:
        async with serving(manner) as port:
            return await scrape(port, limit=timeout), port

    return run(main())


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE)
GOOD = [
    pytest.param(answer(), id="plain text"),
    pytest.param(answer(kind="application/octet-stream"), id="odd content type"),
    pytest.param(answer(kind="text/plain; version=0.0.4; charset=utf-8"), id="declared version"),
    pytest.param(answer(headers="Content-Encoding: identity\r\n"), id="identity encoding"),
    pytest.param(
        raw(
            CHUNKED, b"%x\r\n%s\r\n" % (20, PAGE[:20]), b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE) - 20, PAGE[20:])
        ),
        id="chunked",
    ),
    pytest.param(raw(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE), id="ended by closing"),
    pytest.param(raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n" + PAGE), id="continue first"),
    pytest.param(answer(headers="Set-Cookie: a=b\r\n"), id="cookie"),
    pytest.param(
        raw(
            b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/html\r\nContent-Encoding: br\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n" + PAGE,
        ),
        id="hints first",
    ),
    pytest.param(
        raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE),
        id="continue in one piece with a length",
    ),
    pytest.param(raw(*(bytes([b]) for b in HEAD + PAGE[:9]), PAGE[9:]), id="byte by byte"),
    pytest.param(raw(HEAD + PAGE, pause=PATIENCE), id="kept open"),
    pytest.param(raw((HEAD + PAGE).replace(b"\r\n", b"\n")), id="line feeds alone"),
    pytest.param(
        raw(HEAD[:-2] + b"A: " + b"b" * (HEAD_BYTES - len(HEAD) - 5) + b"\r\n\r\n" + PAGE),
        id="as many headers as may be",
    ),
    pytest.param(
        raw(CHUNKED + b"%X;a=b\r\n%s\r\n0\r\nA: b\r\n\r\n" % (len(PAGE), PAGE)), id="extension and trailer"
    ),
]


@both_loops
@pytest.mark.parametrize("manner", GOOD)
def test_a_page_is_read_and_stamped(manner: Manner, run: Run) -> None:
    begin = time.monotonic()
    view, _ = scrape_of(manner, run=run)
    assert time.monotonic() - begin < PATIENCE / 2
    assert (view.outcome, view.message) == (ScrapeOutcome.OK, "")
    assert [(p.step, p.score) for p in view.points] == [(10, 0.5)]
    assert (view.step, view.at) == (12, 7.0)


HTML = b"<!doctype html><title>dashboard</title>\n"
EXPECTED = "expected status 200 and Prometheus text"
BAD = [
    pytest.param(silent, "Timeout", "no complete answer within 0.4 s; expected", id="silent"),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\n", forever=b"X", pause=0.05), "Timeout", "0.4 s", id="one byte at a time"
    ),
    pytest.param(raw(CHUNKED, forever=b"1\r\n#\r\n", pause=0.05), "Timeout", "0.4 s", id="slow body"),
    pytest.param(
        raw(forever=b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.01), "Timeout", "0.4 s", id="endless continue"
    ),
    pytest.param(
        raw(CHUNKED, forever=ENDLESS), "PageTooLarge", "reading stopped after", id="infinite chunked"
    ),
    pytest.param(
        raw(b"HTTP/1.0 200 OK\r\n\r\n", forever=PAGE * 500), "PageTooLarge", "at most 1048576", id="infinite"
    ),
    pytest.param(answer(MILLION_SAMPLES), "PageTooLarge", "56000000 bytes announced", id="a million samples"),
    pytest.param(answer(b"rlhf_kl 1\n" * 90_000), "PageTooLarge", "more than 4096 lines", id="many samples"),
    pytest.param(answer(b"x" * (5 << 20)), "PageTooLarge", "5242880 bytes announced", id="one 5 MB line"),
    pytest.param(
        answer(BOMB, headers="Content-Encoding: gzip\r\n"),
        "NotPrometheus",
        "answered compressed (gzip)",
        id="gzip bomb",
    ),
    pytest.param(answer(BOMB), "NotPrometheus", "not UTF-8", id="gzip without a word"),
    pytest.param(
        answer(status="301 Moved", headers="Location: http://169.254.169.254/\r\n"),
        "NotPrometheus",
        "redirect (301), never followed",
        id="redirect",
    ),
    pytest.param(
        answer(status="307 Moved"),
        "NotPrometheus",
        "redirect (307), never followed",
        id="redirect to nowhere",
    ),
    pytest.param(answer(HTML, kind="text/html"), "NotPrometheus", "answered text/html", id="html"),
    pytest.param(answer(HTML), "NotPrometheus", "the page starts with HTML or XML", id="html as text"),
    pytest.param(answer(b"\x7fELF\0\xff\xfe"), "NotPrometheus", "not UTF-8", id="binary"),
    pytest.param(
        answer(b"", status="204 No Content"),
        "NotPrometheus",
        f"answered 204 No Content; {EXPECTED}",
        id="204",
    ),
    pytest.param(
        answer(status="500 Internal Server Error"),
        "NotPrometheus",
        f"answered 500 Internal Server Error; {EXPECTED}",
        id="500",
    ),
    pytest.param(answer(status="404 Not Found"), "NotPrometheus", "answered 404 Not Found", id="404"),
    pytest.param(raw(b"SSH-2.0-OpenSSH_9.9\r\n"), "NotPrometheus", "not whole, valid HTTP", id="not http"),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5000 + b"\r\n"), "NotPrometheus", "HTTP", id="many headers"
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 20_000 + b"\r\n\r\n"),
        "NotPrometheus",
        "HTTP",
        id="long header",
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + PAGE),
        "NotPrometheus",
        "not whole",
        id="cut short",
    ),
    pytest.param(raw(CHUNKED + b"5\r\n# abc"), "NotPrometheus", "not whole", id="cut in a chunk"),
    pytest.param(
        raw(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE[:-4]),
        "NotPrometheus",
        "the page is cut off",
        id="cut without a length",
    ),
    pytest.param(raw(), "Unreachable", "closed without an answer", id="hangs up"),
    pytest.param(raw(HEAD[:-4]), "Unreachable", "closed without an answer", id="hangs up in the head"),
    pytest.param(
        raw(b"HTTP/1.1 100 Continue\r\n\r\n"), "Unreachable", "closed without", id="continue, then hangs up"
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\n", forever=b"A: b\r\n" * 999), "NotPrometheus", "16384", id="endless headers"
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\nA: ", forever=b"b" * 9999), "NotPrometheus", "16384", id="endless header"
    ),
    pytest.param(raw(b"HTTP/1.1 200 ", forever=b"O" * 9999), "NotPrometheus", "16384", id="endless reason"),
    pytest.param(
        raw(forever=b"HTTP/1.1 100 Continue\r\n\r\n" * 99), "NotPrometheus", "16384", id="many continues"
    ),
    pytest.param(
        raw(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" + PAGE),
        "NotPrometheus",
        f"answered 101 Switching Protocols; {EXPECTED}",
        id="another protocol",
    ),
    pytest.param(
        raw(CHUNKED + b"%x\r\n%s\r\n" % (len(PAGE), PAGE)), "NotPrometheus", "not whole", id="no last chunk"
    ),
    pytest.param(
        raw(CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(PAGE), PAGE)), "NotPrometheus", "not whole", id="no end"
    ),
    pytest.param(
        raw(HEAD + PAGE + b"# more\n"), "NotPrometheus", "not whole, valid HTTP", id="a length too short"
    ),
    pytest.param(raw((HEAD + PAGE) * 2), "NotPrometheus", "not whole, valid HTTP", id="two answers"),
    *(
        pytest.param(raw(CHUNKED + begun, forever=rest), "PageTooLarge", "reading stopped after", id=name)
        for name, begun, rest in (
            ("endless small chunks", b"", b"1\r\n#\r\n" * 9999),
            ("endless extension", b"1;", b"a" * 99_999),
            ("endless trailer", b"0\r\nA: ", b"b" * 99_999),
            ("endless trailers", b"0\r\n", b"A: b\r\n" * 9999),
        )
    ),
    pytest.param(raw(CHUNKED + b"xyz\r\n"), "NotPrometheus", "not whole, valid HTTP", id="no chunk's size"),
    pytest.param(
        raw(CHUNKED + b"f" * 17 + b"\r\n"), "NotPrometheus", "not whole, valid HTTP", id="a chunk beyond all"
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: some\r\n\r\n" + PAGE),
        "NotPrometheus",
        "not whole, valid HTTP",
        id="no length",
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 73\r\n\r\n" + PAGE),
        "NotPrometheus",
        "not whole, valid HTTP",
        id="two lengths",
    ),
    pytest.param(
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 50 + b"\r\n\r\n" + PAGE),
        "NotPrometheus",
        "not whole, valid HTTP",
        id="a length beyond all",
    ),
    pytest.param(
        raw(b"HTTP/1.1 404 \xff\x1b[2J\xe2\x80\xae\r\n\r\n"),
        "NotPrometheus",
        "answered 404 ",
        id="odd reason",
    ),
    pytest.param(
        raw(b"HTTP/1.0 200 OK\r\n\r\n", forever=bytes(1 << 20)),
        "PageTooLarge",
        "at most 1048576",
        id="fast flood",
    ),
]


@both_loops
@pytest.mark.parametrize(("manner", "outcome", "words"), BAD)
def test_what_cannot_be_used_has_an_outcome_and_a_message(
    manner: Manner, outcome: str, words: str, run: Run
) -> None:
    for _ in range(TRIES):
        begin = time.monotonic()
        view, port = scrape_of(manner, TIMEOUT if outcome == "Timeout" else PATIENCE, run)
        assert time.monotonic() - begin < PATIENCE / 2
        assert view.outcome == outcome
        if "no connection within" not in view.message:  # a busy machine may not connect in half of `TIMEOUT`
            break
    assert view.message.startswith(f"http://127.0.0.1:{port}/metrics: ")
    assert words in view.message
    assert "expected" in view.message or "at most" in view.message
    assert len(view.message) <= 400
    assert view.message.isprintable()
    assert (view.points, view.at) == ((), 7.0)


@both_loops
def test_nobody_there(run: Run) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        view = run(scrape(sock.getsockname()[1]))
    assert view.outcome is ScrapeOutcome.UNREACHABLE
    assert re.search(r"not reachable \(Connection refused\); expected the trainer to listen", view.message)


@both_loops
def test_a_full_backlog_is_a_timeout_of_the_connection(run: Run) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        address = sock.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        view = run(scrape(address[1], limit=TIMEOUT))
        for client in waiting:
            client.close()
    assert view.outcome is ScrapeOutcome.TIMEOUT
    assert "no connection within 0.2 s" in view.message


def test_a_refused_address_is_not_even_connected_to() -> None:
    async def main() -> tuple[ScrapeView, int]:
        connections = 0

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1

        async with serving(count) as port:
            view = await scrape(port, addresses=AddressPolicy())
            await asyncio.sleep(0.05)
            return view, connections

    view, connections = asyncio.run(main())
    assert (view.outcome, connections) == (ScrapeOutcome.REFUSED_ADDRESS, 0)
    assert "EVALSTOP_SCRAPE_ADDRESSES" in view.message


def test_proxy_variables_are_not_obeyed_and_redirects_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[ScrapeView, ScrapeView, list[bytes]]:
        stolen: list[bytes] = []

        async def thief(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stolen.append(await reader.readuntil(b"\r\n\r\n"))

        async with serving(thief) as elsewhere:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{elsewhere}")
            away = answer(status="302 Found", headers=f"Location: http://127.0.0.1:{elsewhere}/metrics\r\n")
            async with serving(answer()) as good, serving(away) as bad:
                return await scrape(good), await scrape(bad), stolen

    good, bad, stolen = asyncio.run(main())
    assert (good.outcome, bad.outcome, stolen) == (ScrapeOutcome.OK, ScrapeOutcome.NOT_PROMETHEUS, [])


def test_the_request_offers_no_compression_and_no_secret() -> None:
    async def main() -> bytes:
        request = b""

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal request
            request = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\nSet-Cookie: a=b\r\n\r\n" + PAGE)

        scraper = Scraper(OPEN)
        async with serving(listen) as port:
            for _ in range(2):  # a cookie of the first answer would come back with the second request
                await scraper.scrape(Target("127.0.0.1", port, "gold", "/a b?c=d"))
        return request

    request = asyncio.run(main())
    head, *headers = request.decode().lower().strip().split("\r\n")
    assert head == "get /a%20b?c=d http/1.1"
    assert "accept-encoding: identity" in headers
    assert not [h for h in headers if h.startswith(("cookie", "authorization"))]


def test_evals_that_are_remembered_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets the views remembers them: that is used as long as it is this target's last page."""
    module = importlib.import_module("controller.metrics.parse")  # of the same name: its function
    parsing, parsed = module._evals, []
    monkeypatch.setattr(module, "_evals", lambda *given: parsed.append(given) or parsing(*given))
    odd = PAGE + b'rlhf_eval_score{metric="gold",step="20",attempt="1-1"} NaN\n'
    pages = [odd, odd + b"rlhf_kl 1\n", odd, odd, PAGE, PAGE]
    times = iter(range(100))
    remembered: list[ScrapeView] = []
    scraper = Scraper(
        OPEN, wall=lambda: float(next(times)), last=lambda job: remembered[-1] if remembered else None
    )
    target = Target("127.0.0.1", 80, "gold", job="ns/run")
    for number, page in enumerate(pages):
        if number == 3:  # something else was noted of the job: a scrape that failed
            remembered.append(ScrapeView(ScrapeOutcome.TIMEOUT, at=99.5))
        view = scraper._read(target, page)
        remembered.append(view)
        again = len(parsed)
        assert repr(dataclasses.replace(view, at=0.0, member=None)) == repr(
            parse(page, "gold")
        )  # a NaN is unequal
        del parsed[again:]  # what `parse` itself took
        assert ("must be finite" in view.message) == (page is not PAGE)
    assert len(parsed) == 3  # the first page, the one after the failure, and the one that is another


@both_loops
@pytest.mark.parametrize(
    "manner",
    [
        raw(CHUNKED, forever=ENDLESS),
        raw(CHUNKED, forever=b"2\r\n#\n\r\n" * 9999),
        raw(CHUNKED + b"0\r\nA: ", forever=b"b" * (64 << 10)),
        raw(b"HTTP/1.1 200 OK\r\nA: ", forever=b"b" * (64 << 10)),
    ],
    ids=["page", "small chunks", "trailer", "head"],
)
def test_what_is_endless_costs_no_more_memory_than_the_cap(manner: Manner, run: Run) -> None:
    tracemalloc.start()
    try:
        scrape_of(manner, run=run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


class Watched:
    """A trainer that notes the request and when the connection's other end is gone."""

    def __init__(self, answer: bytes, reset: bool = False) -> None:
        self.request = b""
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self._answer = answer
        self._reset = reset

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        self.asked.set()
        if self._reset:
            await asyncio.sleep(0.05)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        with contextlib.suppress(OSError):
            await reader.read()
        self.gone.set()


@both_loops
@pytest.mark.parametrize(
    "part", [b"", HEAD[:20], HEAD + PAGE[:20]], ids=["silent", "in the head", "in the body"]
)
def test_a_cancelled_scrape_closes_its_connection(part: bytes, run: Run) -> None:
    async def main() -> None:
        trainer = Watched(part)
        async with serving(trainer) as port:
            task = asyncio.create_task(scrape(port))
            await trainer.asked.wait()
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(trainer.gone.wait(), PATIENCE)

    run(main())


@both_loops
@pytest.mark.parametrize(
    "whole",
    [
        HEAD + PAGE,
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n",
        b"SSH-2.0\r\n",
    ],
    ids=["read", "refused", "too large", "not http"],
)
def test_a_connection_is_closed_when_it_is_of_no_more_use(whole: bytes, run: Run) -> None:
    async def main() -> None:
        trainer = Watched(whole)
        async with serving(trainer) as port:
            await scrape(port)
            await asyncio.wait_for(trainer.gone.wait(), PATIENCE)

    run(main())


@both_loops
@pytest.mark.parametrize(
    ("part", "outcome", "words"),
    [
        (b"", "Unreachable", "not reachable (Connection reset by peer)"),
        (HEAD + PAGE[:20], "NotPrometheus", "not whole, valid HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + PAGE, "NotPrometheus", "not whole, valid HTTP"),
    ],
    ids=["silent", "in a body of a length", "in a body without one"],
)
def test_a_connection_that_is_reset(part: bytes, outcome: str, words: str, run: Run) -> None:
    view, _ = scrape_of(Watched(part, reset=True), run=run)
    assert view.outcome == outcome
    assert words in view.message


@both_loops
def test_an_ipv6_trainer_is_asked_by_its_address_in_brackets(run: Run) -> None:
    async def main() -> tuple[ScrapeView, bytes, int]:
        trainer = Watched(HEAD + PAGE)
        scraper = Scraper(OPEN)
        async with serving(trainer, "::1") as port:
            return await scraper.scrape(Target("::1", port, "gold")), trainer.request, port

    try:
        view, request, port = run(main())
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert view.outcome is ScrapeOutcome.OK
    assert f"\r\nHost: [::1]:{port}\r\n".encode() in request


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_whatever_the_path_a_request_is_one(path: str) -> None:
    """A path is a user's text: it must not end the line and begin one of its own."""
    request = request_of("10.0.0.1", 9400, encoded("/" + path))
    line, *headers = request.split(b"\r\n")
    assert re.fullmatch(rb"GET /[!-~]* HTTP/1\.1", line)
    assert headers[0] == b"Host: 10.0.0.1:9400"
    assert headers[-2:] == [b"", b""]
    assert len(headers) == 7
    assert b"\n" not in request.replace(b"\r\n", b"")


@pytest.mark.parametrize(("port", "path"), [(0, "/metrics"), (65536, "/metrics"), (80, "metrics"), (80, "")])
def test_a_target_that_is_no_address_is_refused_at_once(port: int, path: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Target("10.0.0.1", port, "gold", path)


def test_an_ipv6_target_is_written_in_brackets() -> None:
    assert str(Target("fd12::1", 9400, "gold").url) == "http://[fd12::1]:9400/metrics"
