"""Judge a run's own curve by another rule: the form's choices, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from controller.frozen import dataclass
from controller.policy.job import declared_scale
from controller.policy.params import ParamError, ParamInfo, describe
from controller.policy.stopping import RULES
from controller.policy.types import PolicySpec
from controller.web.dashboard.feed import Job


@dataclass(frozen=True, slots=True)
class Choice:
    """A parameter in the form: what it is and what was chosen."""

    info: ParamInfo
    name: str  # as in an RLHFJob
    value: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The form as filled in and, if ``asked``, what came of it: an outcome or a ``problem``."""

    rules: tuple[tuple[str, str], ...]  # name and what it is
    rule: str
    choices: tuple[Choice, ...]
    warm_up: str
    asked: bool
    outcome: Any = None  # sim.what_if.CurveOutcome
    text: str = ""
    problem: str = ""


def what_if(job: Job, query: Mapping[str, str]) -> WhatIf:
    """Answer a form sent as a URL's query: ``rule``, ``p.<parameter>`` of that rule, ``warmUp``.

    Without ``rule`` the job's own rule with its own parameters is shown, and nothing is asked.
    """
    own = job.desired.rule
    name = query.get("rule") or (own.name if own.name in RULES else next(iter(RULES)))
    rules = tuple((rule.name, rule.doc) for rule in RULES.values())
    if name not in RULES:
        known = ", ".join(RULES)
        problem = f"rule: {name[:60]!r} is not allowed, expected one of {known}"
        return WhatIf(rules, "", (), "", True, problem=problem)
    choices = []
    given: dict[str, Any] = {}
    problem = ""
    for info in describe(RULES[name].params):
        shown = to_camel(info.name)
        start = own.params.get(info.name, info.default) if own.name == name else info.default
        text = query.get(f"p.{shown}", _text(start))[:64].strip()
        choices.append(Choice(info, shown, text))
        try:
            value = _value(info, text)
        except ValueError:
            problem = problem or f"{name}.{shown}: {text!r} is not allowed, expected {_expected(info)}"
        else:
            if value != info.default:
                given[info.name] = value
    own_warm_up = next((m.params.get("min_evals") for m in job.desired.modifiers if m.name == "warmUp"), None)
    warm_up = query.get("warmUp", "" if own_warm_up is None else str(own_warm_up))[:16].strip()
    modifiers: tuple[PolicySpec, ...] = ()
    if warm_up:
        if warm_up.isascii() and warm_up.isdigit():
            modifiers = (PolicySpec("warmUp", {"min_evals": int(warm_up)}),)
        else:
            problem = problem or f"warmUp: {warm_up!r} is not allowed, expected a number of evals"
    asked = "rule" in query and query.get("run") == "1"
    found = WhatIf(rules, name, tuple(choices), warm_up, asked, problem=problem if asked else "")
    if not asked or problem:
        return found
    changed = [f"{c.name}={c.value}" for c in choices if c.info.name in given]
    text = f"{name}({', '.join(changed)})" if changed else name
    text += f" + warmUp(minEvals={warm_up})" if warm_up else ""
    try:
        outcome = _judged(job, PolicySpec(name, given), modifiers)
    except ParamError as error:
        owner, dot, field = error.field.partition(".")
        what = f"{owner}{dot}{to_camel(field)}: {error.value!r} is not allowed, expected {error.expected}"
        return WhatIf(rules, name, tuple(choices), warm_up, True, problem=what)
    return WhatIf(rules, name, tuple(choices), warm_up, True, outcome, text)


def _judged(job: Job, rule: PolicySpec, modifiers: tuple[PolicySpec, ...]) -> Any:
    # Here and not above: NumPy comes with it, and whoever asks no such question need not load it.
    from sim.foresight import RuleSpec
    from sim.what_if import curve

    progress = job.record.progress
    pace = progress.worked / progress.step if progress is not None and progress.step > 0 else None
    spec = RuleSpec(rule, modifiers)
    return curve(
        job.record.evals,
        spec,
        direction=job.desired.direction,
        total_steps=progress.total_steps if progress is not None else None,
        gpu_seconds_per_step=pace,
        scale=declared_scale(job.desired, job.record),
    )


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _value(info: ParamInfo, text: str) -> Any:
    if text == "" and info.default is None:
        return None
    if info.kind is bool:
        if text not in ("True", "False", "true", "false"):
            raise ValueError
        return text.lower() == "true"
    return info.kind(text)


def _expected(info: ParamInfo) -> str:
    kind = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[info.kind]
    return f"{kind} {info.bounds}".strip()


__all__ = ["Choice", "WhatIf", "what_if"]
