"""The notifier: follows RLHFJobs and tells receivers, as CloudEvents, what happens to them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping

import aiohttp

from controller import log
from controller.environ import SettingsError, help_text
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials
from controller.notify.delivery import Receiver, Receivers
from controller.notify.notifier import Notifier
from controller.notify.settings import PREFIX, Settings, addresses, describe
from controller.web.connections import Connections
from controller.web.health import Health
from controller.web.status import health_server

_logger = log.get("evalstop.notify")

RESERVED = 128  # descriptors that no connection to us may take


def main(arguments: list[str]) -> int:
    """Exit codes: 0 ended by a signal, 1 it cannot follow any more, 2 a setting is wrong or there is no way
    to the API server."""
    if arguments:
        print(f"{__doc__}\n\nSettings:\n{help_text(describe())}")
        return 0 if arguments[0] in ("-h", "--help") else 2
    try:
        settings = Settings.from_environ()
        urls = addresses(settings)
    except SettingsError as error:
        print(f"evalstop notify: {error}", file=sys.stderr)
        return 2
    log.configure(settings.log_level, settings.log_format)
    return asyncio.run(run(settings, urls))


async def run(settings: Settings, urls: list[str]) -> int:
    """Tell until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        connection = await connect()
    except NoCredentials as error:
        _logger.error("no way to the API server", error=str(error))
        return 2
    async with Api(connection, user_agent="evalstop-notify") as api, aiohttp.ClientSession() as session:
        made = [Receiver(url, session, _headers(settings.token_file)) for url in urls]
        receivers = Receivers(made)
        notifier = Notifier(settings, receivers.put)
        server = health_server(
            _health(notifier, made), settings.host, settings.port, Connections.of_process(RESERVED)
        )
        try:
            await server.start()
        except OSError as error:
            _logger.error("cannot listen", settings=f"{PREFIX}HOST, {PREFIX}PORT", error=str(error))
            return 2
        try:
            async with receivers.running() as tasks:
                follow = asyncio.create_task(notifier.follow(api), name="follow")
                ended = asyncio.create_task(stop.wait())
                _logger.info("telling", receivers=[one.host for one in made], port=server.port)
                await asyncio.wait([*tasks, follow, ended], return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                follow.cancel()
                for task in (*tasks, follow):
                    if task.done() and not task.cancelled():
                        _logger.error("a part ended", part=task.get_name(), exc_info=task.exception())
                return 0 if stop.is_set() else 1
        finally:
            await server.stop()


def _headers(token_file: str) -> Callable[[], Mapping[str, str]]:
    def headers() -> Mapping[str, str]:
        if not token_file:
            return {}
        with open(token_file, encoding="utf-8") as file:
            return {"Authorization": f"Bearer {file.read(65536).strip()}"}

    return headers


def _health(notifier: Notifier, receivers: list[Receiver]) -> Health:
    health = Health()

    def listed() -> str | None:
        if notifier.watch is None or not notifier.watch.listed:
            return "not listed yet; the log says why"
        return None

    def note(number: int, one: Receiver) -> Callable[[], str | None]:
        def read() -> str | None:
            refusal = f" ({one.refusal}, the last one)" if one.refusal else ""
            counts = f"{one.delivered} delivered, {one.waiting} wait, {one.refused} refused{refusal}"
            return (
                f"receiver {number}, {one.host}: {counts}"
                + (f", {one.dropped} dropped" if one.dropped else "")
                + (f"; {one.trouble}" if one.trouble else "")
            )

        return read

    health.require("jobs", listed)
    for number, one in enumerate(receivers, 1):  # as the file has them: several may be of one host
        health.note(note(number, one))
    return health
