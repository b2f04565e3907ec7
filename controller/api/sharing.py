"""Sharing of worker groups: what a GPUPool offers, and what an RLHFJob asks for (docs/use/sharing.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from controller import names
from controller.api import markers
from controller.api.base import DnsLabel, Spec
from controller.policy.group_types import MAX_SLOWDOWN_PERCENT
from controller.policy.sharing import MOST_RESIDENTS, SharingPlacement

FAMILIES_MAX = 16
MAX_RESIDENTS, MAX_DUTY_PERCENT = 3, 80
TURN_SECONDS, IDLE_SECONDS, EMPTY_SECONDS = 600, 30, 60
BYTES_MAX = 1 << 50

Bytes = Annotated[int, Field(strict=True, ge=1, le=BYTES_MAX, json_schema_extra=markers.INT64)]
MaybeBytes = Annotated[int, Field(strict=True, ge=0, le=BYTES_MAX, json_schema_extra=markers.INT64)]


class WorkerTemplate(BaseModel):
    """A complete pod template of a group's members. Its fields are checked by the API server in a dry run,
    not by this schema."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra=markers.PRESERVE_UNKNOWN)


class WorkerFamily(Spec):
    """Workers that several jobs can use by turns: one model class, one parallelism."""

    name: DnsLabel = Field(description="As jobs ask for it, in spec.sharing.family.")
    template: WorkerTemplate = Field(
        description="Pod template of one member. Its container runs python -m controller.group, of an image "
        "that has the family; volumes, token and environment are put in by the operator."
    )
    replicas: Annotated[int, Field(strict=True, ge=1, le=1024, json_schema_extra=markers.INT32)] = Field(
        description="Members of a group; each is a pod."
    )
    gpus_per_replica: Annotated[int, Field(strict=True, ge=1, le=1024, json_schema_extra=markers.INT32)] = (
        Field(alias="gpusPerReplica", description=f"{names.GPU_RESOURCE} that each member requests.")
    )
    device_bytes: Bytes = Field(
        alias="deviceBytes", description="Device memory of a member, that its GPUs have together."
    )
    residual_bytes: MaybeBytes = Field(
        default=0,
        alias="residualBytes",
        description="Device memory that a resident keeps on a member while it sleeps.",
    )
    host_bytes: Bytes = Field(
        alias="hostBytes",
        description="Host memory of a member for sleeping states: all residents' and the largest once more. "
        "The container's memory limit must be larger.",
    )


class SharingBackfill(StrEnum):
    """Leave for later jobs to pass one that waits for a residency."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class PoolSharing(Spec):
    """Groups of training workers that jobs use by turns. Only with delegate Builtin."""

    families: Annotated[
        tuple[WorkerFamily, ...],
        Field(min_length=1, max_length=FAMILIES_MAX, json_schema_extra=markers.list_map("name")),
    ] = Field(description="Families of workers that there may be groups of.")
    placement: SharingPlacement = Field(
        default=SharingPlacement.SPREAD,
        description="Spread: a job gets a group of its own while GPUs are free, else it joins the emptiest "
        "that takes it. Pack: it joins the fullest that takes it before a new one is opened. Isolated: it is "
        "always alone.",
    )
    backfill: SharingBackfill = Field(
        default=SharingBackfill.ENABLED,
        description="Let later jobs get a residency that delays nobody before them.",
    )
    max_residents: Annotated[
        int, Field(strict=True, ge=1, le=MOST_RESIDENTS, json_schema_extra=markers.INT32)
    ] = Field(default=MAX_RESIDENTS, alias="maxResidents", description="Jobs of one group at most.")
    max_duty_percent: Annotated[int, Field(strict=True, ge=1, le=100, json_schema_extra=markers.INT32)] = (
        Field(
            default=MAX_DUTY_PERCENT,
            alias="maxDutyPercent",
            description="Share of the time that the turns of a group's residents may take together.",
        )
    )
    turn_seconds: Annotated[int, Field(strict=True, ge=1, le=86400, json_schema_extra=markers.INT32)] = Field(
        default=TURN_SECONDS, alias="turnSeconds", description="Seconds after which a turn is lost."
    )
    idle_seconds: Annotated[int, Field(strict=True, ge=1, le=86400, json_schema_extra=markers.INT32)] = Field(
        default=IDLE_SECONDS,
        alias="idleSeconds",
        description="Seconds for which the holder of a turn may be silent; then the turn is lost.",
    )


class JobSharing(Spec):
    """A wish for a residency: the job trains on a worker group of its pool, by turns with others."""

    family: DnsLabel = Field(description="One of the families of its pool's spec.sharing.")
    state_bytes: Bytes = Field(
        alias="stateBytes",
        description="Bytes of its state on each member: weights, gradients, optimizer. A larger one ends "
        "the run.",
    )
    max_slowdown_percent: Annotated[
        int, Field(strict=True, ge=0, le=1000, json_schema_extra=markers.INT32)
    ] = Field(
        default=MAX_SLOWDOWN_PERCENT,
        alias="maxSlowdownPercent",
        description="By how much its steps may take longer than alone in a group.",
    )
