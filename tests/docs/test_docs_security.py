"""docs/operate/security.md promises nothing that no test holds; install.md says how to open what is shut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_promises import NOTE, TITLE, held, missing, notes, sections, sentences

from controller.api.gpupool import GPUPool
from controller.extender import settings as extender
from controller.operator.process import settings as operator
from controller.web.dashboard import settings as dashboard
from deploy.helm.schema import DASHBOARD_OWN, EXTENDER_OWN, OPERATOR_OWN, camel

ROOT = Path(__file__).resolve().parents[2]

PAGE = (ROOT / "docs" / "operate" / "security.md").read_text()
# What promises nothing: who and what there is, how to ask, and what is left open.
FREE = {TITLE, "What needs protection", "Actors", "Checking the rights in a cluster", "What is not defended"}
PROMISING = re.compile(r"\b(refused|never|cannot|at most|may not|nobody|is not)\b")


@pytest.mark.parametrize(
    "sentence", [s for name, body in sections(PAGE).items() if name not in FREE for s in sentences(body)]
)
def test_each_promise_names_the_tests_that_hold_it(sentence: str) -> None:
    assert held(sentence), "no note at its end: name the tests, or say it under 'What is not defended'"


def test_what_holds_no_promise_makes_none() -> None:
    assert {*sections(PAGE)} >= FREE
    free = [s for name in FREE - {TITLE, "What is not defended"} for s in sentences(sections(PAGE)[name])]
    assert len(free) > 10
    assert [s for s in free if PROMISING.search(s)] == []


def test_each_note_is_there_once_and_used() -> None:
    prose = "\n".join(sections(PAGE).values())
    assert {*NOTE.findall(prose)} == {*notes(PAGE)}
    assert len(notes(PAGE)) == len(re.findall(r"^\[\^", PAGE, re.M))
    assert [name for name, tests in notes(PAGE).items() if not tests] == []


@pytest.mark.parametrize("test", sorted({test for tests in notes(PAGE).values() for test in tests}))
def test_the_tests_that_are_named_are_there(test: str) -> None:
    assert missing(ROOT, test) == ""


def test_promises_that_nobody_holds_are_found_out() -> None:
    page = (
        "# Page\n\nFree. Words.\n\n## Promises\n\nHeld, by `a. b`.[^one] Not held. Held\ntoo.[^one][^two]\n\n"
        "| a | b |\n|---|---|\n| row[^two] | x |\n| row | y[^two] |\n\n"
        "```sh\nno sentence.\n```\n\n- Not held either: and so on\n\n[^one]: `tests/x.py::test_y`\n"
    )
    found = [s for s in sentences(sections(page)["Promises"]) if not held(s)]
    assert found == ["Not held.", "| row | y[^two] |", "Not held either: and so on"]
    assert notes(page) == {"one": ["tests/x.py::test_y"]}
    here = "tests/docs/test_docs_security.py"
    assert missing(ROOT, f"{here}::{test_promises_that_nobody_holds_are_found_out.__name__}") == ""
    assert missing(ROOT, f"{here}::test_another") == f"{here}::test_another: there is no such test in it"
    assert missing(ROOT, f"{here}::open_with").endswith("no such test in it")
    assert missing(ROOT, "tests/docs/docs_promises.py::held").endswith("no such file of tests")


# -- what is closed ------------------------------------------------------------------------------------

INSTALL = (ROOT / "docs" / "operate" / "install.md").read_text()
# Values that close nothing: sizes, places, names, and what is only made or left out.
OPEN = {
    *("image", "crds.install", "pools", "test", "monitoring", "workloads", "scheduler", "rbac.aggregate"),
    *(f"{part}.replicas" for part in ("operator", "extender", "dashboard")),
    *("operator.decisionLog", "extender.enabled", "extender.url", "extender.timeoutMilliseconds"),
    *("extender.weight", "extender.certificates", "operator.watchNamespaces", "rollouts.url"),
}
EVERYWHERE = {
    *("resources", "priorityClassName", "nodeSelector", "tolerations", "affinity", "podLabels"),
    *("podAnnotations", "serviceAccountAnnotations", "settings"),
}
# Settings that bound no tenant and let nobody in: how often, how long, how much is kept, and where.
TUNING = {
    *("relistSeconds", "foreignSeconds", "foreignListSeconds", "poolDelay", "apiTimeout", "drainSeconds"),
    *("stallSeconds", "accessStallSeconds", "workers", "scrapeConcurrency", "decisionLogBytes", "queuePort"),
    *("decisionLogFiles", "logLevel", "logFormat", "leaderElect", "leaseSeconds", "leaseRenewSeconds"),
    *("leaseRetrySeconds", "rackLabel", "lookSeconds", "queueUrl", "scrapeTimeout", "actorImage"),
    *("stepsCa", "stepsUrls"),
}
# Fields of a GPUPool that only say how it queues, and what stops promise.
POOL = {
    *("nodeSelector", "queuePolicy", "modeCap", "stopLimits", "maxWaitSeconds", "preemption", "delegate"),
    *("kueue", "schedulerName", "priorityClassName", "gangTimeoutSeconds", "reservationSeconds", "quotas"),
    *("lending", "sharing"),
}


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Dotted paths of a chart's values."""
    for name, value in values.items():
        here = f"{path}.{name}".removeprefix(".")
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        else:
            yield here


def closing() -> Iterator[str]:
    """Values, settings and fields of a pool that may close something."""
    for path in leaves(yaml.safe_load((ROOT / "deploy/helm/evalstop/values.yaml").read_text())):
        parts = path.split(".")
        known = any(".".join(parts[:n]) in OPEN for n in range(1, len(parts) + 1))
        if not known and not EVERYWHERE & set(parts):
            yield path
    for part, module, prefix, own in (
        ("operator", operator, "EVALSTOP_", OPERATOR_OWN),
        ("extender", extender, "EVALSTOP_EXTENDER_", EXTENDER_OWN),
        ("dashboard", dashboard, "EVALSTOP_DASHBOARD_", DASHBOARD_OWN),
    ):
        for variable, _, _ in module.describe():
            name = camel(variable.removeprefix(prefix).lower())
            if name not in own | TUNING:
                yield f"{part}.settings.{name}"
    for field in GPUPool.model_fields["spec"].annotation.model_fields.values():  # type: ignore[union-attr]
        if field.alias and field.alias not in POOL:
            yield f"spec.{field.alias}"


def tables() -> dict[str, str]:
    """Of the two parts about what is forbidden and what is closed: what is in code -> its row."""
    found = {}
    for part in ("What the policies forbid", "What is closed, and how to open it"):
        body = INSTALL.partition(f"### {part}\n")[2].partition("\n### ")[0]
        for row in re.findall(r"^\| .*$", body, re.M):
            for code in re.findall(r"`([^`]+)`", row):
                found[code.partition("=")[0].partition(":")[0]] = row
    return found


@pytest.mark.parametrize("path", list(closing()))
def test_what_is_closed_is_said_with_what_opens_it(path: str) -> None:
    row = tables().get(path)
    assert row, (
        f"{path}: write in docs/operate/install.md what its default forbids and how to open it, or list it"
    )
    assert all(cell.strip() for cell in row.strip("|").split("|"))


def test_nothing_is_listed_that_is_not_there() -> None:
    values = [*leaves(yaml.safe_load((ROOT / "deploy/helm/evalstop/values.yaml").read_text()))]
    for path in OPEN:
        assert any(f"{value}.".startswith(f"{path}.") for value in values), path
    settings = {
        camel(variable.removeprefix(prefix).lower())
        for module, prefix in (
            (operator, "EVALSTOP_"),
            (extender, "EVALSTOP_EXTENDER_"),
            (dashboard, "EVALSTOP_DASHBOARD_"),
        )
        for variable, _, _ in module.describe()
    }
    assert settings >= TUNING
    fields = GPUPool.model_fields["spec"].annotation.model_fields  # type: ignore[union-attr]
    assert {field.alias for field in fields.values()} >= POOL
    assert len({*closing()}) > 25
