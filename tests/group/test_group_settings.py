"""Settings of a group's pod."""

from __future__ import annotations

import pytest

from controller.group.__main__ import main
from controller.group.settings import Settings, SettingsError

GOOD = {
    "EVALSTOP_GROUP_FAMILY": "package.module:Class",
    "EVALSTOP_GROUP_OPERATOR": "https://10.0.0.1:8702,https://10.0.0.2:8702",
    "EVALSTOP_GROUP_DEVICE_BYTES": "1000",
    "EVALSTOP_GROUP_HOST_BYTES": "4000",
    "POD_UID": "abc",
}


def test_a_pod_says_who_it_is() -> None:
    assert Settings.from_environ(GOOD).pod == "abc"
    assert Settings.from_environ({**GOOD, "EVALSTOP_GROUP_POD": "other"}).pod == "other"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("EVALSTOP_GROUP_FAMILY", "package.module", "expected package.module:Class or /path/file.py:Class"),
        ("EVALSTOP_GROUP_FAMILY", "", "FAMILY='': expected"),
        ("EVALSTOP_GROUP_OPERATOR", "http://x", "expected https:// addresses"),
        ("EVALSTOP_GROUP_HOST_BYTES", "-1", "HOST_BYTES='-1': expected a whole number from 1"),
        ("EVALSTOP_GROUP_MAX_RESIDENTS", "9", "from 1 to 8 (jobs)"),
        ("EVALSTOP_GROUP_IDLE_SECONDS", "0", "from 0.1 to 604800 (s)"),
        ("EVALSTOP_GROUP_TURN", "9", "no such setting"),
    ],
)
def test_a_wrong_setting_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_environ({**GOOD, variable: value})
    assert message in str(error.value)


def test_what_is_missing_is_named_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {}) == 2
    said = capsys.readouterr().err
    for name in ("FAMILY", "OPERATOR", "POD", "DEVICE_BYTES", "HOST_BYTES"):
        assert f"EVALSTOP_GROUP_{name}: not set" in said


def test_help_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], {}) == 0
    assert "EVALSTOP_GROUP_TURN_SECONDS" in capsys.readouterr().out
