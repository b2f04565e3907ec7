"""Locations of checkpoints: the trainer's, and the retention place out of its reach."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from controller.api import markers
from controller.api.base import CLAIM_PATH_PATTERN, URI_PATTERN, DnsSubdomain, Spec, Step, extra
from controller.names import UID_MAX
from controller.policy.job import PINS_MAX, Retain

ONE_NAME = "expected a scheme of s3, gs or az, so that a bucket has one name (s3a is s3, gcs gs, abfs az)"


class Layout(StrEnum):
    """Trainer library whose layout the checkpoint folder has."""

    AUTO = "Auto"
    PLAIN = "Plain"
    HUGGING_FACE = "HuggingFace"
    VERL = "Verl"
    OPEN_RLHF = "OpenRLHF"
    NEMO_RL = "NeMoRL"
    SLIME = "Slime"
    TORCH_DCP = "TorchDCP"


class Keep(StrEnum):
    BEST = "Best"
    BEST_AND_LATEST = "BestAndLatest"


def _no_dot_steps(text: str) -> str:
    if any(step in (".", "..") for step in text.split("/")):
        raise ValueError(f'{text} has a step "." or "..": name the folder itself')
    return text


class VolumeClaim(Spec):
    """A folder in a PersistentVolumeClaim of the RLHFJob's namespace."""

    claim_name: DnsSubdomain = Field(description="The claim.")
    path: Annotated[
        str,
        Field(
            max_length=512,
            pattern=CLAIM_PATH_PATTERN,
            json_schema_extra=markers.cel(markers.no_dot_steps("path")),
        ),
        AfterValidator(_no_dot_steps),
    ] = Field(default="/", description="The folder, from the root of the volume (not of a container).")


STORES = ("s3", "gs", "az")


def _of_a_store(text: str) -> str:
    if text.partition("://")[0] not in STORES:
        raise ValueError(f"{text}: {ONE_NAME}")
    return text


class ObjectStore(Spec):
    """A prefix in an object store, reached with the workload's own credentials."""

    uri: Annotated[
        str,
        Field(
            max_length=512,
            pattern=URI_PATTERN,
            json_schema_extra=markers.cel(
                markers.no_dot_steps("uri"),
                markers.rule("self.matches('^(s3|gs|az)://')", f"uri %s: {ONE_NAME}", "self"),
            ),
        ),
        AfterValidator(_no_dot_steps),
        AfterValidator(_of_a_store),
    ] = Field(
        description="Scheme (s3, gs, az), bucket and prefix, as in s3://bucket/prefix; no credentials in it."
    )


class StorageLocation(Spec):
    """Location of checkpoints: a volume or an object store."""

    model_config = extra(markers.cel(markers.exactly_one_of("place", ("volumeClaim", "objectStore"))))

    volume_claim: VolumeClaim | None = Field(default=None, description="A folder on a volume.")
    object_store: ObjectStore | None = Field(default=None, description="A prefix in an object store.")

    @model_validator(mode="after")
    def _one(self) -> StorageLocation:
        count = (self.volume_claim is not None) + (self.object_store is not None)
        if count != 1:
            raise ValueError(f"{count} members, exactly one is needed of: volumeClaim, objectStore")
        return self


SAME_CLAIM = (
    "retention must be another volume claim than location: trainer pods mount location and could overwrite "
    "what is kept"
)
NESTED_URI = "retention must lie outside location, and location outside retention: the trainer writes there"
_BOTH_CLAIMS = "has(self.location.volumeClaim) && has(self.retention.volumeClaim)"
_BOTH_STORES = "has(self.location.objectStore) && has(self.retention.objectStore)"
_LOCATION, _RETENTION = "self.location.objectStore.uri + '/'", "self.retention.objectStore.uri + '/'"


Id = Annotated[int, Field(strict=True, ge=0, le=UID_MAX, json_schema_extra=markers.INT64)]


class CheckpointUser(Spec):
    """The user that reads and writes checkpoints beside the trainer."""

    user: Id = Field(description="Number of the user that the trainer runs as, as in `id -u`; 0 is root.")
    group: Id | None = Field(
        default=None, description="Number of its group, as in `id -g`. Default: the number of the user."
    )


class Checkpoints(Spec):
    """The trainer's checkpoints, and the location that keeps the best one out of its reach."""

    model_config = extra(
        markers.cel(
            markers.rule(
                f"!({_BOTH_CLAIMS}) || "
                "self.location.volumeClaim.claimName != self.retention.volumeClaim.claimName",
                f"{SAME_CLAIM}; both are %s",
                "self.retention.volumeClaim.claimName",
                path=".retention",
            ),
            markers.rule(
                f"!({_BOTH_STORES}) || (!({_LOCATION}).startsWith({_RETENTION}) && "
                f"!({_RETENTION}).startsWith({_LOCATION}))",
                f"{NESTED_URI}; location is %s, retention %s",
                "self.location.objectStore.uri",
                "self.retention.objectStore.uri",
                path=".retention",
            ),
        )
    )

    location: StorageLocation = Field(description="Where the trainer writes its checkpoints.")
    layout: Layout = Field(
        description="Whose habits the checkpoint folder follows. Auto: found by what lies there, as "
        "status.layout says; where two fit, nothing is secured until one is named."
    )
    retention: StorageLocation = Field(
        description="Where the operator keeps the best checkpoint; no trainer pod mounts it or writes there."
    )
    retain: Retain = Field(
        default=Retain.BEFORE_SUSPEND,
        description="When the best checkpoint of a stopped run is copied. BeforeSuspend: the run goes on "
        "until the copy is verified. AfterSuspend: it is suspended once its pin is found unchanged, and the "
        "copy follows while the GPUs work for others.",
    )
    keep: Keep = Field(
        default=Keep.BEST, description="Which checkpoints are retained when the run is stopped."
    )
    run_as: CheckpointUser | None = Field(
        default=None,
        description="As whom access Jobs run, where the securityContext of the pod template, or of its first "
        "container, has no runAsUser. Default: as the owner of the newest checkpoint's files, which "
        "status.fileOwner names.",
    )
    pins: Annotated[tuple[Step, ...], Field(max_length=PINS_MAX, json_schema_extra=markers.SET)] = Field(
        default=(),
        description="Steps whose checkpoints are kept from rotation besides the best one, for as long as "
        "they are named here; a step that is not saved yet is waited for.",
    )
    max_step_lag: Step = Field(
        default=0,
        description="How many steps before the best eval the kept checkpoint may lie. 0: only its own step.",
    )

    @model_validator(mode="after")
    def _apart(self) -> Checkpoints:
        a, b = self.location, self.retention
        if a.volume_claim and b.volume_claim and a.volume_claim.claim_name == b.volume_claim.claim_name:
            raise ValueError(f"{SAME_CLAIM}; both are {b.volume_claim.claim_name}")
        if a.object_store and b.object_store:
            x, y = a.object_store.uri + "/", b.object_store.uri + "/"
            if x.startswith(y) or y.startswith(x):
                raise ValueError(f"{NESTED_URI}; location is {x[:-1]}, retention {y[:-1]}")
        return self
