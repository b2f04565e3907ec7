"""Short texts inside objects of the API: run.json, access pods' answers, annotations, names, and tokens."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from controller import bounded, names, untrusted_text
from controller.api import convert
from controller.checkpoints import endpoints
from controller.checkpoints.errors import AccessError
from controller.checkpoints.results import read_result
from controller.kube.errors import from_response
from controller.metrics.address import AddressPolicy
from controller.objects import amount, completion_index, parse_time
from controller.operator.state import run_configmap
from controller.policy.job.record import RunFile
from controller.policy.types import Attempt
from controller.web.reviews import _may_be_for
from controller.workloads import pod_view, start_patch
from controller.workloads.dryrun import server_problem
from controller.workloads.running import ANNOTATION_PLACEMENT, indexes, restart_patch
from tests.fuzz.target import Target

OWNER = "8f1c0a52-1f7e-4a51-9d0a-2f3b6c1d7e90"
DIGEST = "sha256:" + "ab" * 32
_ADDRESSES = AddressPolicy.parse("Public,Private,10.1.0.0/16")


def as_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Of what comes in an object of the API, which is always whole UTF-8."""
    return lambda data: read(data.decode("utf-8", "replace"))


def _run_file(text: str) -> None:
    found = run_configmap.read({"data": {names.RUN_KEY: text}})
    assert found is None or run_configmap.render(found) == text


def _answer(text: str) -> None:
    for operation in ("claim", "secure"):
        job = {"metadata": {"labels": {names.LABEL_OPERATION: operation}}}
        ended = {"name": "access", "state": {"terminated": {"message": text}}}
        view = read_result(job, [{"metadata": {"name": "p"}, "status": {"containerStatuses": [ended]}}], "7")
        assert len(view.message) <= 1024
        assert view.message.isprintable()
        assert view.holder is None or all(part.isprintable() for part in view.holder)


def _placement(text: str) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"uid": "u", "resourceVersion": "1", "annotations": {ANNOTATION_PLACEMENT: text}},
        "spec": {
            "suspend": True,
            "template": {"spec": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "x"}]}},
        },
    }
    start_patch(job, 1, {"pool": "a"})
    restart_patch(job)


def _numbers(text: str) -> None:
    annotations = {names.ANNOTATION_ADMISSION: text, "batch.kubernetes.io/job-completion-index": text}
    limits = {"limits": {names.GPU_RESOURCE: text}}
    pod: dict[str, Any] = {
        "metadata": {"annotations": annotations, "creationTimestamp": text, "deletionTimestamp": text},
        "spec": {"containers": [{"resources": limits}], "initContainers": [{"resources": limits}]},
    }
    view = pod_view(pod)
    assert view.gpus < 1 << 60
    completion_index(pod)
    assert len(indexes(text)) <= 1024
    amount(text)
    parse_time(text)
    bounded.whole(text)


def _refusal(data: bytes) -> None:
    headers = {"Retry-After": data[:100].decode("latin-1")}
    for status in (403, 422, 500):
        str(from_response(status, data, headers))

    class Refused(Exception):
        status, body = 422, data

    async def create(_: object) -> object:
        raise Refused

    asyncio.run(server_problem(create, {}))


def _token(data: bytes) -> None:
    text = data.decode("latin-1")
    _may_be_for(text, "evalstop", 1795413600.0)
    packed = base64.urlsafe_b64encode(data).decode().rstrip("=")
    _may_be_for(f"a.{packed}.b", "evalstop", 1795413600.0)


def _shown(text: str) -> None:
    for most in (1, 60, 1024):
        for shown in (
            untrusted_text.printable(text, most),
            untrusted_text.one_line(text, most),
            bounded.shown(text, most),
        ):
            assert len(shown) <= most
            assert shown.isprintable()


def _state(text: str) -> None:
    """As a status has it, of a rule and of a guardrail."""
    rule = {"name": "kDeclines", "version": 1, "paramsHash": "f", "state": text}
    guard = {"metric": "kl", "step": 1, "attempt": "1", "score": "0.5", "paramsHash": "f", "state": text}
    with suppress(convert.StatusError):
        convert.record({"attempt": 1, "guardrails": [guard]})
    convert.record({"attempt": 1, "rule": rule})


def _address(text: str) -> None:
    said = _ADDRESSES.problem(text)
    assert said is None or len(said) < 1000


def _endpoint(text: str) -> None:
    endpoints.check({"AWS_ENDPOINT_URL": text})
    endpoints.check(
        {"AWS_ENDPOINT_URL": f"https://{text}/", endpoints.ALLOWED_ENV: ",".join(endpoints.KINDS)}
    )


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


RUN = RunFile(2, "/work/run/checkpoint-400", 400, 7, 0, 400, False, 300, OWNER)
OK = {
    "ok": True,
    "step": 400,
    "path": "/work/run/.evalstop/u/2-9f2c41d0-400",
    "digest": DIGEST,
    "sourceDigest": DIGEST,
    "bytes": 2048,
    "files": 3,
    "method": "link",
    "attempt": "2-9f2c41d0",
    "evidence": "SaveRecord",
    "latest": {"step": 500, "path": "/kept/500", "digest": DIGEST},
    "note": "a\nb",
}
FAILED = {
    "ok": False,
    "reason": "LocationTaken",
    "message": "taken",
    "available": [1, 2],
    "holder": {"uid": OWNER, "job": "team/run"},
}
PLACEMENT = {"nodeSelector": {"pool": "a"}, "tolerations": [{"key": names.POOL_TAINT}], "labels": {"a": "b"}}
CLAIMS = {"aud": ["evalstop"], "exp": 1795413600, "sub": "system:serviceaccount:team:viewer"}
STATE = {"base": [1, 0.5, [None, {"double": "nan"}], "x"], "state": [2, [True, -1.5e-9]]}

TARGETS = (
    Target(
        "run-file", as_text(_run_file), lambda: (run_configmap.render(RUN).encode(),), most=(1 << 16) + 100
    ),
    Target(
        "access-answer",
        as_text(_answer),
        lambda: (_dumped(OK), _dumped(FAILED), b"Traceback: x\ny"),
        most=8192,
    ),
    Target("placement-annotation", as_text(_placement), lambda: (_dumped(PLACEMENT),), most=1 << 18),
    Target(
        "numbers-in-objects",
        as_text(_numbers),
        lambda: (b"3", b"0,2-5,7", b"2026-11-23T06:00:00Z", b"2026-11-23T06:00:00.250+01:00", b"8k", b"1024"),
        most=1 << 18,
        words=(b"-", b",", b"k", b":", b"T", b"Z", b"+", b"0-1000000,", b"00"),
    ),
    Target(
        "rule-state",
        as_text(_state),
        lambda: (_dumped(STATE),),
        own=(convert.StatusError,),
        most=(1 << 16) + 100,
        words=(b'"double"', b'"inf"', b'{"double":"nan"}'),
    ),
    Target(
        "attempt",
        as_text(Attempt.parse),
        lambda: (b"3-9f2c41d0", b"3"),
        own=(ValueError,),
        most=31,
    ),
    Target(
        "refusal",
        _refusal,
        lambda: (_dumped({"reason": "Invalid", "message": "strict decoding error: a"}), b"no"),
        most=(1 << 20) + 100,
    ),
    Target("viewers-token", _token, lambda: (_dumped(CLAIMS), b"a.b.c"), most=1 << 16),
    Target(
        "pod-address",
        as_text(_address),
        lambda: (b"10.1.2.3", b"fe80::1%eth0", b"::ffff:169.254.169.254", b"2001:db8::"),
        words=(b".", b":", b"::", b"%", b"255", b"/8"),
    ),
    Target(
        "store-endpoint",
        as_text(_endpoint),
        lambda: (
            b"https://s3.example.com:9000/a?b#c",
            b"http://[::ffff:169.254.169.254]:80",
            b"http://0xa9fea9fe",
        ),
        own=(AccessError,),
        words=(b"://", b"[", b"]", b"@", b"%", b":", b"localhost", b".svc"),
    ),
    Target("text-for-people", as_text(_shown), lambda: ("a\nb é \x1b[2J".encode(),), most=1 << 18),
)
