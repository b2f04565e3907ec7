"""Provenance of an image: an in-toto statement with SLSA's provenance predicate, version 1.

It is not signed here: whoever publishes the images signs it with a key of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://evalstop.dev/images/v1"
BUILDER = "https://evalstop.dev/images/make"
Json = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """The sources: ``commit`` of git ("" outside a checkout), ``modified``: something differs from it."""

    commit: str
    modified: bool


@dataclass(frozen=True)
class Inputs:
    """Inputs of an image's build.

    Attributes:
        base, builder: images as the caller named them; their ids, "sha256:…".
        trial: whether a tag alone was allowed.
        epoch: SOURCE_DATE_EPOCH.
        lock: sha256 of requirements.lock, hex.
    """

    base: str
    base_id: str
    builder: str
    builder_id: str
    trial: bool
    epoch: int
    source: Source
    lock: str


def statement(
    name: str,
    role: str,
    identity: str,
    layers: Mapping[str, str],
    inputs: Inputs,
    packages: Sequence[Json],
    bill: Mapping[str, str],
) -> Json:
    """Return the statement about one image.

    Args:
        name: of the image.
        role: of the image.
        identity: of its configuration, "sha256:…".
        layers: name -> sha256, hex, of the layers above the base.
        inputs: what it was built from.
        packages: components of the bill of materials that were installed from archives.
        bill: file name -> sha256, hex, of the bill of materials.
    """
    subjects = [{"name": name, "digest": _sha256(identity)}]
    subjects += [{"name": f"{name}#{layer}", "digest": _sha256(digest)} for layer, digest in layers.items()]
    taken: list[Json] = [{"name": "base", "uri": inputs.base, "digest": _sha256(inputs.base_id)}]
    if inputs.builder_id != inputs.base_id:
        taken.append({"name": "builder", "uri": inputs.builder, "digest": _sha256(inputs.builder_id)})
    taken.append({"name": "requirements.lock", "digest": _sha256(inputs.lock)})
    if inputs.source.commit:
        taken.append(
            {
                "name": "source",
                "digest": {"gitCommit": inputs.source.commit},
                "annotations": {"modified": inputs.source.modified},
            }
        )
    taken += [
        {"uri": package["purl"], "digest": _sha256(package["hashes"][0]["content"])} for package in packages
    ]
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "role": role,
                    "base": inputs.base,
                    "builder": inputs.builder,
                    "trial": inputs.trial,
                },
                "internalParameters": {"sourceDateEpoch": inputs.epoch},
                "resolvedDependencies": taken,
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "byproducts": [{"name": file, "digest": _sha256(digest)} for file, digest in bill.items()],
            },
        },
    }


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}
