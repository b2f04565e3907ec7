"""The tab of worker groups: what the followed RLHFJobs say of their residencies. Whose turn it is they do not
know: that is `evalstop groups`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.cli import formatting
from controller.cli.jobs import Field
from controller.cli.table import Column

Object = dict[str, Any]


def found(jobs: Iterable[Object]) -> list[Object]:
    """Return worker groups by name, each as `controller.web.groups.Group` in JSON."""
    from controller.web.groups import groups_of_jobs  # takes a while, and is for those only who share

    return [one.model_dump(mode="json", by_alias=True) for one in groups_of_jobs(jobs)]


def _slowest(one: Object) -> str:
    known = [who["slowdown"] for who in one["residents"] if who["slowdown"] is not None]
    return f"{max(known):.2f} x" if known else ""


def _charged(one: Object) -> str:
    return formatting.gpu_hours(sum(who["chargedGPUSeconds"] or 0.0 for who in one["residents"]))


FIELDS = (
    Field(Column("GROUP"), lambda one, now: str(one["name"])),
    Field(Column("STATE"), lambda one, now: str(one["state"])),
    Field(Column("POOL"), lambda one, now: str(one["pool"])),
    Field(Column("FAMILY"), lambda one, now: str(one["family"])),
    Field(Column("RESIDENTS"), lambda one, now: ", ".join(str(who["job"]) for who in one["residents"])),
    Field(Column("SLOWEST"), lambda one, now: _slowest(one)),
    Field(Column("CHARGED"), lambda one, now: _charged(one)),
)
