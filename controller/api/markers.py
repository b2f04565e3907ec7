"""Schema extensions of Kubernetes that pydantic has no word for, as ``json_schema_extra`` dicts.

Merge several with ``|``; two lists of CEL rules on one field are joined by `cel(...)` taking many rules.
"""

from __future__ import annotations

from typing import Any

Extra = dict[str, Any]


def rule(expression: str, message: str, *values: str, path: str = "") -> Extra:
    """Return one CEL rule. ``message`` says what would be right; its %s and %d stand for the CEL ``values``.

    ``format`` it is, because the server takes the length of ``string(number)`` for unbounded and then
    refuses the rule as too dear. ``path`` (as ``.spec.pool``): the field the API server names, where the rule
    stands on a parent.
    """
    found: Extra = {"rule": expression}
    if values:
        quoted = message.replace("\\", "\\\\").replace("'", "\\'")
        found["messageExpression"] = f"'{quoted}'.format([{', '.join(f'dyn({v})' for v in values)}])"
    else:
        found["message"] = message
    if path:
        found["fieldPath"] = path
    return found


def cel(*rules: Extra) -> Extra:
    return {"x-kubernetes-validations": list(rules)}


def exactly_one_of(where: str, members: tuple[str, ...]) -> Extra:
    """Return an object that is a union: one of its optional members is set, the others are not.

    ``where`` is what the message calls the object.
    """
    count = " + ".join(f"(has(self.{m}) ? 1 : 0)" for m in members)
    return rule(
        f"({count}) == 1",
        f"{where} has %d members, exactly one is needed of: {', '.join(members)}",
        count,
    )


def no_dot_steps(where: str) -> Extra:
    """Return a CEL rule that refuses a path or URI with a step "." or "..".

    Such a path could climb out of its root, or name one folder in two ways.
    """
    return rule(
        r"!self.matches('(^|/)[.][.]?(/|$)')",
        f'{where} %s has a step "." or "..": name the folder itself',
        "self",
    )


def list_map(*keys: str) -> Extra:
    """Return a list whose items are told apart by keys: two writers of different items do not collide."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


EPOCH_REFUSED = "status.epoch: must be at least"
# On the object as a whole: a rule on the status itself would not be asked about a write that takes it away.
EPOCHS_GROW: Extra = rule(
    "!has(oldSelf.status) || !has(oldSelf.status.epoch) || (has(self.status) && has(self.status.epoch)"
    " && self.status.epoch >= oldSelf.status.epoch)",
    f"{EPOCH_REFUSED} %d, the term of office of the operator that wrote it last; a leader of an "
    "earlier term writes nothing any more",
    "oldSelf.status.epoch",
)

ATOMIC: Extra = {"x-kubernetes-list-type": "atomic"}
SET: Extra = {"x-kubernetes-list-type": "set"}
PRESERVE_UNKNOWN: Extra = {"x-kubernetes-preserve-unknown-fields": True}
INT_OR_STRING: Extra = {"x-kubernetes-int-or-string": True}
INT32: Extra = {"format": "int32"}
INT64: Extra = {"format": "int64"}
TIME: Extra = {"format": "date-time"}
