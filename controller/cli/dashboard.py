"""`evalstop dashboard`: the dashboard on this machine's loopback, with the caller's own rights."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from controller import names
from controller.cli import complete, flags
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command, of_api

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi

AGAIN = 30.0  # s between two tries to reach the operator's queue API

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")]
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Only this namespace; may be repeated. Default: all whose RLHFJobs you may list.",
        autocompletion=complete.namespaces,
    ),
]
Url = Annotated[
    str, typer.Option("--queue-url", help="Where the operator's queue API is, instead of a port-forward.")
]
OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator's Deployment.")
]
OperatorPort = Annotated[int, typer.Option("--operator-port", help="The operator's EVALSTOP_QUEUE_PORT.")]


@command
@flags.connects
def dashboard(
    port: Port = 0,
    open_browser: Open = True,
    namespaces: Namespaces = None,
    url: Url = "",
    operator_namespace: OperatorNamespace = names.NAMESPACE,
    operator_port: OperatorPort = names.QUEUE_API_PORT,
    connection: Connection = USUAL,
) -> None:
    """Serve the dashboard on this machine, with your own rights; Ctrl-C ends it.

    It shows all namespaces whose RLHFJobs you may list, or those given.
    """
    from controller.cli import cluster
    from controller.kube.errors import ApiError
    from controller.web.dashboard.access import Forbidden
    from controller.web.dashboard.local import dashboard as serve
    from controller.web.dashboard.queues import FixedAddress

    async def work(api: CallerApi) -> None:
        with contextlib.ExitStack() as stack:
            way = (
                FixedAddress(url)
                if url
                else stack.enter_context(Forwarding(operator_namespace, operator_port, connection).open())
            )
            try:
                async with serve(
                    api,
                    namespaces=namespaces or (),
                    default_namespace=api.namespace,
                    port=port,
                    way=way,
                    operator_namespace=operator_namespace,
                ) as address:
                    typer.echo(f"{address}\nThe key in it is this run's alone. Ctrl-C ends it.", err=False)
                    if open_browser:
                        import webbrowser

                        webbrowser.open(address)
                    await asyncio.Event().wait()
            except Forbidden as error:
                raise Failure(
                    Exit.FORBIDDEN, str(error), "give -n NAMESPACE; evalstop doctor lists what you may do"
                ) from None
            except ApiError as error:
                raise of_api(error, "show the dashboard") from error
            except OSError as error:
                raise Failure(
                    Exit.REFUSED, str(error), "choose another --port, or leave it out for any free one"
                ) from None

    cluster.run(work, connection)


class Forwarding:
    """A way to the operator's queue API by ``kubectl port-forward``, kept up in a thread.

    Without the rights for it, or without an operator, the dashboard works all the same and says so.
    """

    def __init__(self, namespace: str, port: int, connection: Connection) -> None:
        self._where = namespace, port, connection
        self.address = ""
        self.why = "the operator is being reached"
        self._fell = threading.Event()
        self._over = threading.Event()

    @contextlib.contextmanager
    def open(self) -> Iterator[Forwarding]:
        thread = threading.Thread(target=self._keep_up, name="queue API", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._fell.set()
            thread.join(timeout=5.0)

    def broken(self) -> None:
        """Note that the forward does not answer: it is started again, but at most once every `AGAIN` s."""
        self._fell.set()

    def _keep_up(self) -> None:
        from controller.cli.forward import forwarded, leader

        namespace, port, connection = self._where
        while not self._over.is_set():
            self._fell.clear()
            begun = time.monotonic()
            try:
                target = leader(namespace, connection)
                with forwarded(namespace, target, port, connection) as address:
                    self.address, self.why = address, ""
                    self._fell.wait()
            except Failure as failure:
                self.why = failure.message
            self.address = ""
            self._over.wait(max(0.0, AGAIN - (time.monotonic() - begun)))
