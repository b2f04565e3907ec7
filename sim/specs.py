"""Policies and rules as text: ``las:first_threshold=3250,second_threshold=7200``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from controller.policy.params import ParamError, ParamInfo, describe
from controller.policy.queueing import POLICIES, AgeingParams, make_policy
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import PolicySpec
from controller.policy.wording import did_you_mean, nearest
from sim.foresight import RuleSpec


def policy(text: str) -> PolicySpec:
    """Return a queue policy, checked.

    Raises:
        ParamError: unknown policy or parameter, or a value out of bounds; the message names it.
    """
    known = {name: (p.params, AgeingParams) for name, p in POLICIES.items()}
    spec = _spec(text, known, "queuePolicy")
    make_policy(spec)
    return spec


def rule(text: str) -> RuleSpec:
    """Return a stop rule with modifiers after ``+``: ``drawdown:max_drop=0.04+warmUp:min_evals=5``.

    Guardrails follow after ``|``, each a metric and its rule: ``glr:alpha=0.05|safety=drawdown``.

    Raises:
        ParamError: unknown rule, modifier or parameter, or a value out of bounds; the message names it.
    """
    judged, *watched = text.split("|")
    first, *others = judged.split("+")
    rules = {name: (r.params,) for name, r in RULES.items()}
    chosen = _spec(first, rules, "stopRule")
    kinds = {name: (m.params,) for name, m in MODIFIERS.items()}
    modifiers = tuple(_spec(other, kinds, "modifiers") for other in others)
    found = RuleSpec(chosen, modifiers, guardrails=tuple(_guardrail(part, rules) for part in watched))
    found.make()
    return found


def text(spec: PolicySpec) -> str:
    """Return a policy, rule or modifier as it would be written; what `policy` reads back."""
    return spec.name + "".join(
        f"{':' if place == 0 else ','}{name}={_written(value)}"
        for place, (name, value) in enumerate(spec.params.items())
    )


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def rule_text(spec: RuleSpec) -> str:
    """Return a stop rule with its modifiers and guardrails as it would be written; what `rule` reads back."""
    judged = "+".join(map(text, (spec.rule, *spec.modifiers)))
    return "|".join([judged, *(f"{metric}={text(rule)}" for metric, rule in spec.guardrails)])


def _guardrail(text: str, rules: Mapping[str, tuple[type[Any], ...]]) -> tuple[str, PolicySpec]:
    metric, equals, rest = text.partition("=")
    if not equals or not metric.strip() or ":" in metric:
        raise ParamError("guardrail", text, "metric=rule, as in safety=drawdown:max_drop=0.1")
    return metric.strip(), _spec(rest, rules, f"guardrail {metric.strip()}")


def number(info: ParamInfo, text: str, field: str) -> Any:
    """Return the value of a parameter from text, of the type it is declared with.

    Raises:
        ParamError: the text is no such value.
    """
    text = text.strip()
    if info.kind is bool:
        if text.lower() not in ("true", "false"):
            raise ParamError(field, text, "true or false")
        return text.lower() == "true"
    if info.kind is str:
        return text
    try:
        return info.kind(text)
    except ValueError:
        expected = "a whole number" if info.kind is int else "a number"
        raise ParamError(field, text, f"{expected} ({info.unit})") from None


def _spec(text: str, known: Mapping[str, tuple[type[Any], ...]], field: str) -> PolicySpec:
    name, _, rest = text.strip().partition(":")
    if name not in known:
        raise ParamError(field, name, f"one of {', '.join(known)}{_meant(name, known)}")
    infos = {info.name: info for params in known[name] for info in describe(params)}
    values = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        written, key = key.strip(), _snake(key.strip())
        if not equals:
            raise ParamError(name, part, f"parameter=value, of {', '.join(infos) or '(none)'}")
        if key not in infos:
            there = f"one of its parameters {', '.join(infos)}" if infos else "no parameter: it has none"
            raise ParamError(name, written, there + _meant(key, infos))
        if key in values:
            raise ParamError(name, part.strip(), f"each parameter once, {written} is given twice")
        values[key] = number(infos[key], value, f"{name}.{key}")
    return PolicySpec(name, values)


def _meant(word: str, known: Collection[str]) -> str:
    """Return which of the names may have been meant, as the end of a sentence; "": none."""
    found = nearest(word, known)
    return f"; {did_you_mean(found)}" if found else ""


def _snake(name: str) -> str:
    """``maxDrop``, as in an RLHFJob, is ``max_drop`` here."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name)
