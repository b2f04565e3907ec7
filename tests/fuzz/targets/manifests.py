"""Manifests that a user hands to `evalstop check`, perhaps somebody else's: from the text to what is said of
it, asked of a cluster that has nothing but a pool, and takes everything but Jobs: a real one knows their
fields."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from controller.cli import check, manifest_checks, yaml_reader
from controller.cli.failure import Failure
from controller.kube.errors import NotFound, Refused
from controller.kube.resources import GPUPOOLS, JOBS, Resource
from tests.fuzz.target import ROOT, Target
from tests.fuzz.targets.objects import Object, pool

LAUGHS = b"a: &a [x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]\n"


class Cluster:
    """An API server that knows no Jobs, and has one pool."""

    namespace = "alice"

    async def create(self, resource: Resource, body: Object, **options: Any) -> Object:
        json.dumps(body, allow_nan=False).encode()
        if resource == JOBS:
            raise Refused(422, "Invalid", "spec: Invalid value")
        return body

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        if resource == GPUPOOLS:
            return pool()
        raise NotFound(404, "NotFound", "it is not there")

    async def list(self, resource: Resource, namespace: str | None = None) -> tuple[list[Object], str]:
        return [], ""


def _check(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for manifest in check._documents(text, "the file"):
        assert len(json.dumps(manifest, allow_nan=False)) < 200 * yaml_reader.VALUES + len(data)
        for finding in asyncio.run(manifest_checks.examine(Cluster(), manifest, {})):  # type: ignore[arg-type]
            finding.text.encode()


def _seeds() -> Iterator[bytes]:
    folder = ROOT / "examples" / "manifests"
    yield (folder / "30-overoptimising.yaml").read_bytes()
    yield (folder / "10-pool.yaml").read_bytes()
    one = b"apiVersion: evalstop.dev/v1alpha1, kind: GPUPool, metadata: &m {name: a}, spec: {<<: *m}"
    yield b"kind: List\nitems:\n- {%s}\n" % one
    yield LAUGHS


TARGETS = (
    Target(
        "manifest-to-check",
        _check,
        _seeds,
        own=(Failure,),
        most=1 << 16,
        cpu=8.0,
        words=(
            b"&a ",
            b"*a",
            b"<<: ",
            b"<<: [*a, *a]",
            b"!!set ",
            b"!!binary ",
            b"---\n",
            b"%YAML 1.1\n",
            b"|\n",
        ),
    ),
)
