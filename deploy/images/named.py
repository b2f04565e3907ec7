"""Names of the images, by their roles."""

from __future__ import annotations

from collections.abc import Mapping

from controller import names

#: Role -> the image's name without its tag.
IMAGES: Mapping[str, str] = {
    "operator": names.OPERATOR_IMAGE,
    "access": names.ACCESS_IMAGE,
    "dashboard": names.DASHBOARD_IMAGE,
    "actor": names.ACTOR_IMAGE,
    "trainer": names.TRAINER_IMAGE,
    "workers": names.WORKERS_IMAGE,
}
