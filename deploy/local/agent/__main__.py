"""`python -m deploy.local.agent SETTINGS.json`: the nodes that the settings name, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from controller import log as logs
from controller.kube.client import Api
from controller.kube.connection import Connection
from controller.kube.errors import ApiError
from controller.kube.kubeconfig import as_caller
from deploy.local.agent import provisioner
from deploy.local.agent.agent import NodeAgent
from deploy.local.agent.claims import Attachments
from deploy.local.agent.config import AgentConfig, ConfigProblem, NodeConfig, load
from deploy.local.agent.context import Node
from deploy.local.agent.devices import Gpus
from deploy.local.agent.events import Recorder
from deploy.local.agent.grace import first_of
from deploy.local.agent.labels import OwnLabels
from deploy.local.agent.node import Presence, allocatable_of, labels_of
from deploy.local.agent.process import probe_mounting
from deploy.local.agent.server import KubeletServer
from deploy.local.agent.sources import Objects

log = logging.getLogger("deploy.local.agent")

_NAME = "evalstop-node-agent"
_STOP_SECONDS = 5.0  # the containers' grace when the agent itself is told to leave
_REGISTER_RETRY = 1.0


class Member:
    """One node of this process, with all that belongs to it."""

    def __init__(
        self,
        config: AgentConfig,
        node: NodeConfig,
        connection: Connection,
        mounting: str,
        attachments: Attachments,
    ) -> None:
        api = Api(connection, user_agent=_NAME, manager=_NAME)
        self.node = Node(
            name=node.name,
            ip=node.ip,
            folder=config.work / node.name,
            api=api,
            server=connection.server,
            objects=Objects(api),
            events=Recorder(api, "kubelet", node.name),
            gpus=Gpus(node.gpus),
            attachments=attachments,
            mounting=mounting,
            allocatable=allocatable_of(node),
            labels=OwnLabels(api, node.name, labels_of(node)),
            images=config.images,
            restart_backoff=config.restart_backoff,
        )
        self.agent = NodeAgent(self.node)
        self.presence = Presence(node, api, config.port, config.lease_seconds)
        self._server = KubeletServer(self.agent, config.client_names)
        self._config, self._own = config, node

    async def start(self) -> list[Coroutine[Any, Any, None]]:
        """Clean up, listen, register; the work to be done from now on."""
        await self.agent.clean()
        own, config = self._own, self._config
        await self._server.start(own.ip, config.port, own.certificate, own.key, config.client_ca)
        while True:
            try:
                await self.presence.register()
                break
            except ApiError as error:
                log.warning("node %s: not registered yet: %s", own.name, error)
                await asyncio.sleep(_REGISTER_RETRY)
        log.info("node %s is ready at %s", own.name, own.ip)
        return [self.node.events.run(), self.presence.keep(), self.agent.run()]

    async def stop(self) -> None:
        await asyncio.gather(self.presence.leave(), self.agent.stop(_STOP_SECONDS))
        await self._server.stop()


async def serve(config: AgentConfig) -> None:
    """Run all nodes, and the provisioner if it is to run here, until a signal says to leave."""
    mounting = await probe_mounting() if config.mounting == "auto" else config.mounting
    log.info("mounting: %s", mounting)
    attachments = Attachments()
    members = []
    for node in config.nodes:
        caller = await as_caller(str(node.kubeconfig))
        members.append(Member(config, node, caller.connection, mounting, attachments))
    leave = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leave.set)
    leaving = asyncio.ensure_future(leave.wait())
    tasks: list[asyncio.Task[None]] = []
    try:
        starting = asyncio.gather(*(member.start() for member in members))
        await first_of(starting, leaving)
        if not starting.done():
            starting.cancel()
            return
        work = [coroutine for coroutines in starting.result() for coroutine in coroutines]
        if config.provisioner is not None and config.volumes is not None:
            work.append(provisioner.serve(config.provisioner, config.volumes))
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        await first_of(*tasks, leaving)
        for task in [task for task in tasks if task.done()]:
            task.result()  # none of them ends by itself: its exception ends the agent
    finally:
        await asyncio.gather(*(member.stop() for member in members))
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        for member in members:
            await member.node.api.close()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(
            "python -m deploy.local.agent SETTINGS.json (deploy/local/agent/config.py names the settings)"
        )
    logs.configure(form="console")
    try:
        config = load(Path(sys.argv[1]))
    except ConfigProblem as error:
        sys.exit(str(error))
    asyncio.run(serve(config))


if __name__ == "__main__":
    main()
