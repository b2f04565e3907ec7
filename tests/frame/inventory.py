"""Everything that others see of the product and may rely on, as one sorted document.

    {section: {name: what is so of it}}

No section depends on where a thing stands in the code, so that a move changes nothing. Texts for people
(help, descriptions, messages) are not in it: they may be said better at any time.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import lzma
import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml

import controller

Json = dict[str, Any]
KINDS = ("renamed", "gone", "added", "changed")  # of rows in words.toml
Sections = dict[str, Json]

ROOT = Path(str(controller.__file__)).resolve().parents[1]  # of the tree whose code this process runs
CLIENTS = ("clients/python", "examples/evalstop_client.py")  # the first that there is
CODE = re.compile(r"(?:[A-Z]+[a-z0-9]+)+[A-Z]*")
METRIC = re.compile(r"(?:evalstop|rlhf)_[a-z0-9_]*[a-z0-9]")
LABEL = re.compile(r"[a-z][a-z_]*")
VARIABLE = re.compile(r"(?:EVALSTOP|POD|AWS|KUBE|NODE|JOB)_[A-Z0-9_]*[A-Z0-9]|KUBECONFIG")
MEMBER = re.compile(r"\(has\(self\.\w+\) \? 1 : 0\)(?: \+ )?")  # in a rule: of these fields, one
# Where the members of a registry are entries: (section, what they are a part of).
RULE = (("fields", "RLHFJob.spec.stopRule"), ("fields", "RLHFJob.spec.metrics[].stopRule"))
MODIFIER = (("fields", "RLHFJob.spec.modifiers[]"),)
POLICY = (("fields", "GPUPool.spec.queuePolicy"), ("chart schema", "values.pools[].spec.queuePolicy"))
SCHEMA = ("type", "format", "enum", "pattern", "default", "minimum", "maximum", "minLength", "maxLength")
SCHEMA += ("minItems", "maxItems", "minProperties", "maxProperties", "nullable", "uniqueItems")


def inventory() -> Sections:
    """Return all sections, sorted by name."""
    found = {
        "commands": dict(_commands()),
        "fields": dict(_fields()),
        "columns": dict(_columns()),
        "conditions": dict(_conditions()),
        "reasons": dict(_reasons()),
        "events": {name: {} for name in _events()},
        "codes": {name: {} for name in _matching(CODE)},
        "metrics": dict(_metrics()),
        "settings": dict(_settings()),
        "variables": {name: {} for name in _matching(VARIABLE)},
        "names": dict(_names()),
        "chart values": dict(_values()),
        "chart schema": dict(_chart_schema()),
        "client": dict(_client()),
    }
    return {section: dict(sorted(entries.items())) for section, entries in sorted(found.items())}


def dumps(found: Sections) -> str:
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load(path: Path) -> Sections:
    """Return an inventory that was written to a file (``.json`` or ``.json.xz``)."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        found: Sections = json.load(file)
    return found


# -- compare ---------------------------------------------------------------------------------------------


def rows_of_new_members(old: Sections) -> dict[str, dict[str, str]]:
    """Return the rows of ``added`` that nobody has to write: stop rules, modifiers and queue policies of this
    tree that ``old`` does not have, with the codes that only their own files hold."""
    from controller.policy.queueing import POLICIES
    from controller.policy.stopping import MODIFIERS, RULES

    found: dict[str, dict[str, str]] = {"fields": {}, "chart schema": {}, "codes": {}}
    files = set[Path]()
    for registry, parents in ((RULES, RULE), (MODIFIERS, MODIFIER), (POLICIES, POLICY)):
        for name, member in registry.items():
            entries = [entry for entry in parents if f"{entry[1]}.{name}" not in old.get(entry[0], {})]
            for section, parent in entries:
                found[section][f"{parent}.{name}"] = f"registered: {member.doc}"
            if entries:
                files.add(Path(inspect.getfile(member.params)).resolve())
    codes = _matching(CODE, files) - old.get("codes", {}).keys()
    elsewhere = _matching(CODE, {path for path, _ in _sources()} - files)
    found["codes"] = dict.fromkeys(codes - elsewhere, "of a registered rule or policy")
    return found


def differences(
    old: Sections, new: Sections, words: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> list[str]:
    """Return a line for each entry that differs once ``old`` is translated, and for each idle row.

    Args:
        old, new: as `inventory` returns them. words: table ``inventory`` of words.toml.
    """
    lines = []
    for section in sorted({*old, *new}):
        of = {kind: dict(words.get(kind, {}).get(section, {})) for kind in KINDS}
        renames, used = of["renamed"], set[str]()
        before = {
            _renamed(n, renames, used): _in_words(v, renames, used) for n, v in old.get(section, {}).items()
        }
        after = new.get(section, {})
        for name in sorted(before.keys() - after.keys()):
            if _row(name, of["gone"], used) is None:
                lines.append(f"{section}: {name}: gone, was {_short(before[name])}")
        for name in sorted(after.keys() - before.keys()):
            if _row(name, of["added"], used) is None:
                lines.append(f"{section}: {name}: new, {_short(after[name])}")
        for name in sorted(before.keys() & after.keys()):
            for part in sorted({*before[name], *after[name]}):
                values = [_without_members(part, side[name].get(part)) for side in (before, after)]
                if values[0] != values[1] and _row(name, of["changed"], used) is None:
                    lines.append(
                        f"{section}: {name}: {part}: was {_short(values[0])}, is {_short(values[1])}"
                    )
        for kind, rows in of.items():
            lines += [
                f"words: inventory.{kind}.{section}: {row!r}: no such entry"
                for row in rows
                if row not in used
            ]
    return lines


def _without_members(part: str, value: Any) -> Any:
    """Return a part of an entry; of a rule that counts members of a registry, what is about none of them."""
    return [MEMBER.sub("", rule) for rule in value] if part == "rules" and value else value


def _row(name: str, rows: Mapping[str, str], used: set[str]) -> str | None:
    """The longest row for a name: of itself, or of what it is a part of."""
    fits = [
        row for row in rows if name == row or name.startswith((f"{row}.", f"{row}[", f"{row} ", f"{row}("))
    ]
    if not fits:
        return None
    row = max(fits, key=len)
    used.add(row)
    return row


def _renamed(name: str, rows: Mapping[str, str], used: set[str]) -> str:
    row = _row(name, rows, used)
    return name if row is None else rows[row] + name[len(row) :]


def _in_words(value: Any, rows: Mapping[str, str], used: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _in_words(inner, rows, used) for key, inner in value.items()}
    if isinstance(value, list):
        inner = [_in_words(one, rows, used) for one in value]
        return inner if inner == value else sorted(inner, key=_order)  # in the order of the new names
    return _renamed(value, rows, used) if isinstance(value, str) else value


def _order(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"


# -- commands --------------------------------------------------------------------------------------------


def _commands() -> Iterator[tuple[str, Json]]:
    from controller.cli.main import app

    yield from _command("evalstop", typer.main.get_command(app))


def _command(name: str, command: Any) -> Iterator[tuple[str, Json]]:
    yield name, {"hidden": command.hidden}
    for param in command.params:
        option = param.param_type_name == "option"
        entry = {
            "type": _typed(param.type_descriptor.annotation),
            "from": param.min,
            "to": param.max,
            "required": param.required,
            "several": param.multiple or param.nargs != 1,
            "flag": option and param.is_flag,
            "default": _plain(param.default),
            "variable": param.envvar or "",
            "hidden": param.hidden,
            "other names": sorted([*param.opts[1:], *param.secondary_opts]) if option else [],
        }
        yield f"{name} {param.opts[0] if option else param.name.upper()}", entry
    for inner, one in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", one)


def _typed(annotation: Any) -> Any:
    """A choice by its words, any other type by its name."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(one.value) for one in annotation]
    return (
        getattr(annotation, "__name__", str(annotation)) if isinstance(annotation, type) else str(annotation)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else "computed"


# -- resources -------------------------------------------------------------------------------------------


def _versions() -> Iterator[tuple[str, Json]]:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        spec = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        for version in spec["versions"]:
            yield spec["names"]["kind"], version


def _fields() -> Iterator[tuple[str, Json]]:
    for kind, version in _versions():
        yield from _schema(kind, version["schema"]["openAPIV3Schema"])


def _schema(name: str, schema: Json, required: bool = False) -> Iterator[tuple[str, Json]]:
    entry = {key: schema[key] for key in SCHEMA if key in schema} | {"required": required}
    rules = [rule["rule"] for rule in schema.get("x-kubernetes-validations", ())]
    extensions = {key: schema[key] for key in schema if key.startswith("x-kubernetes-list")}
    yield name, entry | extensions | ({"rules": rules} if rules else {})
    for part, inner in schema.get("properties", {}).items():
        yield from _schema(f"{name}.{part}", inner, part in schema.get("required", ()))
    for key, ending in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from _schema(name + ending, schema[key])


def _columns() -> Iterator[tuple[str, Json]]:
    for kind, version in _versions():
        for column in version.get("additionalPrinterColumns", ()):
            yield f"{kind} {column['name']}", {key: column[key] for key in ("type", "jsonPath")}


# -- what is found in the source -------------------------------------------------------------------------


class Source(NamedTuple):
    """What is looked for in one file: its strings (not those of annotations), and its calls."""

    strings: frozenset[str]
    calls: tuple[ast.Call, ...]


@cache
def _sources() -> tuple[tuple[Path, Source], ...]:
    """Of every file but the doors of packages, which name classes."""
    paths = [*sorted((ROOT / "controller").rglob("*.py")), *_client_files()]
    return tuple((path, _source(ast.parse(path.read_text()))) for path in paths if path.name != "__init__.py")


def _source(tree: ast.Module) -> Source:
    strings, calls, todo = set[str](), list[ast.Call](), list[ast.AST]([tree])
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                strings.add(node.value)
            continue
        if isinstance(node, ast.Call):
            calls.append(node)
        if isinstance(node, ast.Subscript) and _generic(node.value):
            continue  # a type with a name of one that comes later
        for name in node._fields:
            inner = getattr(node, name)
            if isinstance(inner, list):
                todo += [one for one in inner if isinstance(one, ast.AST)]
            elif isinstance(inner, ast.AST) and name not in ("ctx", "annotation", "returns"):
                todo.append(inner)
    return Source(frozenset(strings), tuple(calls))


def _generic(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id != "Literal" and CODE.fullmatch(node.id) is not None


def _matching(pattern: re.Pattern[str], files: Collection[Path] | None = None) -> set[str]:
    """Whole strings in the source, or in these files of it, that look like this."""
    read = [source for path, source in _sources() if files is None or path in files]
    return {string for source in read for string in source.strings if pattern.fullmatch(string)}


def _client_files() -> list[Path]:
    place = next(ROOT / place for place in CLIENTS if (ROOT / place).exists())
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _conditions() -> Iterator[tuple[str, Json]]:
    (path,) = (ROOT / "controller" / "policy").rglob("conditions.py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str) and CODE.fullmatch(value):
                yield value, {}


def _reasons() -> Iterator[tuple[str, Json]]:
    """Of conditions that are not True; every other word that looks like one is among the codes."""
    from tests.cli import reasons_written

    yield from ((reason, {}) for reason in reasons_written.written())


def _events() -> set[str]:
    """First arguments of ``event(…)`` and ``Event(…)``; conditions that change are Events by their reason."""
    return {
        call.args[0].value
        for _, source in _sources()
        for call in source.calls
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("event", "Event")
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def _metrics() -> Iterator[tuple[str, Json]]:
    """Names of samples (without ``_bucket``, ``_sum``, ``_count``), and labels where they are declared."""
    labels: dict[str, set[str]] = {name: set() for name in _matching(METRIC)}
    for call in (call for _, source in _sources() for call in source.calls):
        given = [one.value for one in call.args if isinstance(one, ast.Constant)]
        known = next((one for one in given if isinstance(one, str) and one in labels), None)
        if known is not None:
            labels[known] |= {*_labels(call)} - {known}
    for name in labels:
        yield name, {"labels": sorted(labels[name])}


def _labels(call: ast.Call) -> Iterator[str]:
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "labels")]
    for one in given:
        inner = one.elts if isinstance(one, ast.List | ast.Tuple) else [one]
        for part in inner:
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and LABEL.fullmatch(part.value):
                yield part.value


def _settings() -> Iterator[tuple[str, Json]]:
    """Variables of the processes that read theirs into a dataclass, with their defaults."""
    for path in sorted((ROOT / "controller").rglob("settings.py")):
        if not re.search(r"^PREFIX = ", path.read_text(), re.M):
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        from controller.environ import described

        for variable, default, meaning in described(module.Settings, module.PREFIX):
            process = path.relative_to(ROOT).parts[1]
            expected = meaning.rpartition("; ")[2]
            yield variable, {"read by": process, "default": default, "expected": expected}


def _names() -> Iterator[tuple[str, Json]]:
    """Labels, annotations, groups, file names that two parts agree on, by their value."""
    for value in vars(importlib.import_module("controller.names")).values():
        if isinstance(value, str) and not value.startswith(("controller", "/")) and "\n" not in value:
            yield value, {}


# -- the chart -------------------------------------------------------------------------------------------


def _values() -> Iterator[tuple[str, Json]]:
    text = (ROOT / "deploy/helm/evalstop/values.yaml").read_text()
    yield from _flat("", yaml.safe_load(text))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for part, inner in value.items():
            yield from _flat(f"{name}.{part}".lstrip("."), inner)
    else:
        yield name, {"default": value}


def _chart_schema() -> Iterator[tuple[str, Json]]:
    schema = json.loads((ROOT / "deploy/helm/evalstop/values.schema.json").read_text())
    yield from _schema("values", {key: schema[key] for key in schema if key != "definitions"})
    for name, inner in schema.get("definitions", {}).items():
        yield from _schema(f"definition {name}", inner)


# -- the trainer's client --------------------------------------------------------------------------------


def _client() -> Iterator[tuple[str, Json]]:
    for path in _client_files():
        yield from _public("", ast.parse(path.read_text()).body)


def _public(within: str, body: list[ast.stmt]) -> Iterator[tuple[str, Json]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("_") and node.name != "__init__":
                continue
            name = f"{within}{node.name}"
            if isinstance(node, ast.ClassDef):
                yield name, {"class of": [ast.unparse(base) for base in node.bases]}
                yield from _public(f"{name}.", node.body)
            else:
                returns = ast.unparse(node.returns) if node.returns else ""
                yield name, {"arguments": ast.unparse(node.args), "returns": returns}
        elif within and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value else ""
            yield f"{within}{node.target.id}", {"type": ast.unparse(node.annotation), "default": default}
