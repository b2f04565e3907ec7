"""Work folders that cannot be used say why and what to do."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deploy.local import kubeconfig
from deploy.local.acquire import Found
from deploy.local.components import Options, scheduler_config
from deploy.local.errors import PlaneError
from deploy.local.pki import Pair
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER, ETCD_NAME, KUBERNETES
from deploy.local.workfolder import WorkFolder

API_ONLY = Options(controllers=False, scheduler=False)


def old_version(work: Path) -> None:
    record = {
        "layout": 1,
        "kubernetes": "1.20.0",
        "url": "https://127.0.0.1:1",
        "options": {},
        "binaries": {},
    }
    (work / "plane.json").write_text(json.dumps(record))


def broken_record(work: Path) -> None:
    (work / "plane.json").write_text('{"url": 5')


def incomplete_record(work: Path) -> None:
    (work / "plane.json").write_text("{}")


def broken_certificate(work: Path) -> None:
    (work / "pki").mkdir()
    for name in ("ca.crt", "ca.key"):
        (work / "pki" / name).write_text("nonsense")


def foreign_key(work: Path) -> None:
    folder = WorkFolder(work)
    folder.prepare()
    from deploy.local.pki import Authority

    Authority(work / "pki", "ca")
    other = Authority(work / "other", "ca")
    other.pair.key.replace(work / "pki" / "ca.key")
    other.pair.certificate.unlink()
    (work / "other").rmdir()


def broken_data(work: Path) -> None:
    (work / "data" / "etcd" / "member" / "snap").mkdir(parents=True)
    (work / "data" / "etcd" / "member" / "snap" / "db").write_text("not a database" * 1000)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            old_version,
            f"it was made for kubernetes 1.20.0, this is {KUBERNETES}. To start anew",
        ),
        (broken_record, "plane.json cannot be read (Expecting"),
        (incomplete_record, "plane.json cannot be read (no valid url, options, binaries)"),
        (broken_certificate, "its certificates cannot be used (Unable to load PEM file"),
        (foreign_key, "ca.key is not the key of"),
        (broken_data, "etcd exited ("),
    ],
)
def test_damaged_folder_is_refused_with_the_remedy_and_the_remedy_works(
    tools: dict[str, Found], tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    damage(work)
    plane = Plane(work, API_ONLY)
    with pytest.raises(PlaneError) as caught:
        plane.up()
    assert said in str(caught.value)
    assert f"python -m deploy.local up --fresh --work {work}" in str(caught.value)
    assert not plane.status().up
    if damage is broken_data:  # the costly half once is enough: `fresh` is the same for all
        with plane.up(fresh=True):
            assert plane.status().up


def test_somebody_elses_folder_is_never_touched(tools: dict[str, Found], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "results.csv").write_text("more of it")
    for fresh in (False, True):
        with pytest.raises(PlaneError, match=r"holds other things \(thesis.tex\): choose an empty"):
            Plane(tmp_path, API_ONLY).up(fresh=fresh)
    assert (tmp_path / "data" / "results.csv").read_text() == "more of it"


def test_a_file_as_work_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaneError, match=r"cannot use .*file as work folder: File exists"):
        Plane(tmp_path / "file").up()
    assert not Plane(tmp_path / "file").down()


def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd ended with a Go panic, and the error told of damaged data."""
    usage = shutil.disk_usage(tmp_path)._replace(free=30_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(PlaneError, match=r"has 30 MB free, expected 250 MB or more: make room there"):
        Plane(tmp_path / "work").up()
    assert not Plane(tmp_path / "work").status().up


def test_asking_before_up(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "none")
    for ask in (lambda: plane.url, lambda: plane.kubectl("version"), plane.client):
        with pytest.raises(PlaneError, match="no control plane was started in"):
            ask()
    assert plane.status().processes == ()
    assert not plane.down()
    assert not (tmp_path / "none").exists()


def test_secrets_are_readable_by_their_owner_only(plane: Plane) -> None:
    plane.kubeconfig_for("somebody")
    secrets = [*plane.work.glob("pki/*.key"), *plane.work.glob("kubeconfigs/*"), *plane.work.glob("bin")]
    assert len(secrets) > 10
    for path in (plane.work / "pki", plane.work / "run", plane.work / "data", plane.work / "kubeconfigs"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in plane.work.glob("**/*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for path in plane.work.glob("kubeconfigs/*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_identities_with_similar_names_have_files_of_their_own(plane: Plane) -> None:
    identities = [("a/b", []), ("a-b", []), ("a-b", ["g"]), ("a-b", ["g", "h"])]
    paths = {plane.kubeconfig_for(user, groups) for user, groups in identities}
    assert len(paths) == len(identities)
    for user, groups in identities:
        path = plane.kubeconfig_for(user, groups)
        seen = json.loads(plane.kubectl("auth", "whoami", "-o", "json", kubeconfig=path))["status"][
            "userInfo"
        ]
        assert (seen["username"], seen["groups"]) == (user, [*groups, "system:authenticated"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"flags": {"kubelet": ["--v=4"]}}, "no component is called 'kubelet'; there are etcd"),
        ({"flags": {APISERVER: "--v=4"}}, "'kube-apiserver' needs a list of flags, not the text '--v=4'"),
        ({"node_grace_s": 1}, "node_grace_s: 1 is too short"),
        (
            {"scheduler": False, "scheduler_config": Path("x")},
            "scheduler_config is given, but scheduler is False",
        ),
    ],
)
def test_options_out_of_bounds(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(**given)  # type: ignore[arg-type]


def test_scheduler_configuration_keeps_what_was_given_but_its_connection(tmp_path: Path) -> None:
    given = tmp_path / "scheduler.yaml"
    given.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\n"
        "kind: KubeSchedulerConfiguration\n"
        "clientConnection: {qps: 7, kubeconfig: /elsewhere}\n"
        "leaderElection: {leaderElect: true}\n"
        "profiles: [{schedulerName: rlhf}]\n"
    )
    config = yaml.safe_load(scheduler_config(given, Path("/ours")))
    assert config["clientConnection"] == {"qps": 7, "kubeconfig": "/ours"}
    assert config["leaderElection"] == {"leaderElect": False}
    assert config["profiles"] == [{"schedulerName": "rlhf"}]
    given.write_text("kind: Policy")
    with pytest.raises(ValueError, match="holds Policy, it must hold a KubeSchedulerConfiguration"):
        scheduler_config(given, Path("/ours"))
    given.write_text("- a list")
    with pytest.raises(ValueError, match="holds list, it must hold"):
        scheduler_config(given, Path("/ours"))


def test_programs_of_a_plane_have_names_of_their_own(plane: Plane) -> None:
    for name in (ETCD_NAME, "Nodes", "../x", ""):
        with pytest.raises(PlaneError, match="a process cannot be called"):
            plane.start_process(name, ["true"])


def test_flags_and_gates_reach_the_components(tools: dict[str, Found], tmp_path: Path) -> None:
    options = Options(
        controllers=False,
        scheduler=False,
        flags={APISERVER: ["--runtime-config=scheduling.k8s.io/v1alpha2=true"]},
        feature_gates={"GenericWorkload": True},
    )
    with Plane(tmp_path / "work", options) as plane:
        assert plane.client().succeeds("/apis/scheduling.k8s.io/v1alpha2")


def test_a_self_contained_kubeconfig_gives_back_what_it_was_made_of(tmp_path: Path) -> None:
    """Clients of kind clusters have their certificates from such a file."""
    parts = {name: tmp_path / f"given-{name}" for name in ("ca", "crt", "key")}
    for name, path in parts.items():
        path.write_text(f"the {name}")
    pair = Pair(parts["crt"], parts["key"])
    file = kubeconfig.write(tmp_path / "kubeconfig", "https://127.0.0.1:6443", parts["ca"], "admin", pair)
    url, ca, read = kubeconfig.embedded(file, tmp_path)
    assert url == "https://127.0.0.1:6443"
    assert [one.read_text() for one in (ca, read.certificate, read.key)] == ["the ca", "the crt", "the key"]
    assert read.key.stat().st_mode & 0o077 == 0
