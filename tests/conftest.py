"""Fixtures for tests on a real control plane: one plane per session, a namespace per test."""

import gc
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from deploy.local.acquire import Found
from deploy.local.components import APISERVER, Options
from deploy.local.plane import Plane
from tests.support import given_cluster
from tests.support.fresh_namespace import fresh_namespace
from tests.support.group_audit import GroupAudit

# No limits on time per example: what a busy machine takes for one says nothing about the code. pytest-timeout
# ends a test that hangs.
settings.register_profile("evalstop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("evalstop")

# A script's background job ignores Ctrl-C, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# structlog's own way to show an exception draws each frame with its variables in a box: a third of what tests
# on an operator in this process cost.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

# Collecting 7,000 tests makes half a million objects that stay. To look through them for garbage again and
# again is a quarter of what collecting costs, and a tenth of what tests cost that compute.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on only what tests make is looked through."""
    gc.collect()
    gc.freeze()
    gc.enable()


pytest_plugins = [
    f"tests.support.{name}"
    for name in ("cluster_report", "folders", "agent_fixture", "kueue_fixture", "helm_fixture")
]


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Leave logging as it was found: a test that makes it quiet would hide what the next one looks for."""
    loggers = [logging.getLogger(name) for name in (None, "kopf", "aiohttp.access")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    configured = structlog.get_config() if structlog.is_configured() else None
    yield
    if configured is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**configured)
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def tools(request: pytest.FixtureRequest) -> dict[str, Found]:
    """The control plane's binaries; without them the test does not run, and the summary says so."""
    report = request.config.pluginmanager.getplugin("cluster-report")
    assert report is not None
    if report.tools is None:
        pytest.skip("no control-plane binaries (what was tried stands above)")
    found: dict[str, Found] = report.tools
    return found


@pytest.fixture(scope="session")
def group_audit(tmp_path_factory: pytest.TempPathFactory) -> GroupAudit:
    """What the API server of `plane` records of worker groups; nothing, if the cluster was given."""
    return GroupAudit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def plane(
    tools: dict[str, Found], group_audit: GroupAudit, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plane]:
    """A full control plane, started by the first test that asks for it, ended with the session; or the
    cluster whose kubeconfig EVALSTOP_TEST_KUBECONFIG names."""
    if (path := given_cluster.given()) is not None:
        binaries = {name: found.path for name, found in tools.items()}
        cluster = given_cluster.GivenCluster(path, tmp_path_factory.mktemp("given"), binaries)
        cluster.refuse_a_second_operator()
        yield cluster
        return
    options = Options(flags={APISERVER: group_audit.flags()})
    with Plane(tmp_path_factory.mktemp("plane"), options) as running:
        yield running


@pytest.fixture
def namespace(plane: Plane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace in which pods can be created; what is at work in it is taken away after the test."""
    with fresh_namespace(plane, request.node.name) as name:
        yield name


@pytest.fixture
def kubectl(plane: Plane) -> Callable[..., str]:
    """`kubectl("get", "pods", "-n", ns)` as administrator: its output, PlaneError if it fails.

    Keywords: `stdin` (text), `kubeconfig` (Path of another identity), `timeout_s`.
    """
    return plane.kubectl


@pytest.fixture
def repository() -> Path:
    """The repository's root folder."""
    return Path(__file__).resolve().parents[1]
