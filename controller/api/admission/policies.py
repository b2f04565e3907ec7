"""All policies of an installation, in the order of the manifests."""

from __future__ import annotations

from controller.api.admission import accounts, author, gpu_pods, group_jobs
from controller.api.admission.base import Install, Json, Policy, manifests_of


def policies(install: Install) -> tuple[Policy, ...]:
    return (
        author.policy(),
        *accounts.policies(install),
        group_jobs.policy(install),
        gpu_pods.policy(install),
    )


def manifests(install: Install) -> tuple[Json, ...]:
    """Return each policy and its binding."""
    return tuple(made for policy in policies(install) for made in manifests_of(policy, install))
