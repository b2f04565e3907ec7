"""Startup, readiness and liveness probes, and lifecycle hooks, with kubelet's meaning of their settings."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import aiohttp

from controller.kube.client import Object
from deploy.local.agent.process import ContainerProcess

_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE
_SHOWN_OUTPUT = 1024  # bytes of a failed command's output in the event

#: Probe and hook handlers that this node can carry out.
HANDLERS = frozenset({"httpGet", "tcpSocket", "exec", "sleep"})


class HandlerFailed(Exception):
    """A probe or hook failed; the message goes into the event."""


async def carry_out(
    handler: Object, container: Object, pod_ip: str, process: ContainerProcess, seconds: float
) -> None:
    """One probe or hook. Raises HandlerFailed, also after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            if action := handler.get("httpGet"):
                await _http(action, container, pod_ip)
            elif action := handler.get("tcpSocket"):
                host, port = action.get("host") or pod_ip, port_number(container, action["port"])
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
            elif action := handler.get("exec"):
                code, output = await process.execute(action.get("command") or [], seconds)
                if code != 0:
                    raise HandlerFailed(
                        output[:_SHOWN_OUTPUT].decode(errors="replace").strip() or f"exit code {code}"
                    )
            elif action := handler.get("sleep"):
                await asyncio.sleep(action["seconds"])
    except TimeoutError as error:
        raise HandlerFailed(f"no answer within {seconds:g} s") from error
    except (OSError, aiohttp.ClientError) as error:
        raise HandlerFailed(str(error) or type(error).__name__) from error


async def _http(action: Object, container: Object, pod_ip: str) -> None:
    scheme = (action.get("scheme") or "HTTP").lower()
    host, port = action.get("host") or pod_ip, port_number(container, action["port"])
    path = action.get("path") or "/"
    url = f"{scheme}://{host}:{port}{path if path.startswith('/') else '/' + path}"
    headers = {"User-Agent": "kube-probe/local", "Accept": "*/*"}
    headers.update({header["name"]: header["value"] for header in action.get("httpHeaders") or []})
    connector = aiohttp.TCPConnector(force_close=True, ssl=_UNVERIFIED)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        if not 200 <= response.status < 400:
            raise HandlerFailed(f"HTTP probe failed with statuscode: {response.status}")


def port_number(container: Object, port: int | str) -> int:
    """Return a port by number or by the name the container gives it. Raises HandlerFailed for a name it does
    not."""
    if isinstance(port, int):
        return port
    for entry in container.get("ports") or []:
        if entry.get("name") == port:
            return int(entry["containerPort"])
    if port.isdigit():
        return int(port)
    raise HandlerFailed(f"container {container['name']!r} has no port called {port!r}")


class Probe:
    """One probe of one running container instance."""

    def __init__(self, spec: Object) -> None:
        self.spec = spec
        self.delay = float(spec.get("initialDelaySeconds") or 0)
        self.period = float(spec.get("periodSeconds") or 10)
        self.timeout = float(spec.get("timeoutSeconds") or 1)
        self.success_threshold = int(spec.get("successThreshold") or 1)
        self.failure_threshold = int(spec.get("failureThreshold") or 3)

    async def run(
        self,
        container: Object,
        pod_ip: str,
        process: ContainerProcess,
        on_change: Callable[[bool], bool],
        on_failure: Callable[[str], None],
    ) -> None:
        """Probe until `on_change`, called at a threshold, answers False; `on_failure` hears each failure."""
        successes = failures = 0
        await asyncio.sleep(self.delay)
        while True:
            try:
                await carry_out(self.spec, container, pod_ip, process, self.timeout)
                successes, failures = successes + 1, 0
            except HandlerFailed as error:
                successes, failures = 0, failures + 1
                on_failure(str(error))
            if successes == self.success_threshold and not on_change(True):
                return
            if failures == self.failure_threshold and not on_change(False):
                return
            await asyncio.sleep(self.period)
