"""The step API as the operator serves it: its server, and the address and authority that others are told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from controller import log
from controller.environ import listed
from controller.kube.client import Api
from controller.operator.process.settings import Settings
from controller.operator.state.steps import StepAddress
from controller.steps.directory import Directory
from controller.steps.groups import GroupDirectory
from controller.web.connections import Connections
from controller.web.reviews import Reviews
from controller.web.tls import Tls

if TYPE_CHECKING:
    from controller.policy.rollout import RolloutPlan, StepQuestion
    from controller.steps.service import StepService

_logger = log.get("evalstop.engine")

LOOK = 10.0  # s between looks at the authority of the certificate


def step_service(
    settings: Settings,
    reviews: Api,
    rollouts: Directory,
    groups: GroupDirectory,
    connections: Connections,
    planned: Callable[[StepQuestion, RolloutPlan], None],
) -> StepService | None:
    """Return the step API; None: it is not served, as there is no certificate.

    Args:
        settings: its address and certificate.
        reviews: asks the API server about tokens.
        rollouts: of jobs with rollouts, what it tells of.
        groups: of worker groups, likewise.
        connections: of the process, bounded for all servers together.
        planned: called with each plan of a step.
    """
    certificate = settings.steps_certificate
    if not certificate:
        return None
    if not Path(certificate).exists():
        _logger.warning("the step API is not served", missing=certificate)
        return None
    # What it needs takes 8 MB, and without a certificate nobody needs it.
    from controller.steps.service import AUDIENCE, IN_ALL, PER_PEER, StepService

    return StepService(
        rollouts,
        Reviews(reviews, AUDIENCE, per_peer=PER_PEER, in_all=IN_ALL),
        settings.steps_host,
        settings.steps_port,
        Tls(certificate, settings.steps_key),
        connections,
        groups,
        planned,
    )


def step_address(settings: Settings) -> StepAddress | None:
    """Return what trainers and actors are told of the step API; None: no address is set.

    Raises:
        OSError: the authority's file cannot be read.
        ValueError: it is no text.
    """
    urls = tuple(listed(settings.steps_urls))
    if not urls:
        return None
    return StepAddress(urls, Path(settings.steps_ca or settings.steps_certificate).read_text())


async def renewed_addresses(
    read: Callable[[], StepAddress | None], told: Callable[[], StepAddress | None]
) -> AsyncIterator[StepAddress]:
    """Yield each address, or authority, that is another one than those who use the API were told.

    The server looks at its certificate itself. Trainers and actors learn of an authority from their
    ConfigMaps, a minute later. One that cannot be used is logged, and the one before stays.
    """
    while True:
        await asyncio.sleep(LOOK)
        try:
            found = read()
            if found is None or found == told():
                continue
            ssl.create_default_context(cadata=found.ca)
        except (OSError, ValueError) as error:
            _logger.warning("the step API's authority cannot be used: the one before stays", error=str(error))
            continue
        yield found
