"""The command: all checks, in order, and what they found."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller import names
from controller.cli import complete, flags, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, command
from controller.cli.flags import Document
from controller.cli.terminal import Terminal, clean, length, terminal
from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.doctor.findings import Finding
    from controller.policy.job import Cure

Name = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="An RLHFJob to look at; none: the installation only.",
        autocompletion=complete.jobs,
    ),
]
OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator's Deployment.")
]


Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="URL",
        help="Check a rollout engine instead, and measure it: unix:PATH, the socket that the sidecar uses.",
    ),
]
EngineKind = Annotated[str, typer.Option("--engine-kind", help="Plain or vLLM.", metavar="KIND")]
EngineWeights = Annotated[
    Path | None, typer.Option("--engine-weights", metavar="FILE", help="Weights to load into it first.")
]


Family = Annotated[
    str,
    typer.Option(
        "--family",
        metavar="FILE",
        help="Check a family of shared worker groups instead, and measure it: FILE.py or FILE.py:Class.",
    ),
]
FamilyMembers = Annotated[
    int, typer.Option("--family-members", help="Processes of it that work together.", min=1, max=64)
]
FamilyPython = Annotated[
    str, typer.Option("--family-python", metavar="PYTHON", help="The Python that has its packages.")
]
FamilyGpu = Annotated[bool, typer.Option("--family-gpu", help="Measure it on this machine's GPUs.")]


@command
@flags.connects
def doctor(
    job: Name = "",
    engine: Engine = "",
    engine_kind: EngineKind = "Plain",
    engine_weights: EngineWeights = None,
    family: Family = "",
    family_members: FamilyMembers = 1,
    family_python: FamilyPython = "",
    family_gpu: FamilyGpu = False,
    namespace: flags.Namespace = "",
    operator_namespace: OperatorNamespace = names.NAMESPACE,
    form: flags.Page = Document.TEXT,
    connection: Connection = USUAL,
) -> None:
    """Say what is wrong with the installation, a JOB, a rollout engine or a family, and the command that
    mends it.

    Exit code 1 if something is.
    """
    if engine:
        _show(_examine_engine(engine, engine_kind, engine_weights), form)
        return
    if family:
        _examine_family(family, family_members, family_python, family_gpu, form)
        return
    from controller.cli import cluster

    async def work(api: CallerApi) -> list[Finding]:
        return await (examine_job(api, job) if job else examine(api, operator_namespace))

    _show(cluster.run(work, connection, namespace), form)


def _examine_engine(url: str, kind: str, weights: Path | None) -> list[Finding]:
    """Return what is found about an engine, which needs no cluster."""
    import asyncio

    from controller.cli.doctor import engine as checks

    if kind not in ("Plain", "vLLM"):
        raise typer.BadParameter(
            f"{kind!r} is not allowed, expected Plain or vLLM", param_hint="--engine-kind"
        )
    try:
        adapter = checks.engine_of(url, kind)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--engine") from None
    if weights is not None and not weights.is_file():
        raise typer.BadParameter(f"{str(weights)!r} is no file", param_hint="--engine-weights")

    async def work() -> list[Finding]:
        return [finding async for finding in checks.examine(adapter, weights)]

    return asyncio.run(work())


def _examine_family(name: str, members: int, python: str, gpu: bool, form: Document) -> None:
    """Show what is found about a family, and what to write into the pool; no cluster is needed."""
    from controller.cli.doctor import family as checks

    try:
        report = checks.examine(name, members, python, gpu=gpu)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--family") from None
    _show(report.findings, form, checks.as_document(report), report.as_yaml())


def _show(
    found: list[Finding],
    form: Document,
    more: Mapping[str, Any] | None = None,
    after: Sequence[str] = (),
) -> None:
    bad = sum(1 for finding in found if finding.level == "WRONG")
    document = {"wrong": bad, "findings": [f.as_dict() for f in found], **(more or {})}
    if not output.document(document, form):
        output.lines([*page(found, terminal()), *([""] if after else []), *after])
    if bad:
        raise typer.Exit(Exit.REFUSED)


async def examine(api: CallerApi, operator_namespace: str) -> list[Finding]:
    """Check the whole installation and return the findings."""
    from controller.cli.doctor import installation, rights, served

    version = [f async for f in installation.server(api)]  # without it there is nothing to go on about
    return version + await _all(
        ("CRDs", installation.resource_definitions(api)),
        ("operator", installation.operator(api, operator_namespace)),
        ("namespaces", served.namespaces(api, operator_namespace)),
        ("statuses", served.statuses(api, operator_namespace)),
        ("pools", installation.pools(api, operator_namespace)),
        ("extender and dashboard", installation.beside(api, operator_namespace)),
        ("your rights", rights.caller(api, api.namespace)),
    )


async def examine_job(api: CallerApi, name: str) -> list[Finding]:
    """Check one job and return the findings."""
    from controller.cli.cluster import job as find
    from controller.cli.doctor import job as checks
    from controller.cli.doctor import template
    from controller.cli.job_view import read

    job = read(await find(api, name))
    return await _all(
        ("operator", checks.operator(api, job, time.time())),
        ("spec", checks.spec(job, time.time())),
        ("template", template.template(api, job)),
        ("pods", checks.pods(api, job)),
        ("metrics", checks.metrics(api, job, time.time())),
        ("checkpoints", checks.checkpoints(api, job)),
    )


async def _all(*checks: tuple[str, AsyncIterator[Finding]]) -> list[Finding]:
    from controller.cli.doctor.findings import gather

    found: list[Finding] = []
    for about, check in checks:
        found += await gather(about, check)
    return found


def _cured(cure: Cure, screen: Terminal, margin: int) -> Iterator[str]:
    """Yield what to do: in one line with its command where the screen is wide enough, else the words folded,
    and the command alone, whole, as it is to be pasted."""
    from controller.cli.why import wrapped

    arrow = "→ " if screen.unicode else "-> "
    whole = [clean(line) for line in cure.line.splitlines()]
    room = None if screen.width is None else screen.width - margin - len(arrow)
    if room is None or not cure.text or all(length(line) <= room for line in whole):
        yield from (arrow + line for line in whole)
        return
    commands = [clean(line) for one in cure.how for line in one.splitlines()]
    words = wrapped(cure.text + (":" if commands else ""), screen, margin + len(arrow))
    yield arrow + words[0]
    yield from (" " * len(arrow) + line for line in (*words[1:], *commands))


def page(found: Sequence[Finding], screen: Terminal) -> list[str]:
    """Return the findings as lines, each with what to do under it, and a last line that counts."""
    from controller.cli.why import wrapped

    styles = {"ok": "green", "note": "dim", "unknown": "yellow", "WRONG": "red"}
    lines = []
    margin = 9
    for finding in found:
        level = screen.paint(f"{finding.level.value:<7}", styles[finding.level.value])
        first, *rest = wrapped(f"{finding.about}: {finding.text}", screen, margin)
        lines += [f"{level}  {first}", *(" " * margin + line for line in rest)]
        lines += [" " * margin + line for line in _cured(finding.cure, screen, margin)]
    bad = sum(1 for f in found if f.level == "WRONG")
    unseen = sum(1 for f in found if f.level == "unknown")
    summary = f"{bad} wrong" if bad else "nothing wrong"
    if unseen:
        summary += f", {unseen} could not be looked at"
    return [*lines, "", f"{counted(len(found), 'finding')}, {summary}"]
