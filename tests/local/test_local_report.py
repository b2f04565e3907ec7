"""Control-plane tests that did not run are told in the last lines, and fail the run under CI=true."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
pytest_plugins = ["tests.support.cluster_report"]

@pytest.fixture(scope="session")
def tools(request):
    report = request.config.pluginmanager.getplugin("cluster-report")
    if report.tools is None:
        pytest.skip("no control-plane binaries")
    return report.tools

@pytest.fixture
def plane(tools):
    return "a plane"

@pytest.fixture(scope="session")
def kueue_tools(request, tools):
    report = request.config.pluginmanager.getplugin("cluster-report")
    if "kueue_tools" not in report.more:
        pytest.skip("no Kueue")
    return report.more["kueue_tools"]

@pytest.fixture
def namespace(plane):
    return "a namespace"
"""

TESTS = """
import pytest

def test_plain():
    pass

def test_on_a_plane(namespace):
    pass

@pytest.mark.cluster
def test_marked_by_hand():
    pass
"""

CONFIG = "[pytest]\ntestpaths = tests\naddopts = -q --strict-markers\nmarkers = cluster: real control plane\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text(CONFIG)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"):
        (assets / name).write_text("#!/bin/sh\necho v1.36.3\n")
        (assets / name).chmod(0o755)
    return tmp_path


def pytest_in(
    project: Path, repository: Path, *arguments: str, ci: bool = False, tools: bool = True
) -> tuple[int, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(repository),
        "EVALSTOP_CACHE": str(project / "cache"),
        "EVALSTOP_DOWNLOAD": "never",
        "EVALSTOP_BUILD": "never",
        "KUBEBUILDER_ASSETS": str(project / "assets") if tools else "",
        "CI": "true" if ci else "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a second less for each run
        "PYTEST_ADDOPTS": "",  # for the whole suite, not for this run within it
    }
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def last_lines(output: str) -> str:
    return "\n".join(output.splitlines()[-5:])


@pytest.mark.parametrize("ci", [False, True])
def test_all_ran(project: Path, repository: Path, ci: bool) -> None:
    status, output = pytest_in(project, repository, ci=ci)
    assert status == 0, output
    assert "control-plane tests: all 2 ran" in last_lines(output)


@pytest.mark.parametrize(
    ("arguments", "tools", "told", "reason"),
    [
        ([], False, "1 ran, 1 DID NOT RUN", "1 x no control-plane binaries"),
        (["-m", "not cluster"], True, "0 ran, 2 DID NOT RUN", "2 x deselected"),
        (["--ignore=tests/test_it.py"], True, "0 ran, 0 DID NOT RUN", "none was found"),
    ],
)
def test_not_run_is_told_with_its_reason_and_fails_under_ci(
    project: Path, repository: Path, arguments: list[str], tools: bool, told: str, reason: str
) -> None:
    (project / "tests" / "test_other.py").write_text("def test_other():\n    pass\n")
    for ci in (True,) if tools else (True, False):
        status, output = pytest_in(project, repository, *arguments, ci=ci, tools=tools)
        assert status in ((1,) if ci else (0, 5)), output
        end = last_lines(output)
        assert f"control-plane tests: {told}" in end, output
        assert reason in end
        assert ("which fails this run because CI is set" in end) == ci
        if not tools:
            assert "no way led to etcd, kube-apiserver" in output


@pytest.mark.parametrize("there", [True, False])
def test_a_tool_is_asked_for_where_a_test_needs_it_and_its_absence_told(
    project: Path, repository: Path, there: bool
) -> None:
    (project / "tests" / "test_queue.py").write_text("def test_on_kueue(kueue_tools):\n    pass\n")
    if there:
        (project / "assets" / "kueue").write_text("#!/bin/sh\n")
        (project / "assets" / "kueue").chmod(0o755)
        (project / "assets" / "kueue-config").mkdir()
    status, output = pytest_in(project, repository, ci=True)
    if there:
        assert status == 0, output
        assert "control-plane tests: all 3 ran" in output
        return
    assert status == 1
    assert "no way led to kueue, kueue-config (Kueue 0.15.2, " in output
    assert "1 x no Kueue" in last_lines(output)
    assert "2 ran, 1 DID NOT RUN" in last_lines(output)


def test_not_reached_is_told(project: Path, repository: Path) -> None:
    (project / "tests" / "test_a.py").write_text("def test_fails():\n    assert False\n")
    status, output = pytest_in(project, repository, "--maxfail=1")
    assert status == 1
    assert "0 ran, 2 DID NOT RUN" in last_lines(output)
    assert "2 x not reached" in last_lines(output)


def test_a_skip_inside_a_test_counts_as_not_run(project: Path, repository: Path) -> None:
    (project / "tests" / "test_it.py").write_text(
        "import pytest\ndef test_on_a_plane(plane):\n    pytest.skip('not today')\n"
    )
    status, output = pytest_in(project, repository, ci=True)
    assert status == 1
    assert "1 x not today" in last_lines(output)


def test_a_part_of_the_suite_without_such_tests_says_nothing(project: Path, repository: Path) -> None:
    (project / "tests" / "test_other.py").write_text("def test_other():\n    pass\n")
    status, output = pytest_in(project, repository, "tests/test_other.py", ci=True)
    assert status == 0, output
    assert "control-plane" not in output
