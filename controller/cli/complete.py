"""Completions after TAB: names from the cluster in use. It never fails and never asks for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.kube.resources import Resource

PATIENCE = 3.0  # s: a shell that hangs on TAB is worse than one that offers nothing


def contexts(incomplete: str) -> list[str]:
    """Contexts of the kubeconfig."""
    try:
        from controller.kube import kubeconfig

        found, _ = kubeconfig.contexts(kubeconfig.files())
        return [name for name in found if name.startswith(incomplete)]
    except Exception:  # completion that fails offers nothing; the command itself will say what is wrong
        return []


def namespaces(ctx: Any, incomplete: str) -> list[str]:
    """Namespaces of the cluster."""
    from controller.kube.resources import NAMESPACES

    return _names(ctx, incomplete, NAMESPACES)


def jobs(ctx: Any, incomplete: str) -> list[str]:
    """RLHFJobs of the namespace given so far; with a namespace before a slash, those in it."""
    from controller.kube.resources import RLHFJOBS

    namespace, slash, start = incomplete.rpartition("/")
    found = _names(ctx, start, RLHFJOBS, namespace)
    return [f"{namespace}{slash}{name}" for name in found]


def pools(ctx: Any, incomplete: str) -> list[str]:
    """GPUPools of the cluster."""
    from controller.kube.resources import GPUPOOLS

    return _names(ctx, incomplete, GPUPOOLS)


def groups(ctx: Any, incomplete: str) -> list[str]:
    """WorkerGroups of the cluster."""
    from controller.kube.resources import WORKERGROUPS
    from controller.policy.group_types import GROUPS_NAMESPACE

    return _names(ctx, incomplete, WORKERGROUPS, GROUPS_NAMESPACE)


def rules(incomplete: str) -> list[str]:
    """Stop rules, by name."""
    from controller.policy.stopping import RULES

    return [name for name in sorted(RULES) if name.startswith(incomplete)]


def _names(ctx: Any, start: str, resource: Resource, namespace: str = "") -> list[str]:
    try:
        before = ctx.parent.params if ctx.parent is not None else {}  # `evalstop -n team why <TAB>`
        given = {
            name: str(ctx.params.get(name) or before.get(name) or "")
            for name in ("kubeconfig", "context", "namespace")
        }
        from controller.cli import cluster
        from controller.cli.connection import Connection

        async def ask(api: CallerApi) -> list[str]:
            where = (namespace or api.namespace) if resource.namespaced else None
            found, _ = await api.list(resource, where)
            return [item["metadata"]["name"] for item in found]

        connection = Connection(given["kubeconfig"], given["context"], PATIENCE)
        names = cluster.run(ask, connection, given["namespace"])
        return sorted(name for name in names if name.startswith(start))
    except Exception:  # as above
        return []
