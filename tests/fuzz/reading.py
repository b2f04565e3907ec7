"""Where the product reads text, found in its source, and whether a target gets there.

A *site* is a function of `controller` or `sim` in which one of `READERS` is called: what turns text or bytes
into values. What comes from the API server is read once, by `controller.kube.wire`, and handed on as objects;
so functions that take one (a parameter annotated `Object` or `Mapping[str, Any]`) are sites, too, in
the modules that read tenants' objects (`TAKERS`).

That a target gets there is seen, not declared: it reads its seeds, and each function that is called is noted.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from controller import log
from tests.fuzz.target import ROOT, Target

# By the name under which they are known, whatever a module calls them.
READERS = frozenset(
    {
        "base64.b64decode",
        "base64.urlsafe_b64decode",
        "controller.bounded.load",
        "controller.bounded.prune",
        "controller.checkpoints.store.read_json",
        "csv.DictReader",
        "csv.reader",
        "datetime.datetime.fromisoformat",
        "gzip.GzipFile",
        "gzip.decompress",
        "gzip.open",
        "httptools.HttpRequestParser",
        "httptools.HttpResponseParser",
        "ipaddress.ip_address",
        "ipaddress.ip_network",
        "json.JSONDecoder",
        "json.load",
        "json.loads",
        "pickle.load",
        "pickle.loads",
        "pickletools.genops",
        "prometheus_client.parser.text_string_to_metric_families",
        "pydantic_core.from_json",
        "sim.traces.json_text.decoder",
        "sim.traces.json_text.parse",
        "urllib.parse.parse_qs",
        "urllib.parse.parse_qsl",
        "urllib.parse.urlsplit",
        "xml.etree.ElementTree.fromstring",
        "controller.cli.yaml_reader.documents",
        "yaml.safe_load",
        "yaml.safe_load_all",
        "zlib.decompress",
        "zlib.decompressobj",
    }
)
# Methods, of whatever object: known by their own names.
METHODS = frozenset({"model_validate", "model_validate_json", "raw_decode"})

TAKERS = (
    "controller/api/codec.py",
    "controller/api/convert.py",
    "controller/api/evals.py",
    "controller/api/newer.py",
    "controller/api/record.py",
    "controller/checkpoints/results.py",
    "controller/extender/views.py",
    "controller/extender/wire.py",
    "controller/kube/devices.py",
    "controller/kube/trim.py",
    "controller/kube/wire.py",
    "controller/metrics/pods.py",
    "controller/objects.py",
    "controller/operator/state/nodes.py",
    "controller/operator/state/ownership.py",
    "controller/operator/state/run_configmap.py",
    "controller/workloads/child.py",
    "controller/workloads/pods.py",
    "controller/workloads/running.py",
    "controller/workloads/shape.py",
)


class Site(NamedTuple):
    file: str  # relative to the repository
    function: str  # its qualified name

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"


def sites() -> Iterator[Site]:
    """All of them, each once."""
    found: dict[Site, None] = {}
    for top in ("controller", "sim"):
        for path in sorted((ROOT / top).rglob("*.py")):
            found |= dict.fromkeys(_of_file(path))
    yield from found


def reached(targets: Iterable[Target]) -> set[Site]:
    """The functions of the product that are called while the targets read their seeds."""
    log.configure("CRITICAL", "json", sys.stderr)
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    for target in targets:
        seeds = list(target.seeds())
        for data in (*seeds, b"", b"[" * 300):
            sys.setprofile(note)
            try:
                target.run(data)
            except target.own:
                pass
            finally:
                sys.setprofile(None)
    root = f"{ROOT}/"
    return {
        Site(c.co_filename.removeprefix(root), c.co_qualname) for c in codes if c.co_filename.startswith(root)
    }


def _of_file(path: Path) -> Iterator[Site]:
    tree = ast.parse(path.read_text())
    file = str(path.relative_to(ROOT))
    known = _imported(tree)

    def walk(node: ast.AST, place: tuple[str, ...], inside: str) -> Iterator[Site]:
        """``inside``: the function that a node is in; "": none, so it is read once, when it is imported."""
        for child in ast.iter_child_nodes(node):
            inner, function = place, inside
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner, function = (*place, child.name, "<locals>"), ".".join((*place, child.name))
                if file in TAKERS and not child.name.startswith("_") and _takes_object(child):
                    yield Site(file, function)
            elif isinstance(child, ast.ClassDef):
                inner = (*place, child.name)
            elif isinstance(child, ast.Call) and _reads(child.func, known) and inside:
                yield Site(file, inside)
            yield from walk(child, inner, function)

    yield from walk(tree, (), "")


def _imported(tree: ast.AST) -> Mapping[str, str]:
    """What a module's names stand for."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                (a.asname or a.name.split(".")[0]): (a.name if a.asname else a.name.split(".")[0])
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return known


def _reads(function: ast.expr, known: Mapping[str, str]) -> bool:
    if isinstance(function, ast.Attribute) and function.attr in METHODS:
        return True
    name = _dotted(function)
    first, _, rest = name.partition(".")
    whole = known.get(first, first) + (f".{rest}" if rest else "")
    return whole in READERS


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def _takes_object(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    annotations = (ast.unparse(a.annotation) for a in function.args.args if a.annotation is not None)
    return any("Object" in text or "Mapping[str, Any]" in text for text in annotations)


Exempt = Mapping[str, str]


def missing(found: Iterable[Site], seen: set[Site], exempt: Exempt) -> list[Site]:
    """Sites that no target gets to and that nobody has said why."""
    return [site for site in found if site not in seen and not _matches(site, exempt)]


def idle(found: Iterable[Site], seen: set[Site], exempt: Exempt) -> list[str]:
    """Exemptions that exempt nothing."""
    left = [site for site in found if site not in seen]
    return [name for name in exempt if not any(_matches(site, {name: ""}) for site in left)]


def _matches(site: Site, exempt: Exempt) -> bool:
    folders = (str(folder) for folder in Path(site.file).parents)
    return site.file in exempt or str(site) in exempt or any(folder in exempt for folder in folders)
