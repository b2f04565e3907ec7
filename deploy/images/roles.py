"""Roles of the images: which of our packages each holds, and which others those need.

Standard library only: it is read in the stage that installs the packages, where nothing is installed yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CLIENT = "clients/python/"  # a distribution of its own: its packages lie in this folder


@dataclass(frozen=True)
class Role:
    """One image.

    Attributes:
        command: what it runs unless told otherwise.
        programs: modules that must be importable: those of each program that is started in it.
        requires: packages by name, as the lock pins them; with them comes what they depend on.
        code: top folders of this repository that it holds, or folders and files within them.
        above: the role whose packages it holds besides its own, in the very same layer.
        shell: whether a shell of the base image is left in it.
        variables: environment variables beyond those that all images have.
    """

    command: tuple[str, ...]
    programs: tuple[str, ...]
    requires: tuple[str, ...]
    code: tuple[str, ...]
    above: str = ""
    shell: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


# tests/chart/test_images_roles.py holds them against what the modules import.
ROLES: Mapping[str, Role] = {
    # Operator, extender, notifier, the Jobs that Helm runs: API clients and servers.
    "operator": Role(
        command=("python", "-m", "controller.operator"),
        programs=(
            *("controller.operator.main", "controller.extender.process"),
            *("controller.install.check", "controller.install.pools", "controller.notify.process"),
        ),
        requires=(
            *(
                "aiohttp",
                "cattrs",
                "cryptography",
                "fastapi",
                "httptools",
                "kopf",
                "kubernetes",
                "prometheus-client",
            ),
            *("pydantic", "pyyaml", "structlog", "uvicorn", "uvloop"),
        ),
        code=("controller",),
    ),
    # The Jobs that reach checkpoints: clients of object stores.
    "access": Role(
        command=("python", "-m", "controller.checkpoints.access"),
        programs=("controller.checkpoints.access", "controller.checkpoints.object_store"),
        requires=("fsspec", "minio", "obstore"),
        code=("controller",),
    ),
    # The dashboard draws charts, and answers what-if by the simulator.
    "dashboard": Role(
        command=("python", "-m", "controller.web.dashboard"),
        programs=("controller.web.dashboard.process",),
        requires=("jinja2", "matplotlib", "numpy"),
        code=("controller", "sim"),
        above="operator",
        variables={"MPLCONFIGDIR": "/tmp/matplotlib"},
    ),
    # The sidecar in the pods of rollout actors, in the jobs' namespaces: it asks no API server.
    "actor": Role(
        command=("python", "-m", "controller.actor"),
        programs=("controller.actor.__main__",),
        requires=(
            *("aiohttp", "cryptography", "fastapi", "httptools"),
            *("pydantic", "structlog", "uvicorn", "uvloop"),
        ),
        code=("controller",),
    ),
    # An example, for people to look into: the trainer, and the engine of its rollout actors.
    "trainer": Role(
        command=("python", "-m", "examples.trainer"),
        programs=("examples.trainer.process", "examples.played", "examples.engine.__main__"),
        requires=("numpy",),
        code=(
            *("examples/__init__.py", "examples/played.py", "examples/trainer", "examples/engine"),
            *("examples/rollouts", f"{CLIENT}evalstop_client"),
        ),
        shell=True,
    ),
    # The other half of that example: members of a worker group, which train by turns what trainers ask for.
    "workers": Role(
        command=("python", "-m", "controller.group"),
        programs=("controller.group.__main__", "evalstop_client.worker", "examples.softmax_family"),
        requires=("numpy", "prometheus-client"),
        code=(
            *("controller", "examples/__init__.py", "examples/softmax_family.py", "examples/trainer"),
            f"{CLIENT}evalstop_client",
        ),
        above="actor",
    ),
}


def importable(part: str) -> str:
    """Return where in the image's packages a part of the repository lies."""
    return part.removeprefix(CLIENT)


def lines(role: str) -> list[str]:
    """Return the role and those that it is above, the lowest first."""
    below = ROLES[role].above
    return [*(lines(below) if below else []), role]
