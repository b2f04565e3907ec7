"""evalstop-client as a wheel: what is in it, and that it runs on the oldest and newest Python it is for."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.pythons import find

CLIENT = Path(__file__).parents[2] / "clients" / "python"
RUN = """
import json, os, sys, urllib.request
sys.modules["transformers"] = type(sys)("transformers")
sys.modules["transformers"].TrainerCallback = object
import evalstop_client, evalstop_client.hf, evalstop_client.verl, evalstop_client.run
from evalstop_client.run import Run
client = evalstop_client.EvalStopClient(os.environ["FOLDER"], port=0, host="127.0.0.1", life="a1")
run = Run("gold", client)
assert run.resume_path(os.environ["FOLDER"] + "/out") is None
run.begin(0, 10)
wanted = run.step(5, 10, kl=0.5)
assert wanted == (3, False, True, False), wanted
folder = os.environ["FOLDER"] + "/out/checkpoint-5"
os.makedirs(folder)
open(folder + "/w", "w").write("x")
run.saved(5, folder)
run.evaluated(5, {"gold": 0.5, "gold_std": 0.8}, samples=64)
url = "http://127.0.0.1:%d/metrics" % client.serve()
request = urllib.request.Request(url, headers={"User-Agent": "evalstop"})
page = urllib.request.urlopen(request, timeout=30).read().decode()
run.finish()
print(json.dumps([page, evalstop_client.__file__, run.resume_path(os.environ["FOLDER"] + "/out")]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    names = [p for p in CLIENT.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    for path in names:
        if path.suffix in (".py", ".toml", ".md", ".typed") and "egg-info" not in str(path):
            (source / path.relative_to(CLIENT)).parent.mkdir(parents=True, exist_ok=True)
            (source / path.relative_to(CLIENT)).write_bytes(path.read_bytes())
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*build, "-w", str(out), str(source)], check=True, cwd=out)
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_the_client_and_needs_nothing(wheel: Path) -> None:
    assert wheel.name == "evalstop_client-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.startswith("evalstop_client-")}
        (about,) = (archive.read(n).decode() for n in archive.namelist() if n.endswith("/METADATA"))
    sources = {p.relative_to(CLIENT).as_posix() for p in (CLIENT / "evalstop_client").glob("*.py")}
    assert held == {*sources, "evalstop_client/py.typed"}
    assert "Requires-Dist" not in about
    assert "Requires-Python: >=3.9" in about


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_it_runs(version: str, wheel: Path, tmp_path: Path) -> None:
    python = find(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    with zipfile.ZipFile(wheel) as archive:  # what pip does with a wheel of Python files alone
        archive.extractall(tmp_path / "site")
    run = {"uid": "u-1", "attempt": 2, "request": {"id": 3, "checkpoint": True}, "scrapeIntervalSeconds": 0.1}
    (tmp_path / "run.json").write_text(json.dumps(run))
    environ = {"PYTHONPATH": str(tmp_path / "site"), "FOLDER": str(tmp_path)}
    done = subprocess.run(
        [python, "-X", "dev", "-W", "error", "-c", RUN],
        env=environ,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    page, where, resumes = json.loads(done.stdout)
    assert where.startswith(str(tmp_path / "site"))
    assert 'rlhf_eval_score_stderr{metric="gold",step="5",attempt="2-a1"} 0.1\n' in page
    assert resumes == str(tmp_path / "out" / "checkpoint-5")
