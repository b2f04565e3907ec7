"""WorkerGroup: training workers of one family that jobs use by turns. The operator's own, in its own
namespace: nobody else makes or changes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller import names
from controller.api import codec, markers
from controller.api.base import Count, DnsLabel, Spec
from controller.api.schema import status_of
from controller.api.status import Epoch, Generation
from controller.frozen import dataclass
from controller.objects import parse_time
from controller.policy.group_types import GROUPS_NAMESPACE, GroupOpening
from controller.policy.pool import GroupRecord
from controller.policy.stored import Form, Word

ANNOTATION_NODES = f"{names.GROUP}/nodes"  # planned node of each member, by commas


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The operator's record of a worker group."""

    record: Annotated[GroupRecord, Form.INLINE]
    observed_generation: Generation = None
    epoch: Epoch = None
    printed_residents: Annotated[Word | None, "Residents and the most that there may be, as in 2/3."] = None


class WorkerGroupSpec(Spec):
    """The workers that it is made of, and their pool."""

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


def manifest(opening: GroupOpening, pool: str, replicas: int, gpus: int) -> dict[str, Any]:
    """Return the WorkerGroup of a group that is opened. Its nodes are in it from the first moment on: what
    is written later may not come to be written.

    Args:
        opening: by the pool's plan.
        pool: name of the GPUPool.
        replicas: members.
        gpus: of each.
    """
    return {
        "apiVersion": names.API_VERSION,
        "kind": "WorkerGroup",
        "metadata": {
            "name": opening.name,
            "namespace": GROUPS_NAMESPACE,
            "labels": {names.LABEL_POOL: pool, names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "annotations": {ANNOTATION_NODES: ",".join(opening.nodes)},
        },
        "spec": {"pool": pool, "family": opening.family, "replicas": replicas, "gpusPerReplica": gpus},
    }


def group_record(obj: Mapping[str, Any]) -> GroupRecord:
    """Return what is known of a group; of one of which nothing was written since it was opened, just that.

    Raises:
        StatusError: its status does not read back.
    """
    if status := obj.get("status"):
        return codec.decode(GroupRecord, status)
    metadata = obj["metadata"]
    nodes = str((metadata.get("annotations") or {}).get(ANNOTATION_NODES) or "")
    opened = parse_time(metadata.get("creationTimestamp")) or 0.0
    return GroupRecord(opened=opened, nodes=tuple(nodes.split(",")) if nodes else ())


def group_status(record: GroupRecord, generation: int, most: int) -> dict[str, Any]:
    """Return the status to store for a record. ``most``: residents that there may be."""
    printed = f"{len(record.residents)}/{most}"
    return codec.encode(GroupStatus(record, observed_generation=generation, printed_residents=printed))
