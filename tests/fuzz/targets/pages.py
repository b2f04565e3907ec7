"""What pods answer with: trainers' metrics pages, access pods' progress, and the HTTP around them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from controller import names
from controller.metrics.fetch import Caps, _Answer
from controller.metrics.parse import parse
from controller.metrics.samples import DEFAULT_LIMITS, MetricsError
from controller.operator.state import access_progress
from tests.fuzz.target import Target

PAGE = b"""# HELP rlhf_eval_score Mean score of an eval.
# TYPE rlhf_eval_score gauge
rlhf_run_info{uid="8f1c0a52-1f7e-4a51-9d0a-2f3b6c1d7e90",attempt="2-9f2c41d0"} 1
rlhf_evaluator_info{version="judge-3"} 1
rlhf_eval_score{metric="gold",step="1200",attempt="1-aa00bb11",evaluator="judge-3"} 0.61
rlhf_eval_score{metric="gold",step="1300",attempt="2-9f2c41d0",evaluator="judge-3"} 0.58
rlhf_eval_score{metric="val-core/gsm8k/acc/mean@8",step="1300",attempt="2-9f2c41d0"} NaN
rlhf_eval_score_stderr{metric="gold",step="1300",attempt="2-9f2c41d0"} 1.2e-2
rlhf_eval_samples{metric="gold",step="1300",attempt="2-9f2c41d0"} 1024
rlhf_eval_proxy_reward{metric="gold",step="1300",attempt="2-9f2c41d0"} 3.25
rlhf_paired_prompts{metric="gold",step="1300",attempt="2-9f2c41d0",reference="1200"} 512
rlhf_paired_mean{metric="gold",step="1300",attempt="2-9f2c41d0",reference="1200"} -0.03
rlhf_paired_variance{metric="gold",step="1300",attempt="2-9f2c41d0",reference="1200"} 0.25
rlhf_eval_prompts{metric="gold",step="1300",attempt="2-9f2c41d0",prompt_set="0f1e2d3c4b5a6978"} 512
rlhf_prompt_pair_prompts{metric="gold",step="1300",attempt="2-9f2c41d0",reference="1200",\
prompt_set="0f1e2d3c4b5a6978"} 512
rlhf_prompt_pair_mean{metric="gold",step="1300",attempt="2-9f2c41d0",reference="1200"} -0.03
rlhf_prompt_pair_variance{metric="gold",step="1300",attempt="2-9f2c41d0",reference="1200"} 0.25
rlhf_prompt_pairs_dropped{metric="gold",step="1300",attempt="2-9f2c41d0",reason="NoResults"} 1
rlhf_evals_total{metric="gold",attempt="2-9f2c41d0"} 13
rlhf_proxy_reward{attempt="2-9f2c41d0"} 3.5
rlhf_kl{attempt="2-9f2c41d0"} +Inf
rlhf_loss 0.01 1795413600000
rlhf_step{attempt="2-9f2c41d0"} 1310
rlhf_total_steps 5000
rlhf_checkpoint_step{attempt="2-9f2c41d0"} 1300
rlhf_resumed_step{attempt="2-9f2c41d0"} 1200
rlhf_request_served{attempt="2-9f2c41d0"} 4
python_gc_objects_collected_total{generation="0"} 404.0
"""
PROGRESS = b"""evalstop_access_phase{phase="Copy"} 1
evalstop_access_bytes_done 52
evalstop_access_bytes_total 1024
"""
_CAPS = Caps(timeout=5.0, connect_timeout=2.0, body_bytes=32 << 10)
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: 13\r\n\r\nrlhf_step 120",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6;x=1\r\nrlhf_s\r\n8\r\ntep 120\n\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.0 200 OK\nServer: x\n\nrlhf_step 120\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n\x1f\x8b",
)


def _page(data: bytes) -> None:
    parse(data, "gold", others=("val-core/gsm8k/acc/mean@8", "other"))


def _pages() -> Iterator[bytes]:
    yield PAGE
    yield from (line + b"\n" for line in PAGE.splitlines())


class _Transport(asyncio.Transport):
    """Takes a request, and lets go."""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        pass

    def abort(self) -> None:
        pass


class _Future:
    """Of an event loop, which nothing here waits for."""

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, _: None) -> None:
        self.over = True

    def cancel(self) -> None:
        self.over = True


def _answer(data: bytes) -> None:
    """Whole, and in pieces of a few bytes as a slow peer sends it."""
    for size in (len(data) or 1, 7 if len(data) < 2000 else 999):
        answer = _Answer(b"", _CAPS.body_bytes, _Future())  # type: ignore[arg-type]
        answer.connection_made(_Transport())
        for at in range(0, len(data), size):
            answer.data_received(data[at : at + size])
        answer.connection_lost(None)
        try:
            assert len(answer.body()) <= _CAPS.body_bytes
        finally:
            answer.close()


TARGETS = (
    Target(
        "metrics-page",
        _page,
        _pages,
        own=(MetricsError,),
        most=DEFAULT_LIMITS.body_bytes + 1000,
        cpu=6.0,
        words=(
            b'{metric="gold"',
            b'attempt="',
            b" 1\n",
            b'\\"',
            b"\\n",
            b" # {",
            b"1e5 7",
            names.METRIC_PREFIX.encode(),
        ),
    ),
    Target(
        "access-progress-page",
        access_progress.parse,
        lambda: (PROGRESS,),
        most=access_progress.CAPS.body_bytes + 100,
    ),
    Target(
        "http-answer",
        _answer,
        lambda: ANSWERS,
        own=(MetricsError,),
        words=(b"\r\n", b"0\r\n\r\n", b"HTTP/1.1 "),
    ),
)
