"""A command's way to the cluster."""

from __future__ import annotations

from typing import NamedTuple

REQUEST_TIMEOUT = 15.0  # s for one request


class Connection(NamedTuple):
    """The values of ``--kubeconfig``, ``--context`` and ``--request-timeout``.

    Attributes:
        kubeconfig: a file; "": ``$KUBECONFIG`` or ``~/.kube/config``.
        context: of that file; "": its current one.
        timeout: s for one request.
    """

    kubeconfig: str = ""
    context: str = ""
    timeout: float = REQUEST_TIMEOUT


USUAL = Connection()
