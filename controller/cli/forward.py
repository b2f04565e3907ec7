"""The operator's queue API, reached through ``kubectl port-forward``: it listens on loopback only."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator

from controller import names
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure

PATIENCE = 20.0  # s for the port-forward to stand
POD = 3  # s that kubectl waits for a pod to run: of a Deployment without any
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")


def leader(namespace: str, connection: Connection = USUAL) -> str:
    """Return what to forward to: the pod that leads, which alone plans the pools; where that cannot be read,
    any.

    Raises:
        Failure: no operator is there, as its Lease tells: kubectl would wait for a pod.
    """
    from controller.cli import cluster
    from controller.kube.resources import LEASES

    anybody, away = "deployment/evalstop-operator", ""

    async def ask(api: cluster.CallerApi) -> str:
        nonlocal away
        lease = await api.get(LEASES, names.OPERATOR, namespace)
        away = cluster.left(lease, time.time())
        return str((lease.get("spec") or {}).get("holderIdentity") or "")

    try:
        holder = cluster.run(ask, connection._replace(timeout=PATIENCE))
    except Failure:
        return anybody
    if away:
        raise Failure(Exit.UNREACHABLE, away, "evalstop doctor")
    pod, underscore, _ = holder.rpartition("_")  # the pod's name and uid
    return f"pod/{pod}" if underscore else anybody


@contextlib.contextmanager
def forwarded(namespace: str, target: str, port: int, connection: Connection = USUAL) -> Iterator[str]:
    """Forward a port to ``target`` ("deployment/x") until the block ends; yield the local base address.

    Raises:
        Failure: kubectl is not there, or says no; its words are quoted.
    """
    command = [
        "kubectl",
        "port-forward",
        "-n",
        namespace,
        target,
        f":{port}",
        f"--pod-running-timeout={POD}s",
    ]
    command += [f"--kubeconfig={connection.kubeconfig}"] if connection.kubeconfig else []
    command += [f"--context={connection.context}"] if connection.context else []
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise Failure(
            Exit.UNREACHABLE,
            f"cannot run kubectl: {error.strerror}; or give --url",
            "install kubectl, or give --url with the address of the operator's queue API",
        ) from None
    patience = threading.Timer(PATIENCE, process.terminate)
    patience.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        found = next((m for line in process.stdout if (m := _FORWARDING.search(line))), None)
        if found is None:
            process.terminate()
            output = " ".join(process.stderr.read().split()) or f"it said nothing within {PATIENCE:.0f} s"
            if "upgrad" in output:  # kubectl's words for a node that does not take the connection
                raise Failure(
                    Exit.UNREACHABLE,
                    f"the operator's queue API cannot be reached: the node of {target} in namespace "
                    f"{namespace} takes no port-forward (a local control plane has no kubelet that could)",
                    "give --url with the address of the queue API, if this machine reaches it",
                )
            forbidden = "forbidden" in output.lower()
            raise Failure(
                Exit.FORBIDDEN if forbidden else Exit.UNREACHABLE,
                f"{' '.join(command)}: {output}",
                "ask for create on pods/portforward in the operator's namespace, or give --url"
                if forbidden
                else "evalstop doctor says whether the operator is there; --operator-namespace says where",
            )
        patience.cancel()
        # kubectl writes a line for each connection: into a pipe that nobody reads, until it stands still.
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=deque, args=(stream, 0), daemon=True).start()
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        patience.cancel()
        process.terminate()
        process.wait()
