"""Software bill of materials of an image, as CycloneDX 1.6 JSON.

Python packages as they were found in the image's layers, each compared with its pin in requirements.lock; the
packages of the base's distribution, by its own database; the interpreter. Its licence is what a package says.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deploy.images import sublock

SPEC_VERSION = "1.6"
Json = dict[str, Any]
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_SPDX = re.compile(r"^[A-Za-z0-9.+() -]+$")


def python_packages(found: Sequence[Mapping[str, str]], lock: str) -> list[Json]:
    """Components for packages found in an image.

    Args:
        found: name, version, sha256 (of the archive that was installed) and license of each.
        lock: text of requirements.lock.

    Raises:
        ValueError: one that is not in the lock, in another version, or from an archive that it does not name.
    """
    pinned = sublock.entries(lock)
    components = []
    for package in sorted(found, key=lambda package: package["name"]):
        name, version, digest = package["name"], package["version"], package["sha256"]
        lines = pinned.get(name)
        if lines is None:
            raise ValueError(f"{name} {version} is in an image and not in requirements.lock")
        versions = {line.split(" ")[0].partition("==")[2] for line in lines.splitlines() if "==" in line[:99]}
        if version not in versions:
            raise ValueError(
                f"{name} {version} is in an image, requirements.lock pins {', '.join(sorted(versions))}"
            )
        if digest not in _HASH.findall(lines):
            raise ValueError(f"{name} {version}: requirements.lock names no archive with sha256 {digest}")
        purl = f"pkg:pypi/{quote(name)}@{quote(version)}"
        component = _component("library", name, version, purl)
        component["hashes"] = [{"alg": "SHA-256", "content": digest}]
        if package.get("license") and _SPDX.match(package["license"]):
            component["licenses"] = [{"expression": package["license"]}]
        components.append(component)
    return components


def debian_packages(status: str, distribution: str = "debian") -> list[Json]:
    """Components for the installed packages of a dpkg database (/var/lib/dpkg/status)."""
    components = []
    for text in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            architecture = fields.get("Architecture", "all")
            purl = f"pkg:deb/{distribution}/{quote(name)}@{quote(version)}?arch={architecture}"
            components.append(_component("library", name, version, purl))
    return sorted(components, key=lambda component: component["bom-ref"])


def alpine_packages(installed: str) -> list[Json]:
    """Components for the packages of an apk database (/lib/apk/db/installed)."""
    components = []
    for text in installed.split("\n\n"):
        fields = dict(line.split(":", 1) for line in text.splitlines() if line[1:2] == ":")
        if "P" in fields and "V" in fields:
            purl = f"pkg:apk/alpine/{quote(fields['P'])}@{quote(fields['V'])}?arch={fields.get('A', '')}"
            components.append(_component("library", fields["P"], fields["V"], purl))
    return sorted(components, key=lambda component: component["bom-ref"])


def interpreter(version: str) -> Json:
    return _component("platform", "cpython", version, f"pkg:generic/cpython@{version}")


def bill(name: str, version: str, identity: str, components: Iterable[Json]) -> Json:
    """Return the bill of one image. ``identity``: "sha256:…" of its configuration, which the bill's own
    follows."""
    digest = identity.removeprefix("sha256:")
    listed = list(components)
    reference = f"{name}@{identity}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": reference,
                "name": name,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        },
        "components": listed,
        "dependencies": [{"ref": reference, "dependsOn": [component["bom-ref"] for component in listed]}],
    }


def _component(kind: str, name: str, version: str, purl: str) -> Json:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
