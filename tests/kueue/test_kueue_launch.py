"""The launcher shows Kueue its certificates where it wants them, and shows them to nobody else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.agent import enter
from deploy.local.control import REPOSITORY
from deploy.local.kueue import launch


def launched(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    for name in ("root", "certs"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "certs" / "tls.crt").write_text("a certificate")
    argv = [sys.executable, "-S", "-m", "deploy.local.kueue.launch"]
    argv += [str(tmp_path / "root"), str(tmp_path / "certs"), *command]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30)


def test_the_program_sees_its_certificates_and_the_rest_of_the_machine(tmp_path: Path) -> None:
    done = launched(tmp_path, "/bin/cat", f"{launch.PLACE}/tls.crt", "/etc/passwd")
    assert done.stdout == "a certificate" + Path("/etc/passwd").read_text(), done.stderr
    assert not Path(launch.PLACE).exists()
    assert list((tmp_path / "root").iterdir()) == []
    assert launched(tmp_path, "/bin/sh", "-c", f"echo x > {launch.PLACE}/tls.crt").returncode != 0


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    done = launched(tmp_path, "/nowhere/kueue")
    assert (done.returncode, done.stderr) == (1, "/nowhere/kueue: No such file or directory\n")


def test_a_machine_without_mount_namespaces_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enter, "probe", lambda: "none")
    monkeypatch.setattr(sys, "argv", ["launch", "root", "certs", "kueue"])
    with pytest.raises(SystemExit, match="this machine allows no mount namespace"):
        launch.main()
