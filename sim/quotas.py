"""Quotas as text and JSON: ``team-a,team-b=16:32`` guarantees two namespaces 16 GPUs, and allows them 32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.policy.queueing.quota_ledger import QuotaLedger
from controller.policy.types import Quota
from controller.policy.wording import counted

EXPECTED = "NAMESPACE,…=GUARANTEED or NAMESPACE,…=GUARANTEED:LIMIT, as in team-a,team-b=16:32"


def quota(text: str) -> Quota:
    """Return the quota that a text ``namespace,…=guaranteed[:limit]`` stands for.

    Raises:
        ValueError: it is of no such form, or its limit is less than what it guarantees.
    """
    left, equals, right = text.partition("=")
    names = tuple(name.strip() for name in left.split(","))
    guaranteed, colon, limit = (part.strip() for part in right.partition(":"))
    numbers = [guaranteed, limit] if colon else [guaranteed]
    if not equals or not all(names) or not all(n.isascii() and n.isdigit() and len(n) < 8 for n in numbers):
        raise ValueError(f"quota: {text!r} is not allowed, expected {EXPECTED}")
    return Quota(names, int(guaranteed), int(limit) if colon else None)


def checked(quotas: Iterable[Quota]) -> tuple[Quota, ...]:
    """Return the quotas as a tuple if they go together.

    Raises:
        ValueError: a namespace is named twice, or a limit is less than what is guaranteed.
    """
    found = tuple(quotas)
    for one in found:
        if one.limit is not None and one.limit < one.guaranteed:
            raise ValueError(
                f"quota: {text(one)!r} is not allowed, expected a limit of at least the {one.guaranteed} "
                "guaranteed"
            )
    names = Counter(name for one in found for name in one.namespaces)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"quota: namespace {twice[0]!r} is named twice, expected each once")
    return found


def check_fits(quotas: Sequence[Quota], jobs: Iterable[tuple[str, int]]) -> None:
    """Check that each job, (namespace/name, GPUs), may run at all.

    Raises:
        ValueError: one is larger than the limit of its namespaces.
    """
    ledger = QuotaLedger(quotas)
    for key, gpus in jobs:
        entry = ledger.entry(key)
        if entry is not None and ledger.bars(key, gpus):
            one = quotas[entry]
            raise ValueError(
                f"quota: {text(one)!r} is not allowed, expected a limit of at least the "
                f"{counted(gpus, 'GPU')} of {key}"
            )


def text(quota: Quota) -> str:
    """Return what `quota` reads back."""
    limit = "" if quota.limit is None else f":{quota.limit}"
    return f"{','.join(quota.namespaces)}={quota.guaranteed}{limit}"


def entry(quotas: Iterable[Quota]) -> list[dict[str, Any]]:
    """As JSON, named as in a GPUPool."""
    return [
        {
            "namespaces": list(one.namespaces),
            "guaranteed": one.guaranteed,
            **({} if one.limit is None else {"limit": one.limit}),
        }
        for one in quotas
    ]


def read(value: Any) -> tuple[Quota, ...]:
    """Return what `entry` wrote.

    Raises:
        ValueError: it is nothing of the kind.
    """
    if not isinstance(value, list):
        raise ValueError(f"quotas: {value!r} is not allowed, expected a list of quotas")
    return checked(map(_read, value))


def _read(value: Any) -> Quota:
    expected = '{"namespaces": ["team-a"], "guaranteed": 16, "limit": 32}'
    if isinstance(value, Mapping) and not value.keys() - {"namespaces", "guaranteed", "limit"}:
        names, guaranteed, limit = value.get("namespaces"), value.get("guaranteed", 0), value.get("limit")
        named = isinstance(names, list) and names and all(isinstance(n, str) and n for n in names)
        if names is not None and named and _whole(guaranteed) and (limit is None or _whole(limit)):
            return Quota(tuple(names), guaranteed, limit)
    raise ValueError(f"quotas: {value!r} is not allowed, expected {expected}")


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 1_000_000
