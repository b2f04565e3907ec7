"""`evalstop queue POOL`: who waits in a pool, in which place and why, as the operator sees it now.

The operator serves this on its pod's loopback address; the command reaches it through
``kubectl port-forward``, with the rights of the kubeconfig in use, or by ``--url``.

Exit codes: 0 shown, 1 the operator refuses (no such pool, no such job, …), 2 it cannot be reached.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

REFUSED, UNREACHABLE = 1, 2
ROOT = "/apis/evalstop.dev/v1alpha1/gpupools"
OPERATOR_PORT = 8081
PATIENCE = 20.0  # s for the port-forward to stand, and for an answer
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")

Pool = Annotated[str, typer.Argument(help="Name of the GPUPool.")]
Job = Annotated[str, typer.Option("--job", help="Only this RLHFJob, as namespace/name.")]
Url = Annotated[
    str, typer.Option("--url", help="Where the operator's queue API is, instead of a port-forward.")
]
Namespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator's Deployment.")
]
Port = Annotated[int, typer.Option("--operator-port", help="The operator's EVALSTOP_QUEUE_PORT.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=5000, help="How many to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


class _Failed(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def queue(
    pool: Pool,
    job: Job = "",
    url: Url = "",
    operator_namespace: Namespace = "evalstop-system",
    operator_port: Port = OPERATOR_PORT,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show who waits in a POOL, in which place, why, for how long, and what the policy ranks them by."""
    try:
        path = f"{ROOT}/{urllib.parse.quote(pool, safe='')}/queue"
        if job:
            namespace, slash, name = job.partition("/")
            if not (slash and namespace and name) or "/" in name:
                raise _Failed(REFUSED, f"--job: {job!r} is not allowed, expected namespace/name")
            path += f"/{urllib.parse.quote(namespace, safe='')}/{urllib.parse.quote(name, safe='')}"
        else:
            path += f"?limit={limit}"
        if url:
            answer = _get(url.rstrip("/") + path)
        else:
            with _forwarded(operator_namespace, operator_port) as base:
                answer = _get(base + path)
    except _Failed as error:
        typer.echo(f"evalstop queue: {error}", err=True)
        raise typer.Exit(error.code) from None
    if as_json:
        typer.echo(json.dumps(answer))
    elif job:
        _show([answer])
    else:
        _show(answer["items"])
        shown = len(answer["items"])
        more = f", the first {shown} shown" if shown < answer["total"] else ""
        typer.echo(f"{answer['total']} waiting in pool {answer['pool']} ({answer['policy']}){more}")


def _get(url: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise _Failed(REFUSED, f"--url: {url!r} is not allowed, expected http://… or https://…")
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise _Failed(REFUSED, _reason(error)) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise _Failed(UNREACHABLE, f"no queue API at {url.partition(ROOT)[0]}: {why}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        answer = json.load(error)
        return f"{answer['message']} ({answer['reason']})"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code} from {error.url}"


@contextlib.contextmanager
def _forwarded(namespace: str, port: int) -> Iterator[str]:
    """A port-forward to the operator for as long as the block lasts; gives its base address."""
    command = ["kubectl", "port-forward", "-n", namespace, "deployment/evalstop-operator", f":{port}"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise _Failed(UNREACHABLE, f"cannot run kubectl: {error.strerror}; or give --url") from None
    patience = threading.Timer(PATIENCE, process.terminate)
    patience.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        found = next((m for line in process.stdout if (m := _FORWARDING.search(line))), None)
        if found is None:
            process.terminate()
            said = " ".join(process.stderr.read().split()) or f"it said nothing within {PATIENCE:.0f} s"
            raise _Failed(UNREACHABLE, f"{' '.join(command)}: {said}")
        patience.cancel()
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        patience.cancel()
        process.terminate()
        process.communicate()


def _show(items: list[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("#", "job", "gpus", "waited", "reason", "ranked by"):
        table.add_column(
            title, justify="right" if title in ("#", "gpus", "waited") else "left", overflow="fold"
        )
    for item in items:
        position = "-" if item["position"] is None else str(item["position"])
        waited = "-" if item["waitedSeconds"] is None else _span(item["waitedSeconds"])
        reason = item["reason"] or item["state"]
        if item["overdue"]:
            reason += ", overdue"
        key = ", ".join(
            f"{name} {_value(value)}" for name, value in item["key"].items() if name != "submitted"
        )
        table.add_row(position, item["job"], str(item["gpus"]), waited, reason, key)
    console = Console()
    console.print(table)
    if len(items) == 1 and items[0]["message"]:
        console.print(items[0]["message"], markup=False, highlight=False)


def _value(value: Any) -> str:
    return "unknown" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _span(seconds: float) -> str:
    """``5025`` -> ``1h23m``."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{left:02}s" if minutes else f"{left}s"
