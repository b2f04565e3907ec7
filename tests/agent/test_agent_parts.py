"""The agent's pure parts: tables and properties."""

import asyncio
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kube.resources import Resource
from deploy.local.agent import atomic, quantity
from deploy.local.agent.claims import Attachments, ClaimError
from deploy.local.agent.config import ConfigProblem, load
from deploy.local.agent.devices import Gpus, OutOfGpus, variables
from deploy.local.agent.env import ConfigError, expand, field_value
from deploy.local.agent.fit import refusal, requests_of
from deploy.local.agent.grace import Grace
from deploy.local.agent.images import UnmappedImage, base_name, environment_for
from deploy.local.agent.logs import LogFile, Options, read
from deploy.local.agent.mounts import Rewriter, uncovered
from deploy.local.agent.process import Mount
from deploy.local.agent.record import INIT, MAIN, SIDECAR, Record
from deploy.local.agent.restarts import Backoff, wants_restart
from deploy.local.agent.sources import Token
from deploy.local.agent.status import phase_of

Object = dict[str, Any]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)$(B)y", "x12y"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(C)", "$(C)"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("100%$", "100%$"),
        ("$$$$", "$$"),
    ],
)
def test_expand(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


@given(st.text(alphabet="$()AB x", max_size=12))
def test_expand_of_escaped_text_is_the_text(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"A": "1", "": "2"}) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", Fraction(1, 2)),
        ("2Gi", 2**31),
        ("1e3", 1000),
        ("1E", 10**18),
        (".5", Fraction(1, 2)),
        ("3", 3),
        ("-1k", -1000),
    ],
)
def test_quantities(text: str, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1.2.3", "1e", "--1"])
def test_bad_quantities_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


# Owners of files; only root may give a file to another.
IDS = [None, os.geteuid(), *([12001] if os.geteuid() == 0 else [])]
FILES = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "c/e", "f.json"]),
    st.builds(
        atomic.File,
        st.binary(max_size=20),
        st.sampled_from([0o644, 0o600]),
        st.sampled_from(IDS),
        st.none(),
    ),
)


@given(st.lists(FILES, min_size=1, max_size=4))
def test_atomic_write_shows_exactly_the_last_files(
    tmp_path_factory: pytest.TempPathFactory, versions: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("atomic")
    for files in versions:
        atomic.write(folder, files)
        assert not atomic.write(folder, files)
        shown = {
            str(Path(base, name).relative_to(folder)): Path(base, name).read_bytes()
            for base, _, names in os.walk(folder, followlinks=True)
            for name in names
            if ".." not in str(Path(base, name).relative_to(folder)).split("/")[0][:2]
        }
        assert shown == {name: file.content for name, file in files.items()}
    assert len(list(folder.glob("..*"))) == 2  # ..data and the one version


@pytest.mark.parametrize("name", ["/a", "../a", "a/../b", "..a", ""])
def test_atomic_write_keeps_to_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="must be relative"):
        atomic.write(tmp_path, {name: atomic.File(b"")})


def test_gpus_belong_to_one_container_at_a_time() -> None:
    gpus = Gpus(3)
    assert gpus.assign("p", "a", 2) == (0, 1)
    assert gpus.assign("p", "a", 2) == (0, 1)
    assert gpus.assign("q", "a", 1) == (2,)
    with pytest.raises(OutOfGpus, match="1 GPUs asked for, 0 of 3 free"):
        gpus.assign("r", "a", 1)
    gpus.release("p")
    assert gpus.assign("r", "a", 1) == (0,)
    assert variables(()) == {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}


def test_access_modes() -> None:
    attachments = Attachments()
    attachments.attach("v", ["ReadWriteOnce"], "n1", "a")
    attachments.attach("v", ["ReadWriteOnce"], "n1", "b")
    with pytest.raises(ClaimError, match=r"Multi-Attach error for volume 'v'.*n1"):
        attachments.attach("v", ["ReadWriteOnce"], "n2", "c")
    for pod in ("a", "b"):
        attachments.release(pod)
    attachments.attach("v", ["ReadWriteOnce"], "n2", "c")
    attachments.attach("w", ["ReadWriteOncePod"], "n1", "a")
    with pytest.raises(ClaimError, match="ReadWriteOncePod"):
        attachments.attach("w", ["ReadWriteOncePod"], "n1", "b")
    attachments.attach("x", ["ReadWriteMany"], "n1", "a")
    attachments.attach("x", ["ReadWriteMany"], "n2", "b")


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("evalstop/operator", "evalstop/operator"),
        ("evalstop/operator:v1", "evalstop/operator"),
        ("host:5000/evalstop/operator:v1@sha256:00", "host:5000/evalstop/operator"),
    ],
)
def test_image_names(image: str, name: str) -> None:
    assert base_name(image) == name


def test_the_table_is_the_whole_world() -> None:
    assert "python" in environment_for("evalstop/operator:any").cmd
    with pytest.raises(UnmappedImage, match=r"image 'busybox' is not in the table of .*images\.py"):
        environment_for("busybox")


def test_downward_fields() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": '2"', "a": "1"}},
        "spec": {},
        "status": {"podIPs": [{"ip": "127.1.2.3"}]},
    }
    assert field_value(pod, "metadata.labels") == 'a="1"\nb="2\\""'
    assert field_value(pod, "metadata.annotations['x/y']") == ""
    assert field_value(pod, "status.podIPs") == "127.1.2.3"
    with pytest.raises(ConfigError, match=r"spec\.replicas"):
        field_value(pod, "spec.replicas")


def test_paths_are_rewritten_at_their_borders_only() -> None:
    rewrite = Rewriter([Mount("/v/1", "/data"), Mount("/v/2", "/data/sub"), Mount("/v/3", "/etc/run")])
    assert rewrite.text("--out=/data/x:/data") == "--out=/v/1/x:/v/1"
    assert rewrite.text("/data/sub/y /database /my/data /data-2") == "/v/2/y /database /my/data /data-2"
    assert rewrite.environment({"RUN": "/etc/run"}) == {"RUN": "/v/3"}


def container(name: str, request: str = "", restart: str | None = None) -> Object:
    spec: Object = {"name": name, "image": "i"}
    if request:
        spec["resources"] = {"requests": {"cpu": request}}
    if restart:
        spec["restartPolicy"] = restart
    return spec


@pytest.mark.parametrize(
    ("inits", "mains", "cpu"),
    [
        ([], ["1", "2"], "3"),
        ([("5", None)], ["1", "2"], "5"),
        ([("1", "Always"), ("5", None)], ["1", "2"], "6"),
        ([("5", None), ("1", "Always")], ["1", "2"], "5"),
        ([("2", "Always")], ["1", "2"], "5"),
    ],
)
def test_requests_count_the_peak(inits: list[tuple[str, str | None]], mains: list[str], cpu: str) -> None:
    spec = {
        "initContainers": [
            container(f"i{n}", request, restart) for n, (request, restart) in enumerate(inits)
        ],
        "containers": [container(f"c{n}", request) for n, request in enumerate(mains)],
    }
    assert requests_of({"spec": spec})["cpu"] == int(cpu)


def test_what_does_not_fit_is_refused_by_name() -> None:
    allocatable = quantity.amounts({"cpu": "4", "memory": "1Gi", "pods": "2", "nvidia.com/gpu": "2"})
    pod = {"spec": {"containers": [container("a", "3")]}}
    assert refusal(pod, "n", {}, allocatable, []) is None
    refused = refusal(pod, "n", {}, allocatable, [pod])
    assert refused is not None
    assert refused.reason == "OutOfcpu"
    assert "requested: 3, used: 3, capacity: 4" in refused.message
    small = {"spec": {"containers": [container("a")]}}
    refused = refusal(small, "n", {}, allocatable, [small, small])
    assert refused is not None
    assert refused.reason == "OutOfpods"
    elsewhere = {"spec": {"containers": [container("a")], "nodeSelector": {"zone": "b"}}}
    refused = refusal(elsewhere, "n", {"zone": "a"}, allocatable, [])
    assert refused is not None
    assert refused.reason == "NodeAffinity"


def record(name: str, kind: str, how: str) -> Record:
    found = Record(name, "i", kind)
    match how:
        case "running":
            found.run(0, "id")
            found.started = True
        case "waiting":
            pass
        case code:
            found.run(0, "id")
            found.end(int(code), 0, "x", "")
    return found


@pytest.mark.parametrize(
    ("policy", "states", "over", "phase"),
    [
        ("Never", {"main": "waiting"}, False, "Pending"),
        ("Never", {"main": "running"}, False, "Running"),
        ("Never", {"main": "0"}, False, "Succeeded"),
        ("Never", {"main": "1"}, False, "Failed"),
        ("OnFailure", {"main": "1"}, False, "Running"),
        ("OnFailure", {"main": "0"}, False, "Succeeded"),
        ("Always", {"main": "0"}, False, "Running"),
        ("Always", {"main": "143"}, True, "Failed"),
        ("Always", {"main": "0"}, True, "Succeeded"),
        ("Never", {"init": "running", "main": "waiting"}, False, "Pending"),
        ("Never", {"init": "1", "main": "waiting"}, False, "Failed"),
        ("Always", {"init": "1", "main": "waiting"}, False, "Pending"),
        ("Never", {"init": "0", "main": "0"}, False, "Succeeded"),
        ("Never", {"sidecar": "running", "main": "waiting"}, False, "Pending"),
        ("Never", {"sidecar": "running", "main": "0"}, False, "Succeeded"),
        ("Never", {"sidecar": "137", "main": "0"}, False, "Succeeded"),
        ("Never", {"main": "waiting"}, True, "Failed"),
    ],
)
def test_phase(policy: str, states: dict[str, str], over: bool, phase: str) -> None:
    kinds = {"init": INIT, "sidecar": SIDECAR, "main": MAIN}
    records = [record(name, kinds[name], how) for name, how in states.items()]
    pod = {"spec": {"restartPolicy": policy}}
    assert phase_of(pod, {name: {"name": name} for name in states}, records, over) == phase


def test_restart_rules_of_a_container_win() -> None:
    pod = {"spec": {"restartPolicy": "Never"}}
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    spec = {"restartPolicy": "Never", "restartPolicyRules": rules}
    assert wants_restart(pod, spec, MAIN, 42)
    assert not wants_restart(pod, spec, MAIN, 1)


def test_backoff_doubles_is_bounded_and_forgives() -> None:
    backoff = Backoff(10)
    assert [backoff.after(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.after(601) == 0
    assert backoff.after(1) == 10


def test_grace_is_only_ever_shortened() -> None:
    async def go() -> float:
        grace = Grace(30)
        grace.shorten(60)
        assert grace.left <= 30
        began = time.monotonic()
        grace.shorten(0.1)
        await grace.expired.wait()
        return time.monotonic() - began

    assert 0.05 < asyncio.run(go()) < 15


def test_a_followed_log_survives_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.local.agent import logs

    monkeypatch.setattr(logs, "_MAX_BYTES", 2000)

    async def go() -> bytes:
        writer = LogFile(tmp_path / "0.log")
        chunks: list[bytes] = []
        reading = asyncio.Event()

        async def follow() -> None:
            async for chunk in read(writer.path, Options(follow=True), writer):
                chunks.append(chunk)
                reading.set()

        reader = asyncio.create_task(follow())
        for number in range(100):
            writer.feed(f"line {number}\nhalf".encode())
            await asyncio.sleep(0)
            writer.feed(b" a line\n")
            await asyncio.sleep(0.001)
            # A thread opens the file for the reader: what rotates away twice before then is nobody's.
            await asyncio.wait_for(reading.wait(), 30)
        writer.feed(b"end")
        writer.close()
        await asyncio.wait_for(reader, 30)
        return b"".join(chunks)

    text = asyncio.run(go()).decode()
    assert text == "".join(f"line {number}\nhalf a line\n" for number in range(100)) + "end"
    assert (tmp_path / "0.log.1").exists()


def test_a_token_is_asked_for_again_at_four_fifths_of_its_life() -> None:
    class TokenServer:
        asked: list[Object] = []  # noqa: RUF012 - one per test

        async def create(self, resource: Resource, body: Object, *, subresource: str) -> Object:
            self.asked.append(body)
            expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1000))
            return {"status": {"token": f"t{len(self.asked)}", "expirationTimestamp": expires}}

    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {}}

    async def go() -> None:
        token = Token(TokenServer(), pod, "", 1000)  # type: ignore[arg-type]
        assert await token.current() == "t1"
        assert await token.current() == "t1"
        assert 790 < token.renew_at - time.time() < 801
        token.renew_at = time.time()
        assert await token.current() == "t2"
        bound = TokenServer.asked[0]["spec"]["boundObjectRef"]
        assert (bound["name"], bound["uid"]) == ("p", "u")
        assert TokenServer.asked[0]["metadata"] == {"namespace": "n", "name": "default"}

    asyncio.run(go())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": []}, "at least one node"),
        ({"mounting": "magic"}, "mounting 'magic': expected one of auto"),
        ({"surprise": 1}, "surprise"),
        ({"volumes": "/v"}, "provisioner and volumes go together"),
        ({"ip": "10.0.0.1"}, r"expected 127\.x\.y\.1"),
        ({"gpus": -1}, "gpus -1"),
        ({"cpu": "lots"}, "'lots' is not a quantity"),
    ],
)
def test_settings_name_what_is_wrong(tmp_path: Path, change: Object, words: str) -> None:
    import json

    node = {"name": "n", "ip": "127.16.1.1", "kubeconfig": "k", "certificate": "c", "key": "k"}
    settings: Object = {"work": "w", "client_ca": "ca", "nodes": [node]}
    for key, value in change.items():
        (node if key in ("ip", "gpus", "cpu") else settings)[key] = value
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings))
    with pytest.raises((ConfigProblem, ValueError), match=words):
        load(path)


def test_a_volume_does_not_hide_the_images_own_folders(tmp_path: Path) -> None:
    repository, other = tmp_path / "repository", tmp_path / "elsewhere"
    (repository / ".venv").mkdir(parents=True)
    other.mkdir()
    folders = [str(repository), str(repository / ".venv"), str(tmp_path / "missing")]
    shown_again = [Mount(str(repository), str(repository))]
    assert uncovered([Mount("/v", str(tmp_path))], folders) == shown_again
    assert uncovered([Mount("/v", str(repository))], folders) == shown_again
    assert uncovered([Mount("/v", str(other)), Mount("/v", str(repository) + "2")], folders) == []
    assert uncovered([Mount("/v", str(repository / ".venv"))], folders) == [
        Mount(str(repository / ".venv"), str(repository / ".venv"))
    ]
    rewrite = Rewriter([Mount("/v", str(tmp_path)), *shown_again])
    assert rewrite.text(f"{repository}/x:{tmp_path}/y") == f"{repository}/x:/v/y"
