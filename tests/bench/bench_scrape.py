"""What reading a trainer's metrics costs. Baseline: prometheus_client's parser on the whole page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from prometheus_client.parser import text_string_to_metric_families

from controller.metrics import AddressPolicy, ScrapeLoop, Scraper, Target, parse
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.bench.rows import Row, median_row

_REPEATS = 7


def page(foreign: int) -> bytes:
    """A trainer's page: 32 evals with standard errors and counts, and series that are not ours."""
    lines = [
        f'{name}{{metric="gold_reward",step="{step}",attempt="1-9f2c41d0"}} 0.{step}\n'
        for step in range(10, 330, 10)
        for name in ("rlhf_eval_score", "rlhf_eval_score_stderr", "rlhf_eval_samples")
    ]
    lines += [f'vllm_request_tokens_total{{model="m",rank="{i}"}} {i}\n' for i in range(foreign)]
    return "".join(lines).encode()


def run(say: Callable[[str], None]) -> Iterator[Row]:
    for foreign in (0, 10_000):
        body = page(foreign)
        ours = [_milliseconds(lambda body=body: parse(body, "gold_reward")) for _ in range(_REPEATS)]  # type: ignore[misc]
        theirs = [_milliseconds(lambda body=body: _everything(body)) for _ in range(_REPEATS)]  # type: ignore[misc]
        yield median_row(f"scrape: parse 96 samples among {foreign} others", ours, "ms", theirs)
    say("500 jobs at 5 s against a local server, 20 s")
    yield from asyncio.run(_loop(jobs=500, interval=5.0, seconds=20.0))


def _milliseconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1000


def _everything(body: bytes) -> int:
    return sum(len(family.samples) for family in text_string_to_metric_families(body.decode()))


async def _loop(jobs: int, interval: float, seconds: float) -> Iterator[Row]:
    body = page(0)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    outcomes: list[ScrapeOutcome] = []

    remembered: dict[str, ScrapeView] = {}

    def deliver(key: str, view: ScrapeView) -> None:
        outcomes.append(view.outcome)
        remembered[key] = view

    scraper = Scraper(AddressPolicy.parse("Loopback"), last=remembered.get)
    loop = ScrapeLoop(scraper.scrape, deliver, per_host=64)
    task = asyncio.create_task(loop.run())
    for i in range(jobs):
        loop.put(f"ns/{i}", Target("127.0.0.1", port, "gold_reward", interval=interval, job=f"ns/{i}"))
    await asyncio.sleep(interval)  # every phase has come once
    outcomes.clear()
    began = time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - began
    stats = loop.stats
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.close()
    failed = sum(o is not ScrapeOutcome.OK for o in outcomes)
    wanted = jobs * seconds / interval
    return iter(
        [
            Row(f"scrape loop: {jobs} jobs at {interval:g} s, scrapes", len(outcomes), "scrapes", wanted),
            Row("scrape loop: failed", failed, "scrapes"),
            Row(
                "scrape loop: CPU per scrape, the test server's share included",
                cpu / len(outcomes) * 1000,
                "ms",
            ),
            Row("scrape loop: worst lag of the last 256", stats.max_lag * 1000, "ms"),
        ]
    )
