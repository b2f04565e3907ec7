"""Settings, the scheduler's configuration, certificates, the command line, following a watch that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from controller.cli.main import app
from controller.extender import requeueing
from controller.extender.client_certificates import FORGET, LastCertificate
from controller.extender.main import main
from controller.extender.metrics import Metrics
from controller.extender.process import DEAF, Extender
from controller.extender.requeueing import ANNOTATION_RETRY, RefusedPods, Requeuer
from controller.extender.scheduler_config import ConfigError, Options, configuration, ignorable, write
from controller.extender.settings import Settings, SettingsError, describe
from controller.kube.connection import Connection
from controller.kube.errors import ApiError, Gone, Unavailable
from controller.kube.listwatch import ListWatch
from controller.kube.resources import NODES
from controller.policy.node.ledger import GpuLedger, PodRequest
from controller.web import certificates as made
from deploy.local.scheduler import Certificates

NOW = datetime(2026, 11, 21, tzinfo=UTC)
OPTIONS = Options("https://x:8443", "ca", "cert", "key")


# -- the scheduler's configuration -------------------------------------------------------------------


def test_the_configuration_does_not_hide_the_extender() -> None:
    found = configuration(OPTIONS)
    (extender,) = found["extenders"]
    assert found["percentageOfNodesToScore"] == 100
    assert found["clientConnection"] == {"qps": 1000.0, "burst": 2000}
    assert extender["enableHTTPS"] is True
    assert extender["nodeCacheCapable"] is True
    assert extender["tlsConfig"] == {"caData": "Y2E=", "certData": "Y2VydA==", "keyData": "a2V5"}
    assert found["leaderElection"]["resourceName"] == found["profiles"][0]["schedulerName"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "http://x"}, "url: 'http://x', expected one that begins with https://"),
        ({"ca": ""}, "ca: empty"),
        ({"timeout": 0.0}, "timeout: 0 s, expected 0.05 to 60"),
        ({"weight": 0}, "weight: 0, expected 1 to 1000"),
        ({"qps": 0.0}, "qps: 0, expected 1 to 100000"),
    ],
)
def test_options_that_would_harm_are_refused(change: dict[str, Any], said: str) -> None:
    given = {"url": "https://x", "ca": "c", "certificate": "c", "key": "k"} | change
    with pytest.raises(ConfigError) as refused:
        Options(**given)
    assert said in str(refused.value)


@pytest.mark.parametrize("opened", [True, False])
def test_whether_it_fails_open_is_read_from_the_schedulers_own_file(tmp_path: Path, opened: bool) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(write(Options("https://x", "c", "c", "k", ignorable=opened)))
    assert ignorable(str(path)) is opened
    path.write_text("kind: Other")
    with pytest.raises(ConfigError, match="expected a KubeSchedulerConfiguration with extenders"):
        ignorable(str(path))


# -- settings ----------------------------------------------------------------------------------------


def test_settings_that_are_wrong_are_all_named(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("x")
    given = {
        "EVALSTOP_EXTENDER_CERTIFICATE": str(pem),
        "EVALSTOP_EXTENDER_KEY": str(tmp_path / "missing"),
        "EVALSTOP_EXTENDER_PORT": "70000",
        "EVALSTOP_EXTENDER_LOG_LEVEL": "LOUD",
        "EVALSTOP_EXTENDER_COLOUR": "red",
        "EVALSTOP_PORT": "of the operator",
    }
    with pytest.raises(SettingsError) as refused:
        Settings.from_environ(given)
    for said in (
        f"EVALSTOP_EXTENDER_KEY='{tmp_path / 'missing'}': expected a file that can be read",
        "EVALSTOP_EXTENDER_CLIENT_CA: not set",
        "EVALSTOP_EXTENDER_PORT='70000': expected a whole number from 0 to 65535",
        "EVALSTOP_EXTENDER_LOG_LEVEL='LOUD': expected one of DEBUG",
        "EVALSTOP_EXTENDER_COLOUR: no such setting; there are EVALSTOP_EXTENDER_API_TIMEOUT",
    ):
        assert said in str(refused.value)
    assert main([], given) == 2


def test_every_setting_is_in_the_guide(repository: Path) -> None:
    guide = (repository / "docs" / "operate" / "extender.md").read_text()
    for variable, default, _ in describe():
        assert f"`{variable}`" in guide, variable
        assert not default or f"| {default} |" in guide, (variable, default)


# -- certificates and commands -----------------------------------------------------------------------


def test_the_certificates_serve_for_mutual_tls_and_nothing_else(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = made.make_authority(now)
    pairs = {
        "server": made.issue_server(authority, ["127.0.0.1", "extender.ns.svc"], now),
        "client": made.issue_client(authority, "scheduler", now),
    }
    (tmp_path / "ca").write_text(authority.certificate)
    for name, pair in pairs.items():
        (tmp_path / name).write_text(pair.certificate + pair.key)
    shaken = {
        (serving, showing): _handshake(tmp_path, serving, showing) for serving in pairs for showing in pairs
    }
    assert [who for who, worked in shaken.items() if worked] == [("server", "client")]


def _handshake(folder: Path, serving: str, showing: str) -> bool:
    """Whether server and client accept each other, over buffers in memory."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    for context, own in ((server, serving), (client, showing)):
        context.load_cert_chain(folder / own)
        context.load_verify_locations(folder / "ca")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[int] = set()
    for _ in range(6):
        for index, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(index)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return len(done) == 2


def test_an_authority_that_cannot_sign_is_named() -> None:
    authority, other = made.make_authority(NOW), made.make_authority(NOW)
    with pytest.raises(made.CertificateError, match="key is not the one of its certificate"):
        made.issue_client(made.Pem(authority.certificate, other.key), "x", NOW)
    with pytest.raises(made.CertificateError, match="no PEM certificate"):
        made.issue_client(made.Pem("x", "y"), "x", NOW)
    with pytest.raises(made.CertificateError, match="the authority ends on 2036"):
        made.issue_client(authority, "x", NOW + timedelta(days=9 * 365 + 1))


def test_the_commands_write_what_the_manifests_mount(tmp_path: Path, repository: Path) -> None:
    run = CliRunner()
    printed = run.invoke(app, ["extender", "certificates", "--ca", str(tmp_path / "ca")])
    assert printed.exit_code == 0, printed.output
    again = run.invoke(app, ["extender", "certificates", "--ca", str(tmp_path / "ca"), "--host", "10.0.0.9"])
    secrets = {s["metadata"]["name"]: s["stringData"] for s in yaml.safe_load_all(printed.output)}
    renewed = {s["metadata"]["name"]: s["stringData"] for s in yaml.safe_load_all(again.output)}
    assert all(secrets[name]["ca.crt"] == renewed[name]["ca.crt"] for name in secrets)
    assert all(secrets[name]["tls.crt"] != renewed[name]["tls.crt"] for name in secrets)
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o077 == 0
    config = run.invoke(app, ["extender", "config", "--manifest", "--ignorable"])
    configmap = yaml.safe_load(config.output)
    assert yaml.safe_load(configmap["data"]["config.yaml"])["extenders"][0]["ignorable"] is True
    mounted = set()
    for name in ("extender/extender.yaml", "extender/scheduler.yaml", "rollouts/operator.yaml"):
        for document in yaml.safe_load_all((repository / "deploy" / name).read_text()):
            if document["kind"] == "Deployment":
                for volume in document["spec"]["template"]["spec"]["volumes"]:
                    source = volume.get("secret") or volume.get("configMap") or {}
                    mounted |= {source.get("secretName") or source.get("name")} - {None}
    assert mounted == {*secrets, configmap["metadata"]["name"]}
    wrong = run.invoke(app, ["extender", "config", "--url", "http://x"])
    assert wrong.exit_code == 2


def test_who_asked_is_forgotten_after_a_day() -> None:
    """It may have a renewed certificate since, and ask another replica with it."""
    now = 0.0
    callers = LastCertificate(lambda: now)
    assert callers.ends is None
    callers.note(1e9)
    now = FORGET - 1
    assert callers.ends == 1e9
    now = FORGET
    assert callers.ends is None


# -- following a watch that breaks -------------------------------------------------------------------


class ScriptedApi:
    """LISTs and watch streams from a script; what it is asked is written down."""

    def __init__(self, lists: list[Any], streams: list[list[Any]]) -> None:
        self._lists, self._streams = lists, streams
        self.asked: list[str] = []
        self.over = asyncio.Event()

    async def pages(self, resource: Any, namespace: str | None = None, **_: str) -> Any:
        self.asked.append("list")
        found = self._lists.pop(0)
        if isinstance(found, Exception):
            raise found
        for name, version in found[0]:  # a page each
            yield [node(name, version)], found[1]

    async def watch(self, resource: Any, version: str, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"watch {version}")
        if not self._streams:
            self.over.set()
            await asyncio.Event().wait()
        for step in self._streams.pop(0):
            if isinstance(step, Exception):
                raise step
            kind, name, at = step
            yield {"type": kind, "object": node(name, at)}


def node(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def follow(api: ScriptedApi) -> list[tuple[str, ...]]:
    """What the taker was told until the script was over."""
    told: list[tuple[str, ...]] = []

    def take(resource: Any, obj: Any, deleted: bool) -> None:
        told.append(("gone" if deleted else "put", obj["metadata"]["name"]))

    def replace(resource: Any, objects: Any, version: str) -> None:
        told.append(("all", *(o["metadata"]["name"] for o in objects)))

    async def live() -> None:
        task = asyncio.create_task(ListWatch(api, NODES, take, replace).run())  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await api.over.wait()
        task.cancel()

    asyncio.run(live())
    return told


def broken() -> ApiError:
    return Unavailable(0, "ConnectionBroken", "made to fail")


def test_events_come_in_order_and_a_broken_watch_goes_on_where_it_stopped() -> None:
    api = ScriptedApi(
        [([("a", "3")], "5")],
        [[("MODIFIED", "a", "6"), ("BOOKMARK", "", "9"), broken()], [("DELETED", "a", "11")], [broken()]],
    )
    assert follow(api) == [("all", "a"), ("put", "a"), ("gone", "a")]
    assert api.asked == ["list", "watch 5", "watch 9", "watch 11", "watch 11"]


def test_what_is_too_old_to_go_on_from_is_listed_anew() -> None:
    api = ScriptedApi(
        [broken(), ([("a", "3")], "5"), ([("b", "8")], "9")], [[Gone(410, "Expired", "too old")]]
    )
    assert follow(api) == [("all", "a"), ("all", "b")]
    assert api.asked == ["list", "list", "watch 5", "list", "watch 9"]


def test_a_server_for_which_everything_is_too_old_is_not_asked_without_end() -> None:
    class TooOld(ScriptedApi):
        async def watch(self, resource: Any, version: str, **_: Any) -> AsyncIterator[dict[str, Any]]:
            raise Gone(410, "Expired", "too old")
            yield {}

    api = TooOld([([("a", "3")], "5")] * 100_000, [])

    async def live() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                await ListWatch(api, NODES, lambda *_: None, lambda *_: None).run()  # type: ignore[arg-type]

    asyncio.run(live())
    # At once, and then a tenth of a second later at the soonest, twice that, four times, eight times.
    assert 2 <= len(api.asked) <= 5


def test_an_extender_that_hears_nothing_is_not_ready(tmp_path: Path) -> None:
    """Another replica may hear; this one would keep from nobody what it was not told of."""

    async def problems() -> list[str]:
        certificates = Certificates(tmp_path)
        pair = certificates.server
        settings = Settings(
            certificate=str(pair.certificate), key=str(pair.key), client_ca=str(certificates.ca)
        )
        connection = Connection("http://nowhere", "nowhere")
        extender = Extender(settings, connection)
        assert "nodes: not listed yet" in extender.health.unready()
        for resource in extender.cache.stores:
            extender.cache.replace(resource, (), "1")
        assert extender.health.unready() == ["ledger: about to be used"]
        extender.service.ready = True
        assert extender.health.unready() == []
        extender._watches[0].last_answer = time.monotonic() - (DEAF + 1)
        deaf = extender.health.unready()
        await extender.api.close()
        return deaf

    (problem,) = asyncio.run(problems())
    assert problem.startswith("nodes: nothing heard for 301 s")


# -- requeueing --------------------------------------------------------------------------------------


class PatchedApi:
    """Takes patches down; the first so many fail."""

    def __init__(self, *failures: ApiError) -> None:
        self.failures = list(failures)
        self.patched: list[tuple[str, str, str]] = []

    async def merge_patch(self, resource: Any, name: str, patch: Any, namespace: str) -> None:
        self.patched.append((str(resource), namespace, name))
        if self.failures:
            raise self.failures.pop(0)
        assert list(patch["metadata"]["annotations"]) == [ANNOTATION_RETRY]


@pytest.mark.parametrize(
    ("failures", "tries", "outcome"),
    [
        ([], 1, "touched"),
        ([broken(), broken()], 3, "touched"),
        ([broken()] * 5, 5, "failed"),
    ],
)
def test_a_touch_of_its_own_object_is_tried_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, failures: list[ApiError], tries: int, outcome: str
) -> None:
    monkeypatch.setattr(requeueing, "RETRY", 0.0)
    api, metrics = PatchedApi(*failures), Metrics()
    settings = Settings(namespace="mine")
    requeuer = Requeuer(api, GpuLedger(), RefusedPods(), metrics, lambda: 0.0, settings)  # type: ignore[arg-type]
    asyncio.run(requeuer.requeue(PodRequest("ns/../../nodes/n", 1), PodRequest("ns/b", 1)))
    assert api.patched == [("csistoragecapacities.storage.k8s.io", "mine", "evalstop-wake")] * tries
    times = tries - 1 if outcome == "touched" else tries
    assert f'wakes_total{{outcome="failed"}} {times}.0' in metrics.text().decode() or not times
    assert ('wakes_total{outcome="touched"} 1.0' in metrics.text().decode()) == (outcome == "touched")
