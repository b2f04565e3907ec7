"""Stop rules, modifiers and queue policies as a manifest has them, without the models that check it: for
commands, which loading those would take longer than all they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from controller.api import values
from controller.policy.params import describe
from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE, MODIFIERS, RULES
from controller.policy.types import PolicySpec

ENABLED, DISABLED = "Enabled", "Disabled"


class Registered(Protocol):
    """Common methods of the registries of rules and of queue policies."""

    @property
    def name(self) -> str: ...
    @property
    def params(self) -> type[Any]: ...
    @property
    def doc(self) -> str: ...


def rule_and_modifiers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the union of the stop rule and those of its modifiers, the API's defaults where a spec names
    none."""
    modifiers = spec.get("modifiers")
    if modifiers is None:
        modifiers = [written(modifier, MODIFIERS) for modifier in DEFAULT_MODIFIERS]
    return [spec.get("stopRule") or written(DEFAULT_RULE, RULES), *modifiers]


def written(spec: PolicySpec, registry: Mapping[str, Registered]) -> dict[str, dict[str, Any]]:
    """Return a rule, modifier or policy as the API has it: ``{"kDeclines": {"k": 3, "minDelta":
    "0.02"}}``."""
    kinds = {info.name: info.kind for info in describe(registry[spec.name].params)}
    return {
        spec.name: {
            values.camel(name): _written(value, kinds[name])
            for name, value in spec.params.items()
            if name in kinds
        }
    }


def _written(value: Any, kind: type) -> Any:
    if kind is bool:
        return ENABLED if value else DISABLED
    return values.number(float(value)) if kind is float else value


def read(member: Mapping[str, Any], registry: Mapping[str, Registered]) -> PolicySpec | None:
    """Return the inverse of `written`; None: this version does not know it, or a value of it."""
    name = next(iter(member), "")
    if name not in registry:
        return None
    kinds = {values.camel(info.name): info for info in describe(registry[name].params)}
    params: dict[str, Any] = {}
    for key, text in (member[name] or {}).items():
        if key not in kinds:
            return None
        kind = kinds[key].kind
        try:
            params[kinds[key].name] = text == ENABLED if kind is bool else kind(text)
        except (TypeError, ValueError):
            return None
    return PolicySpec(name, params)
