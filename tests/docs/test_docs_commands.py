"""Every command that a page shows is run by a test: here, or by the one that is named here.

A command that is neither fails, and so does a line of these tables whose command is on no page any more.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer.main
from typer.testing import CliRunner

from controller.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "cli"))

import cli_docs  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "deploy" / "local" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Whole pages whose blocks a test runs or compares as they stand.
BLOCKS = {
    "cli.md": "tests/cli/test_cli_docs.py::test_examples_are_what_the_commands_print",
    "reading-a-decision.md": "tests/cli/test_cli_docs.py::test_examples_are_what_the_commands_print",
    "troubleshooting.md": "tests/cli/test_cli_docs.py::test_examples_are_what_the_commands_print",
}
# ```sh blocks of these are run line by line on a real API server.
ON_A_CLUSTER = ("writing-a-job.md", "security.md", "troubleshooting.md")
CLUSTER = "tests/docs/test_docs_cluster.py::test_the_pages_commands_on_a_real_api_server"
DOCS = "tests/docs/test_docs_cluster.py::"
CHANGE, SEE = (
    DOCS + "test_what_operators_are_told_to_change",
    DOCS + "test_what_operators_are_told_to_look_at",
)
HERE = "tests/docs/test_docs_commands.py::test_rules_of_the_page_on_stop_actions"
INSTALLED = "tests/chart/test_chart_installed.py::"
LIFECYCLE = "tests/local/test_local_lifecycle.py::test_command_line_from_up_to_down"
NOT_HERE = "by hand, where docker is: "  # and where its output is shown

SHOWN = {
    "make demo": "tests/demo/test_demo_story.py::test_the_story_happens",
    "make test": "tests/demo/test_demo_readme.py::test_every_make_target_exists",
    "make generate": "tests/chart/test_chart_schema.py::test_generated_files_are_up_to_date",
    "make check": "tests/demo/test_demo_readme.py::test_every_make_target_exists",
    "make images": "tests/chart/test_images_parts.py::"
    "test_the_build_takes_base_and_flags_from_the_environment",
    "make kind": NOT_HERE + "docs/install.md",
    "make test-kind": NOT_HERE + "docs/install.md",
    "make kind-parity": NOT_HERE + "docs/install.md",
    "make kind-down": NOT_HERE + "docs/install.md",
    # a plane of one's own
    "python -m deploy.local up": "tests/local/test_local_cli.py::test_up",
    "python -m deploy.local status": LIFECYCLE,
    "python -m deploy.local down": LIFECYCLE,
    'eval "$(python -m deploy.local env)"': LIFECYCLE,
    "kubectl get namespaces": LIFECYCLE,
    "kubectl get nodes": "tests/agent/test_agent_crash.py::test_a_killed_agent_comes_back_and_goes_on",
    # install, upgrade, remove
    "helm install evalstop": INSTALLED + "test_installed_and_the_notes_say_what_comes_next",
    "helm test evalstop": INSTALLED + "test_helm_test_looks_at_it_from_inside",
    "helm template evalstop": "tests/chart/test_chart_schema.py::test_wrong_values_are_refused_by_their_path",
    "helm upgrade evalstop": INSTALLED
    + "test_the_documented_upgrade_keeps_what_was_set_and_the_pods_of_running_jobs",
    "helm uninstall evalstop": INSTALLED + "test_uninstalling_leaves_jobs_definitions_pools_and_checkpoints",
    "image=$(kubectl -n kube-system get pods": NOT_HERE + "docs/install.md",
    "kubectl patch gpupool research": CHANGE,
    "kubectl delete rlhfjobs": CHANGE,
    "kubectl delete gpupools": CHANGE,
    "kubectl delete crd": CHANGE,
    "kubectl delete priorityclass": CHANGE,
    "kubectl taint nodes": CHANGE,
    # run it
    "kubectl -n evalstop-system get pods,lease": SEE,
    "kubectl -n evalstop-system logs": SEE,
    "kubectl -n evalstop-system get lease": SEE,
    "kubectl -n evalstop-system exec": "tests/lease/test_lease_failover.py::"
    "test_the_leader_fails_in_the_middle_of_a_stop",
    "kubectl apply -k deploy/extender": "tests/extender/test_extender_process.py::"
    "test_the_manifests_are_accepted_and_grant_no_wildcard",
    "evalstop extender certificates": "tests/extender/test_extender_parts.py",
    "evalstop extender config": "tests/extender/test_extender_parts.py",
    "evalstop dashboard": "tests/cli/test_cli_cluster.py::test_the_dashboard_is_served_until_ctrl_c",
    "python -m controller.web.dashboard": "tests/browser/test_browser_cluster.py",
    "kubectl port-forward": "tests/web/test_web_queue.py::test_by_port_forward",
    "kubectl create token": "tests/browser/test_browser_cluster.py",
    "evalstop queue research": "tests/cli/test_cli_pages.py::test_the_queue_is_printed_as_its_page_shows",
    "evalstop list -n team -w": "tests/cli/test_cli_cluster.py::test_watch_prints_what_changes",
    "evalstop list -A -o json": "tests/docs/test_docs_commands.py::test_what_scripts_read_is_there",
    "evalstop why run -o json": "tests/docs/test_docs_commands.py::test_what_scripts_read_is_there",
    "evalstop resume run --from best --wait": "tests/cli/test_cli_cluster.py::"
    "test_wait_ends_when_the_operator_has_done_it",
    # study
    "evalstop rules generate FILE": "tests/sim_rules/test_sim_rules_evidence.py::test_commands_end_to_end",
    "evalstop rules generate plain.csv": HERE,
    "evalstop rules generate pairs.csv": HERE,
    "evalstop rules evaluate plain.csv": HERE,
    "evalstop rules evaluate pairs.csv": HERE,
    "evalstop rules evaluate HISTORY": "tests/sim_rules/test_sim_rules_evidence.py::test_commands_end_to_end",
    "evalstop rules tune": "tests/sim_rules/test_sim_rules_evidence.py::test_commands_end_to_end",
    "evalstop rules flat": "tests/sim_rules/test_sim_rules_evidence.py::test_flat_rates_as_text_and_as_json",
    "evalstop rules table": "tests/sim_rules/test_sim_rules_evidence.py::"
    "test_the_tables_have_a_row_for_every_cell",
    "kubectl patch rlhfjob run": "tests/api/test_api_docs.py::test_the_patch_is_one",
    "find . -type f": "tests/checkpoints/test_checkpoints_safety.py::test_coreutils_compute_the_same_digest",
    "python -m examples.trainer": "tests/docs/test_docs_commands.py::test_the_run_of_the_trainer_contract",
    "evalstop sim replay LOG": "tests/sim_cli/test_sim_cli.py::test_replay_says_what_would_have_happened",
    "evalstop sim record examples/traces/sixty.jsonl": "tests/sim_cli/test_sim_cli.py::"
    "test_record_replay_and_compare",
    "evalstop parity": "tests/parity/test_parity_cluster.py::test_a_small_trace_on_a_cluster_that_is_named",
    "evalstop what-if decisions.jsonl": "tests/what_if/test_what_if_cli.py::test_two_nodes_more",
    "evalstop what-if examples/histories/demo.jsonl": "tests/what_if/test_what_if_cli.py::"
    "test_the_page_shows_what_the_command_prints",
    "evalstop export decisions.jsonl": "tests/what_if/test_what_if_cli.py::"
    "test_an_export_says_what_it_has_and_reads_as_the_log_does",
    "evalstop export --pool": "tests/what_if/test_what_if_cluster.py",
}
STARTS = (
    "evalstop ",
    "kubectl ",
    "helm ",
    "make ",
    "python ",
    "find ",
    "eval ",
    "image=",
    "docker ",
    "kind ",
)
SHELL = ("", "sh", "bash", "console")


class Shown(NamedTuple):
    page: str
    command: str  # one line, without its comment
    language: str | None  # of its block; None: it is within a sentence

    def __str__(self) -> str:
        return f"{self.page}: {self.command[:60]}"


def in_blocks(page: Path) -> Iterator[Shown]:
    """Commands in fenced and in indented blocks, lines that go on joined."""
    language: str | None = None
    begun = ""
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            language = line.removeprefix("```") if language is None else None
            continue
        if language is None and not line.startswith("    "):
            continue
        if language is not None and language not in SHELL:
            continue
        said = begun + line.strip().removeprefix("$ ")
        if not said.startswith(STARTS) or re.match(
            r"evalstop (replay: |  ?\d{4}-)|helm install took|  ", said
        ):
            continue
        begun = said.removesuffix("\\") if said.endswith("\\") else ""
        if not begun:
            yield Shown(page.name, re.sub(r"\s+#\s.*", "", said), language or "")


def in_sentences(page: Path) -> Iterator[Shown]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for found in re.findall(r"`(evalstop [a-z-]+[^`]*)`", text):
        yield Shown(page.name, " ".join(found.split()), None)


ALL = [shown for page in PAGES for shown in in_blocks(page)]
SAID = [shown for page in PAGES for shown in in_sentences(page)]


def whose(command: str) -> str | None:
    """The longest line of the table that the command begins with."""
    return max((key for key in SHOWN if command.startswith(key)), key=len, default=None)


@pytest.mark.parametrize("shown", ALL, ids=str)
def test_every_command_is_run_by_a_test(shown: Shown) -> None:
    if shown.language == "" and shown.page in BLOCKS and shown.command.startswith("evalstop "):
        return
    if shown.language == "sh" and shown.page in ON_A_CLUSTER:
        return
    assert whose(shown.command), f"{shown}: name the test that runs it in SHOWN, or run it"


def test_the_table_names_tests_that_are_there_and_commands_that_are_shown() -> None:
    used = {whose(shown.command) for shown in ALL}
    assert set(SHOWN) - used == set(), "no page shows these any more"
    for place in {*SHOWN.values(), *BLOCKS.values(), CLUSTER}:
        path, _, name = place.removeprefix(NOT_HERE).partition("::")
        assert (ROOT / path).is_file(), place
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), place


@pytest.mark.parametrize("shown", [s for s in ALL + SAID if s.command.startswith("evalstop ")], ids=str)
def test_every_command_and_flag_is_one_that_evalstop_knows(shown: Shown) -> None:
    text = re.split(r" \| |[;>]| && | \|\| |…$", shown.command.replace(" | --", " --"))[0]
    words = shlex.split(re.sub(r"[\[\]]", " ", text))[1:]
    command: Any = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group) and words and (found := command.get_command(context, words[0])):
        command, words = found, words[1:]
    if isinstance(command, click.Group):
        assert not words or words[0].isupper(), f"evalstop has no {words[0]!r}"
        return
    command.make_parser(click.Context(command)).parse_args(words)


# -- those that are run here --------------------------------------------------------------------------------


def test_rules_of_the_page_on_stop_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but for the number of runs."""
    monkeypatch.chdir(tmp_path)
    commands = [s.command for s in ALL if s.page == "stop-actions.md" and "rules" in s.command]
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command)[1:] + (["--runs", "10"] if "generate" in command else ["--no-plot"])
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        if "evaluate" in command:
            rules = [rule for flag, rule in itertools.pairwise(words) if flag == "--rule"]
            rows = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
            assert [rule for rule in rules if rule not in rows] == []


def test_the_run_of_the_trainer_contract(tmp_path: Path) -> None:
    """What the page's command records is the page's table."""
    (command,) = (s.command for s in ALL if "examples.trainer" in s.command)
    words = [sys.executable, *shlex.split(command)[1:-1], str(tmp_path / "run.jsonl")]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=240)
    recorded = {p["step"]: p for p in map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())}
    rows = {
        cells[0]: [cell.strip("* ") for cell in cells[1:]]
        for line in (ROOT / "docs" / "trainer-contract.md").read_text().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 11
    }
    for name, key in (("proxy", "proxy"), ("gold", "gold")):
        for step, shown in zip(rows["step"], rows[name], strict=True):
            assert recorded[int(step)][key] == pytest.approx(float(shown), abs=0.006), (name, step)


def test_what_scripts_read_is_there() -> None:
    """The paths that the page's jq expressions go by."""
    with cli_docs.stub() as env:
        listed = json.loads(cli_docs.said("evalstop list -A -o json", env))
        stopped = [
            i["metadata"]["name"] for i in listed["items"] if i.get("status", {}).get("summary") == "Stopped"
        ]
        why = json.loads(cli_docs.said("evalstop why over -o json", env))
    assert stopped == ["over"]
    assert why["decision"]["statistic"] == 3.0
