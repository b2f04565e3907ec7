"""Flags that several commands share, as kubectl names them, and what the shell completes for them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from controller.cli import complete
from controller.cli.connection import Connection


class Format(StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"


class Document(StrEnum):
    """Values of ``-o`` where the answer is one page."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


_WHERE = "Cluster"

Kubeconfig = Annotated[
    str,
    typer.Option("--kubeconfig", help="Kubeconfig file. Default: $KUBECONFIG.", rich_help_panel=_WHERE),
]
Context = Annotated[
    str,
    typer.Option(
        "--context",
        help="Context of the kubeconfig.",
        autocompletion=complete.contexts,
        rich_help_panel=_WHERE,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace. Default: the context's.",
        autocompletion=complete.namespaces,
        rich_help_panel=_WHERE,
    ),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="All namespaces.", rich_help_panel=_WHERE)
]
Timeout = Annotated[
    float,
    typer.Option(
        "--request-timeout", min=1.0, max=600.0, help="Seconds for one request.", rich_help_panel=_WHERE
    ),
]


# What stands before the command's name, as kubectl takes it: `evalstop -n team list`.
BEFORE: dict[str, str] = {}


def connects(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options that make its ``connection``: how the cluster is reached.

    Args:
        function: a command's function with a parameter ``connection`` of type `Connection`; the three options
            stand in its place, with what its default says as theirs.
    """
    signature = inspect.signature(function, eval_str=True)
    usual: Connection = signature.parameters["connection"].default
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in zip(
            usual._fields, usual, (Kubeconfig, Context, Timeout), strict=True
        )
    ]
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += options if name == "connection" else [keyword]

    @functools.wraps(function)
    def connected(*, kubeconfig: str, context: str, timeout: float, **given: Any) -> Any:
        if "namespace" in given and not given["namespace"]:
            given["namespace"] = BEFORE.get("namespace", "")
        kubeconfig = kubeconfig or BEFORE.get("kubeconfig", "")
        context = context or BEFORE.get("context", "")
        return function(**given, connection=Connection(kubeconfig, context, timeout))

    connected.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return connected


Output = Annotated[Format, typer.Option("--output", "-o", help="Form of the output.")]
Page = Annotated[Document, typer.Option("--output", "-o", help="Form of the output.")]
Selector = Annotated[str, typer.Option("--selector", "-l", help="Labels, as in team=x,stage!=test.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on, and print what changes.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="No line of titles.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Have the API server check it, and change nothing (kubectl's server)."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the operator has carried it out.")]
WaitSeconds = Annotated[
    float, typer.Option("--timeout", min=1.0, max=86400.0, help="Seconds that --wait takes at most.")
]
Ascii = Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")]

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of the RLHFJob, or namespace/name.", autocompletion=complete.jobs
    ),
]
Pool = Annotated[
    str, typer.Argument(metavar="POOL", help="Name of the GPUPool.", autocompletion=complete.pools)
]
