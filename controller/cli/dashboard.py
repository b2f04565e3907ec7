"""`evalstop dashboard`: jobs, pools, queues and savings in the browser, with the caller's own rights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import complete, flags
from controller.cli.failure import Exit, Failure, command

if TYPE_CHECKING:
    from controller.cli.cluster import Cluster

OPERATOR_PORT = 8081
AGAIN = 10.0  # s between tries to reach the operator

Namespaces = Annotated[
    list[str],
    typer.Option(
        "--namespace",
        "-n",
        help="Only this namespace; may be given again. Default: all whose RLHFJobs you may list.",
        autocompletion=complete.namespaces,
        rich_help_panel="Cluster",
    ),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on loopback; 0: any free one.")]
QueueUrl = Annotated[
    str,
    typer.Option("--queue-url", help="Where the operator's queue API is, instead of a port-forward."),
]
OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator's Deployment.")
]
OperatorPort = Annotated[int, typer.Option("--operator-port", help="The operator's EVALSTOP_QUEUE_PORT.")]
Browser = Annotated[bool, typer.Option("--open/--no-open", help="Open the address in a browser.")]


@command
def dashboard(
    namespace: Namespaces = [],  # noqa: B006
    port: Port = 0,
    queue_url: QueueUrl = "",
    operator_namespace: OperatorNamespace = "evalstop-system",
    operator_port: OperatorPort = OPERATOR_PORT,
    browser: Browser = True,
    kubeconfig: flags.Kubeconfig = "",
    context: flags.Context = "",
    timeout: flags.Timeout = 15.0,
) -> None:
    """Serve the dashboard on loopback until Ctrl-C, with your own rights: it shows what you may list."""
    from controller.cli.cluster import run
    from controller.kube.errors import ApiError
    from controller.web.dashboard.access import Forbidden
    from controller.web.dashboard.queues import Fixed, Way

    if queue_url and not queue_url.startswith(("http://", "https://")):
        raise Failure(
            Exit.USAGE,
            f"--queue-url: {queue_url!r} is not allowed, expected http://… or https://…",
            "give the address of the operator's queue API, or leave it out",
        )

    async def work(api: Cluster) -> None:
        import asyncio

        from controller.web.dashboard.local import dashboard as served

        with _way() as way:
            try:
                async with served(
                    api, namespaces=namespace, usual=api.namespace, port=port, way=way
                ) as address:
                    _tell(address, browser)
                    await asyncio.Event().wait()
            except Forbidden as error:
                raise Failure(
                    Exit.FORBIDDEN, str(error), "kubectl auth can-i list rlhfjobs.evalstop.dev -A"
                ) from None
            except ApiError:
                raise
            except OSError as error:
                raise Failure(
                    Exit.REFUSED, str(error), "give another --port, or none for any free one"
                ) from None

    @contextmanager
    def _way() -> Iterator[Way]:
        if queue_url:
            yield Fixed(queue_url)
            return
        forward = Forward(operator_namespace, operator_port, kubeconfig, context)
        forward.start()
        try:
            yield forward
        finally:
            forward.stop()

    run(work, kubeconfig, context, "", timeout)


def _tell(address: str, browser: bool) -> None:
    typer.echo(f"dashboard: {address}")
    typer.echo("The address carries a key for this run: whoever has it sees what you see. Ctrl-C ends it.")
    if browser:
        import webbrowser

        # Without a browser (a server, a container) nothing happens, and the address stands above.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


class Forward(threading.Thread):
    """A port-forward to the operator, made again when it breaks (the pod moved, the operator restarted)."""

    def __init__(self, namespace: str, port: int, kubeconfig: str, context: str) -> None:
        super().__init__(name="forward", daemon=True)
        self.address = ""
        self.why = "the operator is being reached"
        self._to = (namespace, "deployment/evalstop-operator", port, kubeconfig, context)
        self._over = threading.Event()
        self._lost = threading.Event()

    def broken(self) -> None:
        self._lost.set()

    def stop(self) -> None:
        self._over.set()
        self._lost.set()
        self.join(timeout=5.0)

    def run(self) -> None:
        from controller.cli.forward import forwarded

        while not self._over.is_set():
            self._lost.clear()
            try:
                with forwarded(*self._to) as base:
                    self.address = base
                    if not self._over.is_set():
                        self._lost.wait()
            except Failure as failure:
                self.why = failure.message
            self.address = ""
            self._over.wait(AGAIN)
