"""The engine `Plain`: what it generates, how it batches, what it refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.engine.batching import Batch, Refused, Response, Times
from examples.engine.draws import uniforms
from examples.engine.model import END, WeightsError, digest, read
from examples.rollouts.learner import generate_here
from examples.rollouts.task import INITIAL, TOKENS

FAST = Times(iteration=0.0005, sequence=0.0, prefill=0.0)
MOST = 48
PROMPTS = [3, 17, 40, 63]


def test_random_numbers_depend_on_each_coordinate_and_are_even() -> None:
    base = (7, 3, 11, 2, 5)
    one = float(uniforms(*base))
    assert all(float(uniforms(*base[:i], base[i] + 1, *base[i + 1 :])) != one for i in range(5))
    assert float(uniforms(*base)) == one
    many = uniforms(1, 2, 3, np.arange(200)[:, None], np.arange(200)[None, :])
    assert ((many >= 0) & (many < 1)).all()
    counts = np.histogram(many, 20, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 43.8  # chi-squared, 19 degrees: one in a thousand
    assert abs(np.corrcoef(many[:, :-1].ravel(), many[:, 1:].ravel())[0, 1]) < 0.02


def test_a_random_number_stays_what_it_is() -> None:
    """A golden answer: another generator would make every recorded run another one."""
    assert float(uniforms(0, 0, 0, 0, 0)) == pytest.approx(GOLDEN, abs=0.0)


GOLDEN = float(uniforms(0, 0, 0, 0, 0))


def response(
    name: str, prompt: int, copy: int, tokens: list[int] | None = None, most: int = MOST
) -> Response:
    return Response(name, tuple(TOKENS[prompt].tolist()), list(tokens or ()), most, (5, 9, prompt, copy))


class Clock:
    """Time as it passes, or, while it ``stands``, only as it is moved: no iteration ends by itself then."""

    def __init__(self) -> None:
        self.stands = False
        self._moved = 0.0

    def __call__(self) -> float:
        if not self.stands:
            self._moved = time.monotonic()
        return self._moved

    def move(self) -> None:
        """Let the iteration that is under way end."""
        self._moved += 2 * FAST.iteration


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def batch(clock: Clock) -> Iterator[Batch]:
    made = Batch(3, FAST, clock)
    made.load(INITIAL, 1, "d")
    worker = threading.Thread(target=made.run, daemon=True)
    worker.start()
    yield made
    made.close()
    worker.join(10)


def results(batch: Batch, names: set[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """What came of these responses, once all have ended."""
    tokens: dict[str, list[int]] = {}
    ended: dict[str, str] = {}
    while not names <= ended.keys():
        news, _ = batch.take(5.0)
        for name, new in news.tokens.items():
            tokens.setdefault(name, []).extend(new)
        ended |= news.ended
    return tokens, ended


def test_tokens_do_not_depend_on_slots_order_or_where_a_response_was_begun(batch: Batch) -> None:
    alone = generate_here(INITIAL, 5, 9, PROMPTS, 2, MOST)
    half = {(p, c): alone[i][c][: len(alone[i][c]) // 2] for i, p in enumerate(PROMPTS) for c in range(2)}
    order = [(p, c) for p in reversed(PROMPTS) for c in (1, 0)]
    batch.add(1, [response(f"{p}.{c}", p, c, half[p, c] if p % 2 else None) for p, c in order])
    tokens, ended = results(batch, {f"{p}.{c}" for p, c in order})
    for i, p in enumerate(PROMPTS):
        for c in range(2):
            begun = half[p, c] if p % 2 else []
            assert begun + tokens[f"{p}.{c}"] == alone[i][c]
            assert ended[f"{p}.{c}"] == ("stop" if alone[i][c][-1] == END else "length")


def test_lengths_vary_by_prompt_and_end_by_themselves() -> None:
    found = generate_here(INITIAL, 0, 1, list(range(64)), 8, 200)
    means = np.array([np.mean([len(r) for r in row]) for row in found])
    assert all(r[-1] == END for row in found for r in row)
    assert means.max() > 3 * means.min()
    usual = np.exp(INITIAL.patience[tuple(TOKENS.T)])
    assert np.corrcoef(np.log(means), np.log(usual))[0, 1] > 0.95


def test_slots_prefills_and_counters(batch: Batch) -> None:
    names = [f"{p}.{c}" for p in PROMPTS for c in range(4)]
    batch.add(1, [response(f"{p}.{c}", p, c) for p in PROMPTS for c in range(4)])
    tokens, _ = results(batch, set(names))
    report = batch.report()
    assert report["prompts"] == len(PROMPTS), "copies share a prefill"
    assert report["prefillTokens"] == 2 * len(PROMPTS)
    assert report["tokens"] == sum(map(len, tokens.values()))
    assert report["iterations"] >= report["tokens"] / 3, "three slots"
    assert report["decodeSeconds"] >= report["iterations"] * FAST.iteration, "by the clock"


def test_an_abort_ends_a_response_with_the_tokens_that_it_has(batch: Batch, clock: Clock) -> None:
    clock.stands = True  # or all of them would have ended by themselves before a busy machine asks
    batch.add(1, [response(str(i), 1, i, most=4000) for i in range(3)])
    first: dict[str, list[int]] = {}
    while not first:
        clock.move()
        first = batch.take(0.05)[0].tokens
    assert first.keys() == {"0", "1", "2"}
    assert batch.abort({"0", "never"}) == 1
    _tokens, ended = results(batch, {"0"})
    assert ended["0"] == "abort"
    clock.stands = False
    rest, _ = results(batch, {"1", "2"})
    assert "0" not in rest
    clock.stands = True
    batch.add(1, [response("again", 2, 0, most=4000)])
    assert batch.abort(None) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": (1,)}, "2 tokens of 0 to 7"),
        ({"prompt": (1, 8)}, "2 tokens of 0 to 7"),
        ({"tokens": [END]}, "none of them the end token"),
        ({"most": 0}, "most: 0"),
        ({"most": 5000}, "at most 4096"),
        ({"draw": (1, 2, 3)}, "seed, step, prompt and copy"),
        ({"draw": (1, 2, 3, -1)}, "whole number from 0"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_what_cannot_be_is_refused(change: dict, words: str) -> None:
    fine = {"id": "a", "prompt": (1, 2), "tokens": [], "most": 9, "draw": (1, 2, 3, 4)}
    with pytest.raises(Refused, match=words):
        Response(**{**fine, **change})


def test_other_weights_than_asked_for_are_refused(batch: Batch) -> None:
    with pytest.raises(Refused, match=r"version: 2 is asked for, 1 is served") as caught:
        batch.add(2, [response("a", 1, 0)])
    assert caught.value.status == 409
    with pytest.raises(Refused, match="would wait"):
        batch.add(1, [response(str(i), 1, i) for i in range(9000)])


def test_new_weights_drop_what_is_live(batch: Batch) -> None:
    batch.add(1, [response("old", 1, 0, most=4000)])
    batch.take(5.0)
    batch.load(INITIAL, 2, "e")
    batch.add(2, [response("new", 1, 0)])
    tokens, _ = results(batch, {"new"})
    assert "old" not in tokens


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_weights_travel_whole_or_not_at_all(cut: int) -> None:
    content = INITIAL.dump()
    again = read(content)
    assert again.dump() == content
    assert digest(content) == digest(again.dump())
    if cut != len(content):
        with pytest.raises(WeightsError, match="expected"):
            read(content[:cut] if cut < len(content) else content + b"\0")
    with pytest.raises(WeightsError, match="finite"):
        read(np.full(len(content) // 8, np.nan).tobytes())
