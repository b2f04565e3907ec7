"""Flags that several commands share, as kubectl names them, and what the shell completes for them.

Each is declared in `FLAGS`. Typer's word for it (`flags.Namespace` and so on) is made when it is asked for:
`controller.cli.quick` reads the commands that one waits for by the declarations alone, without typer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from controller.cli import complete
from controller.cli.connection import Connection

if TYPE_CHECKING:
    import inspect


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


class Flag(NamedTuple):
    """A flag of commands, or an argument.

    Attributes:
        kind: type of its value.
        help: what it means.
        names: such as "--namespace" and "-n"; (): it is an argument.
        more: what else typer is told.
        completed: what the shell offers for it.
    """

    kind: Any
    help: str
    names: tuple[str, ...] = ()
    more: dict[str, Any] = {}  # noqa: RUF012 -- read only
    completed: Callable[..., list[str]] | None = None


_WHERE = {"rich_help_panel": "Cluster"}

FLAGS: dict[str, Flag] = dict(  # noqa: C408 -- names of this module, as its annotations have them
    Kubeconfig=Flag(str, "Kubeconfig file. Default: $KUBECONFIG.", ("--kubeconfig",), _WHERE),
    Context=Flag(str, "Context of the kubeconfig.", ("--context",), _WHERE, complete.contexts),
    Namespace=Flag(
        str, "Namespace. Default: the context's.", ("--namespace", "-n"), _WHERE, complete.namespaces
    ),
    AllNamespaces=Flag(bool, "All namespaces.", ("--all-namespaces", "-A"), _WHERE),
    Timeout=Flag(
        float, "Seconds for one request.", ("--request-timeout",), {"min": 1.0, "max": 600.0, **_WHERE}
    ),
    Output=Flag(Format, "Form of the output.", ("--output", "-o")),
    Page=Flag(Document, "Form of the output.", ("--output", "-o")),
    Selector=Flag(str, "Labels, as in team=x,stage!=test.", ("--selector", "-l")),
    Watch=Flag(bool, "Go on, and print what changes.", ("--watch", "-w")),
    NoHeaders=Flag(bool, "No line of titles.", ("--no-headers",)),
    DryRun=Flag(bool, "Have the API server check it, and change nothing (kubectl's server).", ("--dry-run",)),
    Wait=Flag(bool, "Wait until the operator has carried it out.", ("--wait",)),
    WaitSeconds=Flag(
        float, "Seconds that --wait takes at most.", ("--timeout",), {"min": 1.0, "max": 86400.0}
    ),
    Ascii=Flag(bool, "Draw with ASCII characters only.", ("--ascii",)),
    Job=Flag(str, "Name of the RLHFJob, or namespace/name.", (), {"metavar": "JOB"}, complete.jobs),
    Jobs=Flag(
        list[str],
        "Names of RLHFJobs, or namespace/name.",
        (),
        {"metavar": "JOB..."},
        complete.jobs,
    ),
    Pool=Flag(str, "Name of the GPUPool.", (), {"metavar": "POOL"}, complete.pools),
)

if TYPE_CHECKING:
    Kubeconfig = str
    Context = str
    Namespace = str
    AllNamespaces = bool
    Timeout = float
    Output = Format
    Page = Document
    Selector = str
    Watch = bool
    NoHeaders = bool
    DryRun = bool
    Wait = bool
    WaitSeconds = float
    Ascii = bool
    Job = str
    Jobs = list[str]
    Pool = str


def __getattr__(name: str) -> Any:
    """Return a flag as typer takes it, as the annotation of a command's parameter."""
    if (flag := FLAGS.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import typer

    made: Any = typer.Option if flag.names else typer.Argument
    annotated: Any = Annotated
    return annotated[flag.kind, made(*flag.names, help=flag.help, autocompletion=flag.completed, **flag.more)]


# What stands before the command's name, as kubectl takes it: `evalstop -n team list`.
BEFORE: dict[str, str] = {}


class Connected:
    """A command with the options that make its ``connection``: how the cluster is reached.

    The three options stand in the place of the function's parameter ``connection``, with what its default
    says as theirs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *, kubeconfig: str, context: str, timeout: float, **given: Any) -> Any:
        if "namespace" in given and not given["namespace"]:
            given["namespace"] = BEFORE.get("namespace", "")
        kubeconfig = kubeconfig or BEFORE.get("kubeconfig", "")
        context = context or BEFORE.get("context", "")
        return self._function(**given, connection=Connection(kubeconfig, context, timeout))

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        signature = inspect.signature(self._function, eval_str=True)
        usual: Connection = signature.parameters["connection"].default
        kinds = (__getattr__(name.capitalize()) for name in usual._fields)
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, default, annotation in zip(usual._fields, usual, kinds, strict=True)
        ]
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += options if name == "connection" else [keyword]
        return signature.replace(parameters=parameters)


def connects(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command's function, which has a parameter ``connection``, as `Connected`."""
    return Connected(function)
