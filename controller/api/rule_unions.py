"""Unions of registered rules: one optional member per stop rule, modifier or queue policy.

Models and schema come from the rules' own parameter dataclasses (`controller.policy.params`): a new rule
file needs no edit here. A change here changes the CRDs: run `make generate`.
Tests: tests/api/test_api_crd.py.

How parameters look in the API: ``min_delta`` is ``minDelta``, a float is a decimal string, a bool is
``Enabled`` or ``Disabled`` (a third value can be added later), text is an enum of its choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, create_model, model_validator
from pydantic.alias_generators import to_camel

from controller.api import markers
from controller.api.base import DecimalString, Spec
from controller.api.rule_text import DISABLED, ENABLED, Registered
from controller.policy.params import ParamError, ParamInfo, describe
from controller.policy.types import PolicySpec


class OneOf(Spec):
    """A choice of exactly one member; `chosen` returns it as a `PolicySpec` of controller/policy."""

    @model_validator(mode="after")
    def _one_member(self) -> OneOf:
        names = [field.alias or name for name, field in type(self).model_fields.items()]
        if len(self.model_fields_set) != 1 or getattr(self, next(iter(self.model_fields_set))) is None:
            raise ValueError(
                f"{len(self.model_fields_set)} members, exactly one is needed of: {', '.join(names)}"
            )
        return self

    def chosen(self) -> PolicySpec:
        """Return the member that is set, its parameters by their Python names and types.

        Raises:
            ParamError: a decimal that is no finite number.
        """
        (field,) = self.model_fields_set
        name = type(self).model_fields[field].alias or field
        member = getattr(self, field)
        infos = _INFOS[type(member)]
        return _shared(name, tuple((i.name, _value(i, getattr(member, i.name), name)) for i in infos))


@lru_cache(maxsize=1024)
def _shared(name: str, params: tuple[tuple[str, Any], ...]) -> PolicySpec:
    """Return a rule, cached and shared, as thousands of jobs name the same few: never mutate ``params``."""
    return PolicySpec(name, dict(params))


_INFOS: dict[type[Any], tuple[ParamInfo, ...]] = {}


def union_of(title: str, where: str, registry: Mapping[str, Registered]) -> Any:
    """Return a pydantic model with one optional member per entry of a registry.

    Args:
        title: name of the model.
        where: what messages call the field.
        registry: name -> entry.
    """
    members: dict[str, Any] = {}
    for name, entry in registry.items():
        model = _params_model(title, entry)
        field = "member_" + "".join("_" + c.lower() if c.isupper() else c for c in name)
        members[field] = (model | None, Field(default=None, alias=name, description=_sentence(entry.doc)))
    base = type(
        f"{title}Base",
        (OneOf,),
        {
            "__module__": __name__,
            "__doc__": OneOf.__doc__,
            "model_config": ConfigDict(
                json_schema_extra=markers.cel(markers.exactly_one_of(where, tuple(registry)))
            ),
        },
    )
    return cast("type[OneOf]", create_model(title, __base__=base, __doc__=f"Exactly one {where}.", **members))


def warm_up_rules(
    rules: Mapping[str, Registered], modifiers: Mapping[str, Registered]
) -> tuple[markers.Extra, ...]:
    """Return CEL rules for a check across members: a warm-up must not be shorter than the rule's ``k``.

    For every rule that has a ``k``. The API server then refuses what `make_rule` would refuse later; the two
    are held equal by `test_the_warm_up_rule_says_what_the_warm_up_itself_says` (tests/api/test_api_crd.py).
    """
    return tuple(
        markers.rule(
            f"!has(self.stopRule.{r}) || !has(self.modifiers) || "
            f"self.modifiers.all(m, !has(m.{w}) || m.{w}.minEvals >= self.stopRule.{r}.k)",
            f"{w}.minEvals: %d is not allowed, expected at least stopRule.{r}.k = %d: "
            "fewer evals can never stop",
            f"self.modifiers.filter(m, has(m.{w}) && m.{w}.minEvals < self.stopRule.{r}.k)[0].{w}.minEvals",
            f"self.stopRule.{r}.k",
            path=".modifiers",
        )
        for r, rule_type in rules.items()
        if _has(rule_type, "k")
        for w, modifier_type in modifiers.items()
        if _has(modifier_type, "min_evals")
    )


def _has(entry: Registered, name: str) -> bool:
    return any(info.name == name for info in describe(entry.params))


def _params_model(title: str, entry: Registered) -> type[Spec]:
    infos = describe(entry.params)
    model = create_model(
        f"{title}{entry.name[0].upper()}{entry.name[1:]}",
        __base__=Spec,
        __doc__=_sentence(entry.doc),
        **{info.name: _field(info) for info in infos},
    )
    _INFOS[model] = infos
    return model


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _field(info: ParamInfo) -> Any:
    description = f"{_sentence(info.doc)} Unit: {info.unit}."
    bounds = info.bounds
    if info.kind is bool:
        return (
            Literal["Enabled", "Disabled"],
            Field(default=ENABLED if info.default else DISABLED, description=description.split(" Unit:")[0]),
        )
    if info.kind is str:
        choices = bounds.choices
        if not choices:
            raise TypeError(f"parameter {info.name}: text needs choices, the API has no free text in rules")
        return (Literal[choices], Field(default=info.default, description=description))
    if info.kind is int:
        # Exclusive bounds become inclusive ones (> 0 is >= 1): the API server's message names a valid value.
        low = bounds.ge if bounds.ge is not None else None if bounds.gt is None else math.floor(bounds.gt) + 1
        high = bounds.le if bounds.le is not None else None if bounds.lt is None else math.ceil(bounds.lt) - 1
        if low is None or high is None:
            raise TypeError(f"parameter {info.name}: whole numbers need a lower and an upper bound")
        limits: dict[str, Any] = {"ge": math.ceil(low), "le": math.floor(high)}
        wide = max(abs(low), abs(high)) > 2**31 - 1
        return (
            Annotated[int, Field(strict=True, json_schema_extra=markers.INT64 if wide else markers.INT32)],
            Field(default=info.default, description=description, **limits),
        )
    if info.kind is float:
        return (DecimalString, Field(default=repr(info.default), description=description, **_decimal(info)))
    raise TypeError(f"parameter {info.name}: the API has no form for {info.kind.__name__}")


def _decimal(info: ParamInfo) -> dict[str, Any]:
    bounds = info.bounds
    signs = ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt))
    tests = [f"double(self) {sign} {float(limit)!r}" for sign, limit in signs if limit is not None]
    if not tests:
        return {}
    name = to_camel(info.name)
    message = f"{name} is %s, expected a value {bounds} ({info.unit})"
    return {"json_schema_extra": markers.cel(markers.rule(" && ".join(tests), message, "self"))}


def _value(info: ParamInfo, value: Any, owner: str) -> Any:
    if info.kind is bool:
        return value == ENABLED
    if info.kind is float:
        number = float(value)
        if not math.isfinite(number):
            raise ParamError(f"{owner}.{to_camel(info.name)}", value, "a decimal that fits into a double")
        return number
    return value
