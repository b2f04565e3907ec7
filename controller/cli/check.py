"""`evalstop check`: is a manifest right, before it is applied? Asked of the cluster that it is meant for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.flags import Document
from controller.cli.terminal import terminal

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.doctor.findings import Finding

Object = dict[str, Any]
STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
_UNNAMED = "give it metadata.name for the check: what generateName makes of it, only the API server knows"
_MOST_TOLD = 1000  # characters of what PyYAML says: it repeats names in full

Files = Annotated[
    list[str],
    typer.Option(
        "--filename", "-f", help="File or folder of manifests; - is standard input. May be repeated."
    ),
]


@command
@flags.connects
def check(
    filename: Files,
    namespace: flags.Namespace = "",
    form: flags.Page = Document.TEXT,
    connection: Connection = USUAL,
) -> None:
    """Say what is wrong with RLHFJobs and GPUPools in files, before they are applied. Nothing is changed.

    Misspelt fields, the API server's own answer (a dry run), the pool, claims, classes, pods, the launcher.

    Exit code 1 if something is wrong, 2 if a file cannot be read.
    """
    from controller.cli import cluster
    from controller.cli.doctor.command import page

    found = [one for name in filename for one in manifests(name)]
    if not found:
        raise Failure(
            Exit.USAGE, f"there is no RLHFJob or GPUPool in {', '.join(filename)}", "give -f FILE with one"
        )

    async def work(api: CallerApi) -> list[Finding]:
        from controller.cli import manifest_checks

        # A pool of the same files counts for their jobs, which it is applied with.
        together = {str(m["metadata"]["name"]): m for m in found if m.get("kind") == "GPUPool"}
        return [
            one
            for manifest in found
            for one in await manifest_checks.examine(api, manifest, together, all_=len(found) > 1)
        ]

    findings = cluster.run(work, connection, namespace)
    bad = sum(1 for finding in findings if finding.level == "WRONG")
    if not output.document({"wrong": bad, "findings": [f.as_dict() for f in findings]}, form):
        output.lines(page(findings, terminal()))
    if bad:
        raise typer.Exit(Exit.REFUSED)


def manifests(name: str) -> Iterator[Object]:
    """Yield the RLHFJobs and GPUPools of a file, a folder, or ``-``, standard input; others are passed over.

    Raises:
        Failure: it cannot be read, is no YAML, or a manifest lacks kind or name.
    """
    if name == STDIN:
        yield from _documents(sys.stdin.read(), "standard input")
        return
    path = Path(name)
    try:
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES) if path.is_dir() else [path]
        texts = [(file, file.read_text()) for file in files]
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(
            Exit.USAGE,
            f"cannot read {name}: {_why(error)}",
            "give -f FILE, a folder, or - for standard input",
        ) from None
    for file, text in texts:
        yield from _documents(text, str(file))


def _why(error: OSError | UnicodeDecodeError) -> str:
    """Return why a file cannot be read, in words."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return (error.strerror or str(error)).lower()


def _documents(text: str, where: str) -> Iterator[Object]:
    import yaml

    from controller import names
    from controller.cli import yaml_reader

    try:
        found = list(yaml_reader.documents(text))
    except yaml_reader.Refused as error:
        raise Failure(Exit.USAGE, f"{where} is not read: {error}", _mend(text)) from None
    except yaml.YAMLError as error:
        told = str(error)[:_MOST_TOLD]
        raise Failure(Exit.USAGE, f"{where} is no YAML: {told}", _mend(text)) from None
    listed = [
        one
        for document in found
        if document is not None
        for one in (document["items"] if _is_list(document) else [document])
    ]
    for number, one in enumerate(listed, 1):
        if not isinstance(one, dict) or not one.get("kind") or not one.get("apiVersion"):
            raise Failure(
                Exit.USAGE,
                f"{where}: document {number} has no apiVersion and kind",
                f"begin it with apiVersion: {names.API_VERSION} and kind: RLHFJob",
            )
        if str(one["apiVersion"]).partition("/")[0] != names.GROUP:
            continue
        metadata = one["metadata"] if isinstance(one.get("metadata"), dict) else {}
        if not metadata.get("name"):
            raise Failure(
                Exit.USAGE,
                f"{where}: document {number}, a {one['kind']}, has no metadata.name",
                _UNNAMED if metadata.get("generateName") else "give it a name",
            )
        yield one


def _mend(text: str) -> str:
    """Return what to do about a text that is no YAML."""
    if "{{" in text:
        return "it looks like a Helm template: render it first, helm template CHART | evalstop check -f -"
    return "mend the line that is named"


def _is_list(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and document.get("kind") == "List"
        and isinstance(document.get("items"), list)
    )
