"""An engine by itself, or the one behind a socket: does it do what the sidecar needs, and how long does it
take?

It asks through the sidecar's own adapters, so what passes here works there. Measured are the start (until it
answers first), an iteration of b responses, a + c b, at one response, half the slots and all of them, and a
prompt's prefill. Weights are left as they are: without any (the engine `Plain` begins so) it can only be
said that it answers, unless ``--engine-weights`` names a file to load.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.actor.engines import Engine, EngineError, Request
from controller.cli.doctor.findings import Finding, note, ok, wrong
from controller.policy.rollout import ActorLaw, WorkReport, refit_law
from controller.policy.wording import counted

PROMPT = (1, 2)
PATIENCE = 60.0  # s for the engine's first answer, and for each round
TOKENS = 24  # of each response that is measured
LONG = 400  # tokens of a prefix, for the prefill
_SLOTS = 8  # of an engine that does not say


def engine_of(url: str, kind: str) -> Engine:
    """Return the adapter for ``unix:PATH``.

    Raises:
        ValueError: it is no such address.
    """
    scheme, _, path = url.partition(":")
    path = path.removeprefix("//")
    if scheme != "unix" or not path:
        raise ValueError(
            f"{url!r} is not allowed, expected unix:PATH, the socket that the sidecar uses;"
            " an engine on a port has open control routes"
        )
    if kind == "vLLM":
        from controller.actor.vllm import VllmEngine

        return VllmEngine(path)
    from controller.actor.plain import PlainEngine

    return PlainEngine(path)


async def examine(engine: Engine, weights: Path | None) -> AsyncIterator[Finding]:
    """Check and measure an engine."""
    try:
        began = time.monotonic()
        report = await _first(engine)
        if isinstance(report, EngineError):
            silent = f"the engine has not answered for {PATIENCE:.0f} s: {report}"
            yield wrong("start", silent, "start it, and see its log")
            return
        waited = time.monotonic() - began
        yield ok("start", f"it answered after {waited:.1f} s" + ("" if waited > 1 else "; it was up already"))
        slots = report.get("slots")
        if type(slots) is int and slots > 0:
            yield ok("slots", f"{counted(slots, 'response')} at a time")
        else:
            slots = _SLOTS
            yield note(
                "slots", f"it does not say how many responses it takes at a time; {_SLOTS} are measured"
            )
        version = report.get("version")
        if weights is not None:
            content = await asyncio.to_thread(weights.read_bytes)
            version = 1 if version is None else int(version) + 1
            begun = time.monotonic()
            await engine.load(weights, version, hashlib.sha256(content).hexdigest())
            found = await engine.report()
            if found.get("version") != version:
                yield wrong("weights", f"after loading version {version} it serves {found.get('version')!r}")
                return
            yield ok(
                "weights",
                f"{counted(len(content), 'byte')} loaded in {time.monotonic() - begun:.2f} s, version "
                f"{version}",
            )
        if version is None:
            yield note(
                "weights",
                "it has none yet, so nothing can be generated",
                "evalstop doctor --engine URL --engine-weights FILE",
            )
            return
        async for finding in _behaviour(engine, int(version)):
            yield finding
        async for finding in _times(engine, int(version), slots):
            yield finding
    except EngineError as error:
        yield wrong("engine", str(error))
    except TimeoutError:
        yield wrong("engine", f"responses did not end within {PATIENCE:.0f} s")
    finally:
        await engine.close()


async def _first(engine: Engine) -> Mapping[str, Any] | EngineError:
    """Return the engine's first report; the newest reason why there is none after all this time."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return await engine.report()
        except EngineError as error:
            if time.monotonic() >= until:
                return error
            await asyncio.sleep(0.2)


async def _behaviour(engine: Engine, version: int) -> AsyncIterator[Finding]:
    try:
        await engine.generate(version + 1, [_request("other", 0)])
        yield wrong("weights", f"it generates for version {version + 1}, and serves {version}")
        await engine.abort(None)
    except EngineError as error:
        yield ok("weights", f"other ones are refused ({error.status})")
    await engine.abort(None)
    first, _ = await _generate(engine, version, [_request(f"a{i}", i) for i in range(3)])
    again, _ = await _generate(engine, version, [_request(f"b{i}", i) for i in (2, 0, 1)])
    if all(first[f"a{i}"] == again[f"b{i}"] for i in range(3)):
        yield ok("random numbers", "the same response asked for again, in another order, has the same tokens")
    else:
        yield note(
            "random numbers",
            "the same response asked for again has other tokens: runs cannot be repeated exactly",
        )
    whole = first["a0"]
    if len(whole) > 2:
        half = whole[: len(whole) // 2]
        rest, _ = await _generate(engine, version, [_request("c0", 0, tuple(half))])
        if half + rest["c0"] == whole:
            yield ok("moves", "a response that was begun elsewhere goes on with the same tokens")
        else:
            yield note(
                "moves", "a response that was begun elsewhere goes on with other tokens than it had here"
            )
    await engine.generate(version, [_request("gone", 7, most=4000)])
    await engine.abort(["gone"])
    ended = await _ended(engine, {"gone"})
    if ended.get("gone") == "abort":
        yield ok("abort", "an aborted response ends, with the tokens that it has")
    else:
        yield note("abort", f"a response ended with {ended.get('gone')!r} before it could be aborted")


async def _times(engine: Engine, version: int, slots: int) -> AsyncIterator[Finding]:
    """Measure by the clock, whatever the engine says of itself."""
    reports = []
    for count in sorted({1, max(1, slots // 2), slots}):
        tokens, seconds = await _generate(
            engine, version, [_request(f"t{count}.{i}", 100 + i, most=TOKENS) for i in range(count)]
        )
        longest = max(len(one) for one in tokens.values())
        total = sum(len(one) for one in tokens.values())
        reports.append((longest, total, seconds))
    # The least squares of seconds per iteration on mean batch, weighted by iterations.
    batch = [total / longest for longest, total, _ in reports]
    each = [seconds / longest for longest, _, seconds in reports]
    weight = [float(longest) for longest, _, _ in reports]
    a, c = _line(batch, each, weight)
    law, _ = refit_law(
        ActorLaw(iteration=max(a, 1e-6), sequence=c, slots=slots),
        [WorkReport(longest, total, seconds) for longest, total, seconds in reports],
    )
    yield ok(
        "iteration",
        f"a = {1000 * a:.1f} ms, c = {1000 * c:.2f} ms for each live response (batches of "
        + ", ".join(f"{b:.0f}: {1000 * e:.1f} ms" for b, e in zip(batch, each, strict=True))
        + f"); as a first law of the planner: {1000 * law.iteration:.1f} ms and {1000 * law.sequence:.2f} ms",
    )
    # Whether the prefix's tokens are the model's own does not matter to its time.
    short = await _one(engine, version, "p0", ())
    long = await _one(engine, version, "p1", (3,) * LONG)
    prefill = max(0.0, long - short) / LONG
    yield ok("prefill", f"{1000 * prefill:.2f} ms for each token, by a prefix of {LONG} tokens")


async def _one(engine: Engine, version: int, name: str, prefix: tuple[int, ...]) -> float:
    _, seconds = await _generate(engine, version, [_request(name, 9, prefix, most=len(prefix) + 1)])
    return seconds


def _request(name: str, copy: int, tokens: tuple[int, ...] = (), most: int = 200) -> Request:
    return Request(name, PROMPT, tokens, most, (1, 1, 1, copy))


async def _generate(
    engine: Engine, version: int, requests: Sequence[Request]
) -> tuple[dict[str, list[int]], float]:
    """Return the responses' tokens, and s until the last of them has ended."""
    found: dict[str, list[int]] = {request.id: [] for request in requests}
    left, began = set(found), time.monotonic()
    await engine.generate(version, requests)
    async with asyncio.timeout(PATIENCE):
        while left:
            news = await engine.take(0.05)
            for name, tokens in news.tokens.items():
                if name in found:
                    found[name].extend(tokens)
            left -= news.ended.keys()
    return found, time.monotonic() - began


async def _ended(engine: Engine, names: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    async with asyncio.timeout(PATIENCE):
        while not names <= found.keys():
            found |= (await engine.take(0.05)).ended
    return found


def _line(x: Sequence[float], y: Sequence[float], weight: Sequence[float]) -> tuple[float, float]:
    """Return a >= 0 and c >= 0 of y = a + c x, by weighted least squares."""
    total = math.fsum(weight)
    middle = math.fsum(w * v for w, v in zip(weight, x, strict=True)) / total
    mean = math.fsum(w * v for w, v in zip(weight, y, strict=True)) / total
    below = math.fsum(w * (v - middle) ** 2 for w, v in zip(weight, x, strict=True))
    above = math.fsum(w * (v - middle) * (u - mean) for w, v, u in zip(weight, x, y, strict=True))
    c = max(0.0, above / below) if below > 0.0 else 0.0
    return max(0.0, mean - c * middle), c
