"""Pages of trainers, as many ports as there are trainers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.bench.tenants.plan import METRIC, Honest

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n"


async def serve(answer: Answer) -> tuple[asyncio.Server, int]:
    """A server of a free port on the loopback address that answers every request by this function."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def whole(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def page(uid: str, attempt: str, scores: tuple[float, ...], metric: str = METRIC, more: str = "") -> bytes:
    """A page of the contract: evals at steps 10, 20, …, a checkpoint with each of them."""
    last = 10 * len(scores)
    lines = [
        f'rlhf_eval_score{{metric="{metric}",step="{10 * (n + 1)}",attempt="{attempt}"}} {score!r}'
        for n, score in enumerate(scores)
    ][-32:]
    lines += [
        f'rlhf_run_info{{uid="{uid}",attempt="{attempt}"}} 1',
        f'rlhf_evals_total{{metric="{metric}",attempt="{attempt}"}} {len(scores)}',
        *(f"{name} {last}" for name in ("rlhf_step", "rlhf_checkpoint_step")),
        "rlhf_resumed_step 0",
        more,
    ]
    return ("\n".join(lines) + "\n").encode()


@dataclass(slots=True)
class HonestTrainer:
    """One more eval at each read that comes in its time: so what is read is the same whatever the times, and
    each read that is late or missing makes the stop later.

    ``reads``: when its page was read, s of the monotonic clock; those between two evals are left out.
    """

    job: Honest
    interval: float
    uid: str = ""
    reads: list[float] = field(default_factory=list)

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        now = time.monotonic()
        if self.uid and (not self.reads or now - self.reads[-1] >= 0.7 * self.interval):
            self.reads.append(now)
        shown = self.job.scores[: len(self.reads)]
        whole(writer, page(self.uid, "1-honest", shown, more="rlhf_loss 1.0"))
        await writer.drain()

    def lags(self, until: float) -> list[float]:
        """How much later than an interval after the one before each read came, until its stop; s."""
        reads = [at for at in self.reads if at <= until][: len(self.job.scores)]
        return [max(0.0, after - before - self.interval) for before, after in itertools.pairwise(reads)]
