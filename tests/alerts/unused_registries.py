"""The metrics of an operator and an extender that have seen nothing yet."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

from controller.extender.process import Extender
from controller.extender.settings import Settings as ExtenderSettings
from controller.kube.connection import Connection
from controller.metrics import ScrapeLoop
from controller.operator.engine import Engine
from controller.operator.process.settings import Settings
from controller.web.certificates import issue_server, make_authority


def unused(folder: Path) -> tuple[Engine, Extender]:
    """Return both, made and never started; their collectors live as long as they do.

    Args:
        folder: an empty one, for the extender's certificates.
    """
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(now)
    server = issue_server(authority, ["localhost"], now)
    for name, text in (("ca", authority.certificate), ("crt", server.certificate), ("key", server.key)):
        (folder / name).write_text(text)

    async def build() -> tuple[Engine, Extender]:
        connection = Connection("http://nowhere", "nowhere")
        engine = Engine(Settings(), connection)
        engine.signs.watch_scrapes(ScrapeLoop(lambda target: None, lambda key, view: None))  # type: ignore[arg-type]
        files = [str(folder / name) for name in ("crt", "key", "ca")]
        settings = ExtenderSettings(certificate=files[0], key=files[1], client_ca=files[2])
        extender = Extender(settings, connection)
        await engine.api.close()
        await extender.api.close()
        return engine, extender

    return asyncio.run(build())


def registries(made: tuple[Engine, Extender]) -> list[Any]:
    return [one.metrics.registry for one in made]
