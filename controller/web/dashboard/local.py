"""``evalstop dashboard``: on this machine's loopback, with the rights of the caller's own kubeconfig."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence

from controller import names
from controller.kube.client import Api
from controller.web.dashboard.access import KeyGate, own_rights
from controller.web.dashboard.app import Dashboard
from controller.web.dashboard.feed import Feed
from controller.web.dashboard.queues import FixedAddress, QueueAddress, Queues
from controller.web.hosts import Hosts
from controller.web.server import WebServer

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def dashboard(
    api: Api,
    *,
    namespaces: Sequence[str] = (),
    default_namespace: str = "default",
    port: int = 0,
    way: QueueAddress | None = None,
    operator_namespace: str = names.NAMESPACE,
) -> AsyncIterator[str]:
    """Serve until the block ends; yield the address to open, with this run's key in its fragment.

    Args:
        api: a client with the caller's rights.
        namespaces: those to show; empty: all whose RLHFJobs may be listed.
        default_namespace: the kubeconfig's own, shown where namespaces cannot be listed.
        port: of 127.0.0.1; 0: any free one.
        way: the address of the operator's queue API; None: there is none.
        operator_namespace: where its Lease is.

    Raises:
        Forbidden: RLHFJobs may be listed nowhere.
        ApiError: the API server does not answer.
        OSError: the port cannot be had.
    """
    viewer = await own_rights(api, namespaces, default_namespace)
    followed = None if viewer.namespaces is None else sorted(viewer.namespaces)
    async with contextlib.AsyncExitStack() as stack:
        followed_feed = Feed(api, followed, viewer.pools, operator_namespace)
        feed = await stack.enter_async_context(followed_feed.following())
        queues = Queues(way or FixedAddress())
        key = secrets.token_urlsafe(24)
        made = Dashboard(feed, queues, KeyGate(key, viewer))
        server = WebServer(made.app, HOST, port)
        await server.start()
        stack.push_async_callback(server.stop)
        # By the port, too: the key is this run's, and so is the page.
        made.hosts = Hosts(
            (f"{name}:{server.port}" for name in (HOST, "localhost", "[::1]")), addresses=False
        )
        yield f"http://{HOST}:{server.port}/#key={key}"
