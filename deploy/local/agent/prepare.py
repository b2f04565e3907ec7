"""From a container's spec to the command that is run: image, environment, mounts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from controller.kube.client import Object
from controller.kube.errors import ApiError, NotFound
from deploy.local.agent import devices, quantity
from deploy.local.agent.context import Node
from deploy.local.agent.env import ConfigError, command_line, environment
from deploy.local.agent.fit import GPU_RESOURCE
from deploy.local.agent.images import FOLDERS, environment_for
from deploy.local.agent.mounts import Rewriter, container_mounts, missing_folder, uncovered
from deploy.local.agent.process import Command
from deploy.local.agent.sources import KINDS
from deploy.local.agent.users import user_of
from deploy.local.agent.volumes import PodVolumes

_FORBIDDEN_TRIES = 10  # the authorizer learns a moment later than we that the pod is ours


async def prepare(
    node: Node, pod: Object, container: Object, volumes: PodVolumes, termination_log: Path, hosts: Path | None
) -> Command:
    """Return the command of a container, with its variables, user and mounts resolved.

    Args:
        node: the node that runs it.
        pod: as the API has it.
        container: of the pod's spec.
        volumes: the pod's, ready to be mounted.
        termination_log: the file that stands for its terminationMessagePath.
        hosts: the pod's /etc/hosts; None: the machine's.

    Raises:
        UnmappedImage: no local environment stands for its image.
        ConfigError: a variable refers to what is not there.
        VolumeError: a mount names no volume of the pod.
    """
    image = environment_for(container["image"], node.images)
    hostname = pod["spec"].get("hostname") or pod["metadata"]["name"][:63].rstrip("-.")
    user = user_of(pod, container) if node.changes_users else None
    base = {**image.env, "HOSTNAME": hostname, **_kubernetes(node), **_gpus(node, pod, container)}
    if user is not None and user.uid:
        base["HOME"] = "/"  # as a runtime has it for a user without a name

    async def read(resource: str, name: str) -> Object | None:
        return await _read(node, resource, pod["metadata"]["namespace"], name)

    variables = await environment(pod, container, base, read, dict(node.allocatable))
    argv = command_line(container, image.entrypoint, image.cmd, variables)
    cwd = "/" + (container.get("workingDir") or image.working_dir).strip("/")
    mounts = container_mounts(container, volumes, variables, termination_log, hosts)
    mounts += uncovered(mounts, FOLDERS)
    if node.mounting == "none":
        rewrite = Rewriter(mounts)
        argv, variables, cwd = (
            [rewrite.text(part) for part in argv],
            rewrite.environment(variables),
            rewrite.text(cwd),
        )
    else:
        mounts += missing_folder(cwd, mounts)
    reached = FOLDERS if user is not None else ()
    return Command(argv, variables, cwd, hostname, mounts, node.mounting, user, reached)


def _kubernetes(node: Node) -> Mapping[str, str]:
    """Return where programs find the API server: its loopback address, since there is no Service to reach it
    by."""
    server = urlsplit(node.server)
    host, port = str(server.hostname), str(server.port or 443)
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
    }


def _gpus(node: Node, pod: Object, container: Object) -> Mapping[str, str]:
    limits = (container.get("resources") or {}).get("limits") or {}
    wanted = int(quantity.parse(limits.get(GPU_RESOURCE, 0)))
    return devices.variables(node.gpus.assign(pod["metadata"]["uid"], container["name"], wanted))


async def _read(node: Node, resource: str, namespace: str, name: str) -> Object | None:
    for remaining in reversed(range(_FORBIDDEN_TRIES)):
        try:
            return await node.api.get(KINDS[resource], name, namespace)
        except NotFound:
            return None
        except ApiError as error:
            if error.status != 403 or not remaining:
                raise ConfigError(str(error)) from error
            await asyncio.sleep(0.1)
    return None
