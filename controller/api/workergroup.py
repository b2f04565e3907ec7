"""WorkerGroup: training workers of one family that jobs use by turns. The operator's own, in its own
namespace: nobody else makes or changes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.api import markers
from controller.api.base import Count, DnsLabel, Spec
from controller.api.schema import status_of
from controller.api.status import Epoch, Generation
from controller.policy.pool.group_record import GroupRecord
from controller.policy.stored import Form, Word


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What the operator knows of a worker group."""

    record: Annotated[GroupRecord, Form.INLINE]
    observed_generation: Generation = None
    epoch: Epoch = None
    printed_residents: Annotated[Word | None, "Residents and the most that there may be, as in 2/3."] = None


class WorkerGroupSpec(Spec):
    """Which workers, of which pool."""

    pool: DnsLabel = Field(description="GPUPool whose GPUs it has.")
    family: DnsLabel = Field(description="Family of that pool's spec.sharing, as it was when it was opened.")
    replicas: Annotated[int, Field(strict=True, ge=1, le=1024, json_schema_extra=markers.INT32)] = Field(
        description="Members of the group."
    )
    gpus_per_replica: Annotated[int, Field(strict=True, ge=1, le=1024, json_schema_extra=markers.INT32)] = (
        Field(alias="gpusPerReplica", description="GPUs of each member.")
    )


class GroupMetadata(BaseModel):
    """The parts of metadata the operator reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: DnsLabel
    namespace: str = ""
    uid: str = ""
    generation: Count = 0


class WorkerGroup(BaseModel):
    """Training workers that several jobs of one namespace use by turns; made and ended by the operator."""

    model_config = ConfigDict(extra="ignore", frozen=True, json_schema_extra=markers.cel(markers.EPOCHS_GROW))

    apiVersion: Literal["evalstop.dev/v1alpha1"]
    kind: Literal["WorkerGroup"]
    metadata: GroupMetadata
    spec: WorkerGroupSpec
    status: Annotated[Any, status_of(GroupStatus)] = None
