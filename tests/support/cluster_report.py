"""A pytest plugin: tests on a real control plane run, or the run says that they did not.

Tests that use the `plane` or `tools` fixture, directly or through another, get the marker `cluster`.
Those that were skipped, deselected or not reached are told in the summary with the reason, and under
CI=true they fail the session. Tools beyond the control plane, such as Kueue, are obtained for the tests
that use their fixture (`TOOLS`).
"""

import os
from collections import Counter
from collections.abc import Sequence

import pytest

from deploy.local.acquire import Found, obtain
from deploy.local.errors import ToolsMissing
from deploy.local.helm.recipe import HELM
from deploy.local.kubeconform.recipe import KUBECONFORM
from deploy.local.kueue.recipe import KUEUE
from deploy.local.kwok.recipe import KWOK
from deploy.local.recipe import Recipe
from deploy.local.report import Report
from deploy.local.versions import CONTROL_PLANE
from deploy.local.versitygw.recipe import VERSITYGW
from tests.support import given_cluster

FIXTURES = {"plane", "tools"}
# Fixture -> the recipe of what it gives.
TOOLS = {
    "helm_tools": HELM,
    "kubeconform_tools": KUBECONFORM,
    "kueue_tools": KUEUE,
    "kwok_tools": KWOK,
    "versitygw_tools": VERSITYGW,
}


def built(request: pytest.FixtureRequest, fixture: str) -> dict[str, Found]:
    """What the recipe of a fixture of `TOOLS` gave; without it the test does not run, and the summary says
    so."""
    report: ClusterReport | None = request.config.pluginmanager.getplugin("cluster-report")
    assert report is not None
    if fixture not in report.more:
        pytest.skip(f"no {TOOLS[fixture].title} (what was tried stands above)")
    return report.more[fixture]


def under_ci() -> bool:
    """Whether the environment says that this is continuous integration."""
    return os.environ.get("CI", "").strip().lower() in ("true", "1", "yes")


class ClusterReport:
    """Counts the tests marked `cluster`: which ran, and why the others did not."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.waiting: dict[str, str] = {}  # node id -> why it did not run
        self.ran: set[str] = set()
        self.tools: dict[str, Found] | None = None
        self.more: dict[str, dict[str, Found]] = {}  # the same for each fixture of `TOOLS` that is used
        self.missing: list[str] = []  # what `obtain` said
        self.found = False  # whether there are any in what was collected

    # Which tests they are

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if FIXTURES & set(getattr(item, "fixturenames", ())) and not item.get_closest_marker("cluster"):
                item.add_marker(pytest.mark.cluster)
            # What needs kubelets no local plane could run: `make test-kind` does.
            local = item.get_closest_marker("kubelets") is None or given_cluster.given() is not None
            if item.get_closest_marker("cluster") and local:
                self.waiting[item.nodeid] = "not reached"
        self.found = bool(self.waiting)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            if item.nodeid in self.waiting:
                self.waiting[item.nodeid] = "deselected"

    def elsewhere(self, items: Sequence[pytest.Item]) -> None:
        """Another run beside this one runs these tests: they are not ours to report."""
        for item in items:
            self.waiting.pop(item.nodeid, None)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Get the binaries before the first test: building them takes longer than any test may."""
        if self.config.option.collectonly or not any(
            item.get_closest_marker("cluster") for item in session.items
        ):
            return
        capture = self.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            from deploy.local.console import Console

            with Console() as report:
                self.tools = self.obtained(report, CONTROL_PLANE)
                for fixture, recipe in TOOLS.items():
                    if any(fixture in getattr(item, "fixturenames", ()) for item in session.items):
                        found = self.obtained(report, recipe)
                        if found is not None:
                            self.more[fixture] = found

    def obtained(self, report: Report, recipe: Recipe) -> dict[str, Found] | None:
        """What a recipe gives; None if it cannot be had, and why is told in the end."""
        try:
            return obtain(report, recipe=recipe)
        except ToolsMissing as error:
            self.missing.append(str(error))
            return None

    # What became of them

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self.waiting:
            return
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.waiting[report.nodeid] = reason.removeprefix("Skipped: ").splitlines()[0]
        elif report.when == "call":
            self.ran.add(report.nodeid)
        elif report.failed:
            self.waiting[report.nodeid] = f"error in {report.when}"

    def not_run(self) -> dict[str, str]:
        """Node id and reason of each control-plane test that did not run."""
        return {node: why for node, why in self.waiting.items() if node not in self.ran}

    def nothing_ran(self) -> bool:
        """Whether the whole suite was asked for, and not one control-plane test was even found."""
        whole = self.config.args_source is pytest.Config.ArgsSource.TESTPATHS
        return whole and not self.found

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        incomplete = self.not_run() or self.nothing_ran()
        passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if under_ci() and incomplete and passed and not self.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.ran and not self.not_run():
            terminalreporter.write_line(f"control-plane tests: all {len(self.ran)} ran")

    def pytest_unconfigure(self) -> None:
        """The very last lines, after pytest's own: what follows them would be read instead."""
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        left = self.not_run()
        if terminal is None or self.config.option.collectonly or not (left or self.nothing_ran()):
            return
        colour = {"red" if under_ci() else "yellow": True, "bold": True}
        for text in self.missing:
            terminal.write_line(text, **colour)
        for reason, count in Counter(left.values()).most_common():
            terminal.write_line(f"  {count} x {reason}", **colour)
        if self.nothing_ran():
            terminal.write_line("  none was found", **colour)
        fails = ", which fails this run because CI is set" if under_ci() else ""
        terminal.write_line(
            f"control-plane tests: {len(self.ran)} ran, {len(left)} DID NOT RUN{fails}", **colour
        )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ClusterReport(config), "cluster-report")
