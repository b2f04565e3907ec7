"""A trainer stub: one process that answers every pod address of the simulated nodes, always the same page.

`python -m tests.bench.scale_stub`: prints its port, serves until its stdin ends.
"""

from __future__ import annotations

import asyncio
import socket
import sys

METRIC = "gold_reward"
EVALS = 20


def page() -> bytes:
    """The last evals of a healthy run, as docs/use/trainer-contract.md has them."""
    lines = []
    for i in range(1, EVALS + 1):
        labels = f'{{metric="{METRIC}",step="{10 * i}",attempt="1-9f2c41d0"}}'
        lines.append(f"rlhf_eval_score{labels} {1.0 - 0.7**i:.6f}\nrlhf_eval_score_stderr{labels} 0.02\n")
    lines.append(f'rlhf_evals_total{{metric="{METRIC}",attempt="1-9f2c41d0"}} {EVALS}\n')
    lines.append(f"rlhf_step {10 * EVALS}\nrlhf_total_steps 400\nrlhf_checkpoint_step {10 * EVALS}\n")
    return "".join(lines).encode()


async def serve() -> None:
    body = page()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = head.encode() + body

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Every loopback address, and nothing that comes from outside this machine.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("0.0.0.0", 0))
    server = await asyncio.start_server(talk, sock=listening, backlog=4096)
    print(listening.getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
