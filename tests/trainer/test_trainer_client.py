"""The client module: what a scrape shows, what run.json does, what a trainer may get wrong."""

from __future__ import annotations

import ast
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller import names
from controller.metrics.parse import parse
from controller.policy.types import Attempt
from evalstop_client import client as evalstop_client
from evalstop_client.client import EvalStopClient, Requests, Resume

UID = "0b5e6f0c-2f4d-4a0e-9d39-4d8f3a1c7e55"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


def client(run_dir: Path | None = None, **changes: Any) -> EvalStopClient:
    return EvalStopClient(run_dir, **{"port": 0, "host": "127.0.0.1", "life": "9f2c41d0", **changes})


def write_run(folder: Path, **fields: object) -> None:
    """As kubelet replaces it: a new file takes the name."""
    draft = folder / ".new"
    draft.write_text(json.dumps({"uid": UID, **fields}))
    draft.rename(folder / "run.json")


def samples(body: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """name -> sorted labels -> value."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            assert key not in found.get(sample.name, {}), f"duplicate series {sample.name}{key}"
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def scores(body: bytes, metric: str = "gold") -> dict[int, float]:
    """step -> score of one metric."""
    found = samples(body).get(names.METRIC_EVAL_SCORE, {})
    return {int(dict(k)["step"]): v for k, v in found.items() if dict(k)["metric"] == metric}


def value(body: bytes, name: str) -> float | None:
    """Value of a sample without labels."""
    return samples(body).get(name, {}).get(())


def test_names_are_those_of_the_operator() -> None:
    pairs = {
        "EVAL_SCORE": names.METRIC_EVAL_SCORE,
        "EVAL_STDERR": names.METRIC_EVAL_STDERR,
        "EVAL_SAMPLES": names.METRIC_EVAL_SAMPLES,
        "EVAL_PROMPTS": names.METRIC_EVAL_PROMPTS,
        "EVAL_PROXY": names.METRIC_EVAL_PROXY,
        "PAIR_PROMPTS": names.METRIC_PROMPT_PAIR_PROMPTS,
        "PAIR_MEAN": names.METRIC_PROMPT_PAIR_MEAN,
        "PAIR_VARIANCE": names.METRIC_PROMPT_PAIR_VARIANCE,
        "PAIRS_DROPPED": names.METRIC_PROMPT_PAIRS_DROPPED,
        "PAIRED_PROMPTS": names.METRIC_PAIRED_PROMPTS,
        "PAIRED_MEAN": names.METRIC_PAIRED_MEAN,
        "PAIRED_VARIANCE": names.METRIC_PAIRED_VARIANCE,
        "EVALS_TOTAL": names.METRIC_EVALS_TOTAL,
        "PHASE_SECONDS": names.METRIC_PHASE_SECONDS,
        "STEP_SECONDS": names.METRIC_STEP_SECONDS,
        "PROXY_REWARD": names.METRIC_PROXY_REWARD,
        "KL": names.METRIC_KL,
        "LOSS": names.METRIC_LOSS,
        "STEP": names.METRIC_STEP,
        "TOTAL_STEPS": names.METRIC_TOTAL_STEPS,
        "CHECKPOINT_STEP": names.METRIC_CHECKPOINT_STEP,
        "RESUMED_STEP": names.METRIC_RESUMED_STEP,
        "REQUEST_SERVED": names.METRIC_REQUEST_SERVED,
        "EVALUATOR_INFO": names.METRIC_EVALUATOR_INFO,
        "RUN_INFO": names.METRIC_RUN_INFO,
        "EVALS_KEPT": names.EVALS_KEPT,
        "DEFAULT_PORT": names.DEFAULT_METRICS_PORT,
        "RUN_DIR_ENV": names.RUN_DIR_ENV,
        "RUN_KEY": names.RUN_KEY,
    }
    assert {name: getattr(evalstop_client, name) for name in pairs} == pairs
    operators = {n for n in dir(names) if n.startswith("METRIC_") and n != "METRIC_PREFIX"}
    assert len(operators) == sum(1 for v in pairs.values() if str(v).startswith(names.METRIC_PREFIX))


BESIDE = ("evalstop_client", *(f"evalstop_client.{name}" for name in ("prompts", "prompt_set", "phases")))


def test_needs_only_the_standard_library() -> None:
    """The contract, and the comparison of prompts that it looks for beside it."""
    contract = Path(evalstop_client.__file__)
    for file in (contract, contract.with_name("prompts.py"), contract.with_name("prompt_set.py")):
        roots = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                if node.module in BESIDE:
                    assert {alias.name for alias in node.names} <= {
                        "phases",
                        "prompts",
                        "Phases",
                        "Compared",
                        "Memory",
                        "PerPrompt",
                        "digest_of",
                        "hash_of",
                    }
                    continue
                roots.add((node.module or "").partition(".")[0])
        assert roots <= set(sys.stdlib_module_names)


def test_the_contract_works_in_one_file_alone(tmp_path: Path) -> None:
    """Without what compares prompts an eval is reported all the same, and the log says what is missing."""
    (tmp_path / "contract.py").write_text(Path(evalstop_client.__file__).read_text())
    program = (
        "import logging, sys; logging.basicConfig(); sys.modules['evalstop_client'] = None; import contract;"
        "c = contract.EvalStopClient(); c.report_eval('gold', 1, 0.5, per_prompt={'a': 0.5});"
        "print(c.exposition().decode())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert 'rlhf_eval_score{metric="gold",step="1"' in done.stdout, done.stderr
    assert "is not compared prompt by prompt" in done.stderr


def test_a_scrape_shows_everything_that_was_said() -> None:
    c = client(evaluator="judge-2", life="7")
    c.report_eval("gold", 10, 1.5, stderr=0.25, samples=512)
    c.report_eval("safety", 10, -0.5)
    c.set_progress(12, 400, proxy=2.25, kl=3.5, loss=0.75)
    c.checkpoint_saved(10)
    c.served(4)
    eval_labels = (("attempt", "0-7"), ("metric", "gold"), ("step", "10"))
    safety = (("attempt", "0-7"), ("metric", "safety"), ("step", "10"))
    by = ("evaluator", "judge-2")
    assert samples(c.exposition()) == {
        "rlhf_eval_score": {tuple(sorted((*eval_labels, by))): 1.5, tuple(sorted((*safety, by))): -0.5},
        "rlhf_eval_score_stderr": {eval_labels: 0.25},
        "rlhf_eval_samples": {eval_labels: 512.0},
        "rlhf_evals_total": {
            (("attempt", "0-7"), ("metric", "gold")): 1.0,
            (("attempt", "0-7"), ("metric", "safety")): 1.0,
        },
        "rlhf_step": {(): 12.0},
        "rlhf_total_steps": {(): 400.0},
        "rlhf_proxy_reward": {(): 2.25},
        "rlhf_kl": {(): 3.5},
        "rlhf_loss": {(): 0.75},
        "rlhf_checkpoint_step": {(): 10.0},
        "rlhf_request_served": {(): 4.0},
        "rlhf_evaluator_info": {(("version", "judge-2"),): 1.0},
    }


def test_an_evaluator_that_is_not_whole_yet_is_named_at_the_first_eval() -> None:
    """Until then the page names none, and the evals of the process before stay comparable."""
    c = client(evaluator="judge-1")
    c.set_evaluator("judge-1;k=8", whole=False)
    assert parse(c.exposition(), "gold").evaluator is None
    c.report_eval("gold", 10, 0.5)
    assert parse(c.exposition(), "gold").evaluator == "judge-1;k=8", "nothing more was known of it"
    c.set_evaluator("judge-1;k=8;prompts=a")
    assert parse(c.exposition(), "gold").evaluator == "judge-1;k=8;prompts=a"


def test_an_eval_keeps_the_evaluator_that_scored_it() -> None:
    """Those of before a change are told from those after it, on whichever page they are first read."""
    c = client(evaluator="judge-1")
    c.report_eval("gold", 10, 5.0)
    c.set_evaluator("judge-2")
    c.report_eval("gold", 20, 0.5)
    by = {dict(key)["step"]: dict(key)["evaluator"] for key in samples(c.exposition())["rlhf_eval_score"]}
    assert by == {"10": "judge-1", "20": "judge-2"}
    view = parse(c.exposition(), "gold")
    assert [(p.step, p.score) for p in view.points] == [(20, 0.5)]
    assert view.evaluator == "judge-2"


def test_what_was_not_said_is_not_shown() -> None:
    shown = set(samples(client().exposition()))
    assert shown == {"rlhf_request_served", "rlhf_evaluator_info"}


def test_the_operator_reads_what_the_client_writes(run_dir: Path) -> None:
    write_run(run_dir, attempt=3, resume={"path": "/c/step-400", "step": 400}, request={"id": 1})
    c = client(run_dir)
    c.resume_path("/c")
    c.report_eval("gold", 410, 1.5, stderr=0.25, samples=512)
    c.report_eval("gold", 420, math.nan)
    c.set_progress(421, 800, proxy=2.0, kl=3.0)
    c.checkpoint_saved(420)
    c.served(1)
    view = parse(c.exposition(), "gold")
    assert [(p.step, p.score, p.stderr, p.samples) for p in view.points if p.step == 410] == [
        (410, 1.5, 0.25, 512)
    ]
    assert {p.attempt for p in view.points} == {Attempt(3, "9f2c41d0")}
    assert view.metrics_seen == ("gold",)
    assert (view.evals_total, view.step, view.total_steps) == (2, 421, 800)
    assert (view.proxy, view.kl, view.checkpoint_step) == (2.0, 3.0, 420)
    assert (view.resumed_step, view.request_served, view.evaluator) == (400, 1, "1")


# row 4
def test_the_page_says_whose_it_is(run_dir: Path) -> None:
    """Nothing on the page told this trainer from another one that answered at its address."""
    write_run(run_dir, attempt=3)
    whose = {(("attempt", "3-9f2c41d0"), ("uid", UID)): 1.0}
    assert samples(client(run_dir).exposition())["rlhf_run_info"] == whose


# row 1
def test_every_process_has_a_life_of_its_own_also_after_a_fork() -> None:
    """A start in whole seconds is shared by a process and the one that replaces it within that second."""

    def life_of_a_child() -> str:
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, c.attempt.encode())
            os._exit(0)
        os.wait()
        os.close(write)
        with os.fdopen(read) as said:
            return said.read()

    c = EvalStopClient(port=0, host="127.0.0.1")
    lives = {c.attempt, EvalStopClient(port=0).attempt, life_of_a_child(), life_of_a_child()}
    assert len(lives) == 3
    assert all(Attempt.parse(life).life for life in lives)
    code = "from evalstop_client import EvalStopClient as C; print(C().attempt)"
    root = Path(evalstop_client.__file__).parents[1]
    lives |= {subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) for _ in range(2)}
    assert len(lives) == 5


@pytest.mark.parametrize("life", ["", "A", "1-2", "x" * 17, "é"])
def test_a_life_is_a_short_plain_word(life: str) -> None:
    with pytest.raises(ValueError, match="life: expected 1 to 16 of 0-9a-z"):
        client(life=life)


# row 7
def test_an_eval_of_no_sample_is_no_eval(caplog: pytest.LogCaptureFixture) -> None:
    """The scorer was down, and its 0.0 stopped the run."""
    c = client()
    assert not c.report_eval("gold", 10, 0.0, samples=0)
    assert c.report_eval("gold", 10, 0.5, samples=16)
    assert scores(c.exposition()) == {10: 0.5}
    assert "eval of gold at step 10 ignored: it is the mean of 0 samples" in caplog.text


def test_the_last_32_evals_of_each_metric_stay_and_the_total_tells_of_the_others() -> None:
    c = client()
    for step in range(40):
        c.report_eval("gold", step, float(step))
    c.report_eval("safety", 3, 0.0)
    body = c.exposition()
    assert scores(body) == {step: float(step) for step in range(8, 40)}
    assert scores(body, "safety") == {3: 0.0}
    totals = {dict(k)["metric"]: v for k, v in samples(body)["rlhf_evals_total"].items()}
    assert totals == {"gold": 40.0, "safety": 1.0}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_non_finite_scores_are_shown_as_they_are(score: float) -> None:
    c = client()
    c.report_eval("gold", 1, score)
    assert str(scores(c.exposition())[1]) == str(score)


def test_a_step_reported_again_or_backwards_is_ignored_and_said(caplog: pytest.LogCaptureFixture) -> None:
    c = client()
    assert c.report_eval("gold", 20, 1.0)
    assert not c.report_eval("gold", 20, 5.0)
    assert not c.report_eval("gold", 10, 5.0)
    assert scores(c.exposition()) == {20: 1.0}
    assert "step 10 ignored: step 20 was reported already" in caplog.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.report_eval("", 1, 0.0), "metric: expected a name of 1 to 200 characters .*, got ''"),
        (lambda c: c.report_eval("x" * 201, 1, 0.0), "metric: expected a name of 1 to 200 characters"),
        (lambda c: c.report_eval("a\nb", 1, 0.0), "without control characters, got 'a.*b'"),
        (lambda c: c.report_eval("\ud800", 1, 0.0), "metric: expected a name"),
        (lambda c: c.report_eval("gold", 10**15, 0.0), "step: expected an integer below 10+, got one of 16"),
        (lambda c: c.set_evaluator(""), "version: expected a name of 1 to 128 characters"),
        (lambda c: c.report_eval("gold", -1, 0.0), "step: expected an integer >= 0, got -1"),
        (lambda c: c.report_eval("gold", 1.5, 0.0), "step: expected an integer >= 0, got 1.5"),
        (lambda c: c.report_eval("gold", True, 0.0), "step: expected an integer >= 0, got True"),
        (lambda c: c.report_eval("gold", 1, 0.0, samples=-3), "samples: expected an integer >= 0, got -3"),
        (lambda c: c.set_progress(-1), "step: expected an integer >= 0, got -1"),
        (lambda c: c.set_progress(1, 2.5), "total_steps: expected an integer >= 0, got 2.5"),
        (lambda c: c.checkpoint_saved(None), "step: expected an integer >= 0, got None"),
        (lambda c: c.resumed("4"), "step: expected an integer >= 0, got '4'"),
    ],
)
def test_wrong_fields_are_named(call: Any, message: str) -> None:
    c = client()
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call(c)
    assert scores(c.exposition()) == {}


def test_label_values_survive_the_text_format() -> None:
    c = client()
    name = 'val-core/"gsm8k"\\acc\\n é{x}#@8'
    c.report_eval(name, 1, 0.5)
    assert scores(c.exposition(), name) == {1: 0.5}


# run.json


def test_run_file_gives_attempt_resume_and_requests(run_dir: Path) -> None:
    write_run(
        run_dir,
        attempt=2,
        resume={"path": "/ckpt/step-400", "step": 400},
        request={"id": 3, "evaluate": True, "checkpoint": False, "stop": False},
    )
    c = client(run_dir)
    assert c.attempt == "2-9f2c41d0"
    assert c.attempt_number == 2
    assert c.resume == Resume("/ckpt/step-400", 400)
    assert c.poll() == Requests(3, evaluate=True)
    assert value(c.exposition(), "rlhf_request_served") == 0
    c.served(3)
    assert c.poll() == Requests(3)
    assert value(c.exposition(), "rlhf_request_served") == 3
    c.served(2)
    assert value(c.exposition(), "rlhf_request_served") == 3
    write_run(run_dir, attempt=2, resume=None, request={"id": 4, "stop": True})
    assert c.poll() == Requests(4, stop=True)


def test_a_later_file_does_not_rename_this_attempt(run_dir: Path) -> None:
    """The operator writes the next attempt's file while the last pod may still be there."""
    write_run(run_dir, attempt=1, resume=None, request={"id": 0})
    c = client(run_dir)
    write_run(run_dir, attempt=2, resume={"path": "/x", "step": 5}, request={"id": 1, "stop": True})
    assert c.poll() == Requests(1, stop=True)
    assert (c.attempt_number, c.resume) == (1, None)
    assert value(c.exposition(), "rlhf_resumed_step") is None


def test_a_file_that_comes_late_names_the_attempt_until_something_was_said(run_dir: Path) -> None:
    early, late, saved = client(run_dir), client(run_dir), client(run_dir)
    late.report_eval("gold", 0, 1.0)
    (run_dir / "ckpt" / "step-0").mkdir(parents=True)
    (run_dir / "ckpt" / "step-0" / "weights").write_text("w")
    saved.checkpoint_saved(0, run_dir / "ckpt" / "step-0")
    write_run(run_dir, attempt=5, resume=None, request={"id": 0})
    early.poll(), late.poll(), saved.poll()
    assert [(c.uid, c.attempt_number) for c in (early, late, saved)] == [(UID, 5), ("", 0), ("", 0)]
    assert "rlhf_run_info" in samples(early.exposition())
    assert "rlhf_run_info" not in samples(late.exposition())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ('{"attempt": 2, "req', "Unterminated string"),
        ("[]", "expected a JSON object, got list"),
        (b"\xff\x00", "can't decode byte 0xff"),
        ('{"attempt": -1}', "attempt: expected an integer >= 0, got -1"),
        ('{"attempt": "2"}', "attempt: expected an integer >= 0, got '2'"),
        ("{}", "attempt: expected an integer >= 0, got None"),
        ('{"attempt": 1}', "uid: expected the uid of the RLHFJob, 1 to 64 characters, got None"),
        ('{"attempt": 1, "uid": ""}', "uid: expected the uid of the RLHFJob, 1 to 64 characters, got ''"),
        ('{"attempt": 1, "uid": 7}', "uid: expected the uid of the RLHFJob, 1 to 64 characters, got 7"),
        ('{"attempt": 1, "uid": "' + "x" * 65 + '"}', "1 to 64 characters"),
        ('{"uid": "u", "attempt": 1, "resume": "x"}', "resume: expected null or"),
        ('{"uid": "u", "attempt": 1, "resume": {"path": ""}}', "resume: expected null or"),
        (
            '{"uid": "u", "attempt": 1, "resume": {"path": "/x", "step": 1.5}}',
            "resume.step: expected an integer",
        ),
        (
            '{"uid": "u", "attempt": 1, "reference": "best"}',
            "reference: expected an integer >= 0, got 'best'",
        ),
        ('{"uid": "u", "attempt": 1, "request": []}', "request: expected"),
        ('{"uid": "u", "attempt": 1, "request": {}}', "request.id: expected an integer >= 0, got None"),
        (
            '{"uid": "u", "attempt": 1, "request": {"id": 1, "stop": "no"}}',
            "request.stop: expected true or false, got 'no'",
        ),
        ('{"uid": "u", "attempt": 1}' + " " * 70_000, "larger than 65536 bytes"),
        ("[" * 5000, "recursion"),
        (None, "No such file"),
    ],
)
def test_an_unusable_run_file_changes_nothing_and_is_said_once(
    run_dir: Path, caplog: pytest.LogCaptureFixture, content: str | bytes | None, message: str
) -> None:
    write_run(run_dir, attempt=1, resume=None, request={"id": 2, "checkpoint": True})
    c = client(run_dir)
    if content is None:
        (run_dir / "run.json").unlink()
    else:
        (run_dir / "run.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    for _ in range(3):
        assert c.poll() == Requests(2, checkpoint=True)
    assert len(caplog.records) == 1
    assert message in caplog.text
    write_run(run_dir, attempt=1, resume=None, request={"id": 3})
    assert c.poll() == Requests(3)


def test_without_an_operator_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVALSTOP_RUN_DIR", raising=False)
    c = client()
    assert (c.poll(), c.resume, c.attempt) == (Requests(0), None, "0-9f2c41d0")


def test_environment_gives_run_dir_host_and_silence(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(run_dir, attempt=9, resume=None, request={"id": 0})
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(run_dir))
    monkeypatch.setenv("POD_IP", "127.9.8.7")
    with EvalStopClient(port=0) as c:
        assert c.attempt_number == 9
        assert scrape(c.serve(), host="127.9.8.7")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    silent = EvalStopClient(port=0)
    silent.report_eval("gold", 1, 1.0)
    assert silent.serve() == 0
    assert silent.exposition() == b""
    assert silent.attempt_number == 9


def test_resume_without_a_step_leaves_the_step_to_the_trainer(run_dir: Path) -> None:
    write_run(run_dir, attempt=2, resume={"path": "/x"}, request={"id": 0})
    c = client(run_dir)
    assert value(c.exposition(), "rlhf_resumed_step") is None
    c.resumed(120)
    assert value(c.exposition(), "rlhf_resumed_step") == 120


def test_a_process_for_each_eval_says_no_start(run_dir: Path) -> None:
    """In the trainer's pod an evaluation of each checkpoint: a start at 0 would forget all evals before."""
    write_run(run_dir, attempt=1, request={"id": 0})
    for step in (10, 20):
        c = client(run_dir)
        c.set_progress(step, 300)
        c.report_eval("gold", step, 0.5)
        assert value(c.exposition(), "rlhf_resumed_step") is None


@pytest.mark.parametrize("resume", [None, {"path": "/x/step-110", "step": 110}])
def test_the_page_of_a_run_that_goes_on_names_a_start_once_the_trainer_has_asked(
    run_dir: Path, resume: dict[str, object] | None
) -> None:
    """One that never looks for its checkpoint trains from step 0: its page must not say that it went on."""
    write_run(run_dir, attempt=2, resume=resume, request={"id": 0})
    deaf = client(run_dir)
    deaf.serve()
    deaf.set_progress(30, 600)
    assert value(deaf.exposition(), "rlhf_resumed_step") is None
    asks, says = client(run_dir), client(run_dir)
    asks.serve()
    found = asks.resume_path(run_dir / "nothing-lies-here")
    assert found == (None if resume is None else "/x/step-110")
    assert value(asks.exposition(), "rlhf_resumed_step") == (0 if resume is None else 110)
    says.resumed(50)  # the framework found it by itself
    says.resume_path(run_dir)
    assert value(says.exposition(), "rlhf_resumed_step") == 50
    for c in (deaf, asks):
        c.close()


# the server


def scrape(
    port: int, path: str = "/metrics", host: str = "127.0.0.1", method: str = "GET", timeout: float = 5
) -> bytes:
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        body: bytes = response.read()
        return body


@pytest.fixture
def served() -> Iterator[tuple[EvalStopClient, int]]:
    with client() as c:
        yield c, c.serve()


def test_only_metrics_is_answered(served: tuple[EvalStopClient, int]) -> None:
    c, port = served
    c.report_eval("gold", 1, 0.5)
    assert scores(scrape(port)) == {1: 0.5}
    assert scores(scrape(port, "/metrics?x=1")) == {1: 0.5}
    assert scrape(port, method="HEAD") == b""
    for path, method, status in (("/", "GET", 404), ("/metricsx", "GET", 404), ("/metrics", "POST", 501)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(port, path, method=method)
        assert refused.value.code == status
        refused.value.close()


def test_it_listens_on_its_own_address_only(served: tuple[EvalStopClient, int]) -> None:
    _, port = served
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), timeout=2):
        pass


def test_an_address_that_cannot_be_bound_is_named(served: tuple[EvalStopClient, int]) -> None:
    _, port = served
    with pytest.raises(OSError, match=rf"metrics cannot be served on 127\.0\.0\.1:{port} \(.*in use\)"):
        client(port=port).serve()


def test_resumed_comes_before_serve(served: tuple[EvalStopClient, int]) -> None:
    c, _ = served
    with pytest.raises(RuntimeError, match="after serve"):
        c.resumed(4)


def test_close_frees_the_port() -> None:
    c = client()
    port = c.serve()
    assert c.serve() == port
    c.close()
    c.close()
    again = client(port=port)
    assert again.serve() == port
    again.close()


def test_silent_peers_do_not_hold_up_a_scrape(served: tuple[EvalStopClient, int]) -> None:
    _, port = served
    peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        assert scrape(port)
    finally:
        for peer in peers:
            peer.close()


def test_an_answer_that_nobody_waited_for_was_not_read(
    served: tuple[EvalStopClient, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that was held up answers scrapes that timed out: its last eval is still to be read."""
    trainer, port = served
    trainer.report_eval("gold", 10, 0.5)
    left, answered, made = threading.Event(), threading.Event(), trainer._page

    def held_up() -> tuple[bytes, int]:
        left.wait(10)
        return made()

    monkeypatch.setattr(trainer, "_page", held_up)
    finish = evalstop_client._Handler.finish

    def done(handler: Any) -> None:
        finish(handler)
        answered.set()

    monkeypatch.setattr(evalstop_client._Handler, "finish", done)
    scrape = b"GET /metrics HTTP/1.1\r\nHost: trainer\r\nUser-Agent: evalstop\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(scrape)
    left.set()
    assert answered.wait(10)
    assert not trainer.all_read
    with socket.create_connection(("127.0.0.1", port)) as stays:
        stays.sendall(scrape)
        while stays.recv(65536):
            pass
    assert trainer.all_read


def test_no_scrape_ever_mixes_two_reports(served: tuple[EvalStopClient, int]) -> None:
    """Writers hammer while readers scrape: every sample must be whole, every scrape one moment.

    Scores are a function of (metric, step), so that any mispairing shows; proxy and KL are functions of the
    step of the same call; the newest step shown and the total are of one report, since steps run 1, 2, 3…
    """
    c, port = served
    halt = threading.Event()
    broken: list[str] = []
    reads = {"page": 0, "http": 0}

    def truth(metric: str, step: int) -> float:
        return step * 3.0 + (0.25 if metric == "gold" else 0.5)

    def write(metric: str) -> None:
        step = 0
        while not halt.is_set():
            step += 1
            c.report_eval(metric, step, truth(metric, step), stderr=step / 1000, samples=step * 2)
            c.set_progress(step, 10**9, proxy=step * 2.0, kl=step * 4.0)

    def read(how: str, fetch: Callable[[], dict[str, Any]]) -> None:
        while not halt.is_set():
            found = fetch()
            reads[how] += 1
            shown = found.get("rlhf_eval_score", {})
            newest = {"gold": 0, "safety": 0}
            for key, score in shown.items():
                labels = dict(key)
                step, metric = int(labels["step"]), labels["metric"]
                of = tuple(label for label in key if label[0] != "evaluator")
                newest[metric] = max(newest[metric], step)
                if (
                    score != truth(metric, step)
                    or found["rlhf_eval_score_stderr"][of] != step / 1000
                    or found["rlhf_eval_samples"][of] != step * 2
                ):
                    broken.append(f"{key}: {score}")
            totals = {dict(k)["metric"]: v for k, v in found.get("rlhf_evals_total", {}).items()}
            for metric, step in newest.items():
                if totals.get(metric, 0) != step:
                    broken.append(f"{metric}: newest step {step}, total {totals.get(metric)}")
            now = found.get("rlhf_step", {}).get((), 0)
            if now and (found["rlhf_proxy_reward"][()], found["rlhf_kl"][()]) != (now * 2, now * 4):
                broken.append(f"step {now}: proxy {found['rlhf_proxy_reward'][()]}")

    threads = [
        threading.Thread(target=read, args=("page", lambda: samples(c.exposition()))),
        threading.Thread(target=read, args=("http", lambda: samples(scrape(port, timeout=45)))),
        *(threading.Thread(target=write, args=(metric,)) for metric in ("gold", "safety")),
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places in the middle of nearly every report
    try:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 120
        while (reads["page"] < 300 or reads["http"] < 20) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        halt.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert broken == []
    assert reads["page"] >= 300
    assert reads["http"] >= 20
    assert len(scores(scrape(port))) == names.EVALS_KEPT
