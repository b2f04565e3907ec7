"""Comparison of an earlier stretch of scores with the newest evals, over several lengths of both.

For a reference of w evals and the newest s evals after it,

    z = (mean of the reference - weighted mean of the newest) / (sigma * sqrt(1 / w + sum of weights squared))

with weights 1, 2, ..., s over the newest, rising to the latest: what falls steadily fell most at its end.
If the true score never falls, each z is at most what the noise alone would have made it, whatever the
curve: a later mean that is higher only lowers it. So the flat run is the worst case, and what holds there
holds for every run that does not fall. Formula of the two-window scan: evalstop.md, section 4.4, detector 5,
with flat weights.

Both lengths grow with the run: w is ``share`` of the evals so far (at least ``window``), s between three
eighths of w and w. A dip has to last for a share of the run to count, and since the statistic changes as
slowly as the run's length does, chances of a false stop grow with the logarithm of that length only.

Where all evals are of the same prompts (`shared`) their errors are not independent. A policy that wanders
over the prompts errs alike at evals near one another, and otherwise at those far apart: what it answers by
chance is new each time, and which prompts suit it stays a while. A share of an eval's variance is taken to
stay, for as long as is worst for the comparison (`_persistent`): none in runs of up to `APART` evals, whose
short stretches gain too little by averaging for it to matter (measured: `evalstop rules flat --prompts N
--how wandering`), and nearly `PERSISTS` of it in long ones. Of single evals that are far apart nothing
changes, since two independent errors are the worst there.

Where evals are compared prompt by prompt, how far two of them differ by chance is measured: the one of now
from the best before (variance 2 g), and those next to one another (2 r g at least). Errors that stay for a
while make differences of evals far apart the larger ones. So of a stretch that has the best in it, less the
newest evals, the variance is at most g (2 (1 - r) + r (1 / w + sum of weights squared)): `since`.

The whole run is kept, at a resolution that falls as it grows: means of blocks of 1, 2, 4, ... evals, at
most `BLOCKS`, relative to the first score, as base64. A block is kept as its distance from the one before *as
kept*, in 16 significant bits (`coarse`): what is lost is a 32,768th of that distance at most, of one block,
for the next distance makes up for it. A block above the one before is never kept too high, so that no fall is
seen which is none, however far the first score is from all others. One observation is O(BLOCKS).
"""

from __future__ import annotations

import math
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul, sub
from typing import Any, NamedTuple

from controller.policy.params import param

MAX_WINDOW = 16
BLOCKS = 46  # complete blocks are fewer, as many are merged in pairs: even, and small in a status
LEAST_SHARE, MOST_SHARE = 0.1, 0.5
NEWEST = 0.375  # of the reference's length: the shortest newest stretch; shorter ones add chances only
STEP = 1.6  # from one length of the newest stretch to the next
PERSISTS = 0.5  # of an eval's variance on shared prompts; .41 where difficulty scatters by 2 logits about 1/2
APART = 11  # evals of a run up to which it does not matter
LENGTHS = tuple(2.0**k for k in range(-1, 7))  # blocks, for which it may stay: all that matter

_REST, _BITS = struct.Struct("<f"), struct.Struct("<I")
KEPT_BITS = 0xFFFF_FF00  # of an IEEE 754 single-precision number: sign, exponent, 16 significant bits

# (evals seen, first score, packed complete blocks and sum of the evals in the incomplete one)
WindowState = tuple[Any, ...]


class Layout(NamedTuple):
    """Storage of ``seen`` evals: ``blocks`` complete ones of ``size`` evals, then ``rest`` evals."""

    size: int
    blocks: int
    rest: int


class Pair(NamedTuple):
    """One comparison: references of ``reference`` blocks against the ``newest`` blocks and the rest.

    Attributes:
        weights: of those blocks' means, oldest first, that of the rest last if there is one.
        spread: standard deviation of reference minus newest, in standard deviations of one eval.
        shared: the same where all evals are of the same prompts, at most.
    """

    reference: int
    newest: int
    weights: tuple[float, ...]
    spread: float
    shared: float


def share_param() -> Any:
    """Return the parameter that says how the windows grow."""
    return param(
        0.25,
        unit="share of the evals so far",
        doc="length of the stretch that is compared with, as the run grows",
        ge=LEAST_SHARE,
        le=MOST_SHARE,
    )


@lru_cache(maxsize=8192)
def layout(seen: int) -> Layout:
    size = 1
    while seen // size >= BLOCKS:
        size *= 2
    return Layout(size, *divmod(seen, size))


@lru_cache(maxsize=8192)
def pairs(seen: int, window: int, share: float) -> tuple[Pair, ...]:
    """Return the comparisons at the ``seen``-th eval, shortest newest stretch first; empty: too few evals."""
    size, blocks, rest = layout(seen)
    reference = max(1, round(max(window, share * seen) / size))
    found: dict[int, Pair] = {}
    for length in _lengths(reference * size):
        newest = max(0 if rest else 1, round((length - rest) / size))
        if newest not in found and reference + newest <= blocks:
            found[newest] = _pair(reference, newest, size, blocks, rest)
    return tuple(found.values())


def _lengths(longest: int) -> Iterator[int]:
    length = math.ceil(NEWEST * longest)
    while length <= longest:
        yield length
        length = math.ceil(STEP * length)


def _pair(reference: int, newest: int, size: int, blocks: int, rest: int) -> Pair:
    sizes = [size] * newest + ([rest] if rest else [])
    ends = list(accumulate(sizes))
    total = ends[-1] * (ends[-1] + 1)
    weights = tuple(((e * (e + 1)) - (e - n) * (e - n + 1)) / total for e, n in zip(ends, sizes, strict=True))
    variance = 1.0 / (reference * size) + sum(w * w / n for w, n in zip(weights, sizes, strict=True))
    stays = _persistent(reference, weights, blocks - reference - newest)
    share = PERSISTS * max(0.0, 1.0 - APART / (size * blocks + rest))
    shared = max(variance, (1.0 - share) * variance + share * stays) if share else variance
    return Pair(reference, newest, weights, math.sqrt(variance), math.sqrt(shared))


def _persistent(reference: int, weights: Sequence[float], between: int) -> float:
    """Return the variance of reference minus newest, of errors that stay for a while, the worst there is.

    Their correlation falls by e in a number of blocks, of which the worst counts; ``between``: blocks between
    the two stretches, at most: further apart is worse.
    """
    parts = [(at, 1.0 / reference) for at in range(reference)]
    parts += [(reference + between + at, -weight) for at, weight in enumerate(weights)]
    return max(
        sum(a * b * math.exp(-abs(i - j) / length) for i, a in parts for j, b in parts) for length in LENGTHS
    )


def initial() -> WindowState:
    return (0, 0.0, "")


class Run(NamedTuple):
    """All evals as they are kept.

    Attributes:
        seen: evals so far.
        means: of the complete blocks, oldest first.
        rest: sum of the evals in the incomplete one.
    """

    seen: int
    means: Sequence[float]
    rest: float


class Curve(NamedTuple):
    """The comparisons at the newest eval of a run.

    Attributes:
        seen: evals so far.
        references: sum over the blocks of each stretch that may be compared with, oldest first; all are as
            long.
        compared: each comparison, the mean of its newest evals, and how many of the references it has.
    """

    seen: int
    references: Sequence[float]
    compared: Sequence[tuple[Pair, float, int]]


def observe(
    state: WindowState,
    score: float,
    window: int,
    share: float,
    *,
    sparse: bool = False,
    excess: float = 0.0,
    shared: bool = False,
) -> tuple[WindowState, float]:
    """Take in one score; return the next state and the largest z times sigma, -inf while there is none.

    ``sparse``: references half of which lie in the next one, and none between (`stride`). ``excess``: by so
    much one eval of the reference is taken to be too high. ``shared``: all evals are of the same prompts.
    """
    state, run = take(state, score)
    return state, largest(compare(run, window, share), sparse=sparse, excess=excess, shared=shared)


def take(state: WindowState, score: float) -> tuple[WindowState, Run]:
    """Take in one score; return the next state and the whole run."""
    seen, first, packed = state
    if not seen:
        first = score
    kept, rest = _unpack_blocks(packed)
    blocks, means, rest = add(kept, rest, seen, single(score - first))
    seen += 1
    return (seen, first, _pack_blocks(blocks, rest)), Run(seen, means, rest)


def add(blocks: list[float], rest: float, seen: int, score: float) -> tuple[list[float], list[float], float]:
    """Return the blocks after one more score, each less the one before, their means, and the incomplete one's
    sum."""
    size = layout(seen).size
    rest = single(rest + score)
    means = list(accumulate(blocks))
    if (seen + 1) % size:
        return blocks, means, rest
    last = means[-1] if means else 0.0
    blocks.append(coarse(rest / size - last))
    means.append(last + blocks[-1])
    if len(blocks) == BLOCKS:
        blocks, last = [], 0.0
        for mean in ((a + b) / 2.0 for a, b in zip(means[::2], means[1::2], strict=True)):
            blocks.append(coarse(mean - last))
            last += blocks[-1]
        means = list(accumulate(blocks))
    return blocks, means, 0.0


def compare(run: Run, window: int, share: float) -> Curve:
    """Return what is compared at the newest eval of a run."""
    seen, means, rest = run
    found = pairs(seen, window, share)
    if not found:
        return Curve(seen, (), ())
    length, width = layout(seen).rest, found[0].reference
    newest = [*means, rest / length] if length else means
    sums = [0.0, *accumulate(means)]
    # The newest values are as many as there are weights.
    compared = [
        (
            pair,
            sum(map(mul, pair.weights, newest[-len(pair.weights) :])),
            len(means) - pair.newest - width + 1,
        )
        for pair in found
    ]
    return Curve(seen, list(map(sub, sums[width:], sums)), compared)


def largest(
    curve: Curve,
    *,
    sparse: bool = False,
    excess: float = 0.0,
    shared: bool = False,
    least: float = -math.inf,
) -> float:
    """Return the largest z times sigma, -inf while there is none (`observe`).

    ``least``: of references alone whose mean lies above that of the newest evals by more than this.
    """
    found, most = -math.inf, excess / layout(curve.seen).size
    for pair, now, count in curve.compared:
        width = pair.reference
        highest = max(curve.references[: count : stride(width, sparse)]) - most
        fall = highest / width - now
        if fall > least:
            found = max(found, fall / (pair.shared if shared else pair.spread))
    return found


def since(curve: Curve, at: int, near: float, *, least: float = -math.inf) -> float:
    """Return the largest z times the root of g, of references that have the ``at``-th eval in them; -inf:
    none has, or it is too new.

    ``near``: r, the share of g by which evals next to one another differ at least, 0 to 1. ``least``: as
    `largest` has it.
    """
    block, found = (at - 1) // layout(curve.seen).size, -math.inf
    for pair, now, count in curve.compared:
        width = pair.reference
        references = curve.references[max(0, block + 1 - width) : min(count, block + 1)]
        if references and (fall := max(references) / width - now) > least:
            found = max(found, fall / measured(pair, near))
    return found


def measured(pair: Pair, near: Any) -> Any:
    """Return the standard deviation of reference minus newest at most, in roots of g; ``near``: r."""
    return (2.0 * (1.0 - near) + near * pair.spread**2) ** 0.5


def stride(reference: int, sparse: bool) -> int:
    """Blocks between the ends of two references."""
    return max(1, reference // 2) if sparse else 1


@lru_cache(maxsize=8192)
def comparisons(seen: int, window: int, share: float, sparse: bool) -> int:
    """Return how many pairs of a reference and a newest stretch there are at the ``seen``-th eval."""
    blocks = layout(seen).blocks
    return sum(
        (blocks - p.newest - p.reference) // stride(p.reference, sparse) + 1
        for p in pairs(seen, window, share)
    )


def first_at(window: int, share: float) -> int:
    """Evals needed before anything can be compared."""
    seen = 1
    while not pairs(seen, window, share):
        seen += 1
    return seen


def single(value: float) -> float:
    """Return the value as it comes back from its packed form: IEEE 754 single precision, the largest one at
    most."""
    try:
        return float(_REST.unpack(_REST.pack(value))[0])
    except OverflowError:
        return math.copysign(3.4028234663852886e38, value)


def coarse(value: float) -> float:
    """Return the value to 16 significant bits, as three bytes hold it: no further from 0 than `single`'s."""
    (bits,) = _BITS.unpack(_REST.pack(single(value)))
    return float(_REST.unpack(_BITS.pack(bits & KEPT_BITS))[0])


def _pack_blocks(blocks: Sequence[float], rest: float) -> str:
    """Return values of `coarse`, three bytes each, and the rest in four, where it is not 0."""
    whole = struct.pack(f"<{len(blocks)}f", *blocks)
    kept = bytearray(3 * len(blocks))
    for byte in range(3):  # the lowest one is 0
        kept[byte::3] = whole[byte + 1 :: 4]
    return b2a_base64(kept + (_REST.pack(rest) if rest else b""), newline=False).decode("ascii")


def _unpack_blocks(packed: str) -> tuple[list[float], float]:
    kept, rest = a2b_base64(packed), 0.0
    if len(kept) % 3:
        kept, (rest,) = kept[: -_REST.size], _REST.unpack(kept[-_REST.size :])
    whole = bytearray(4 * (len(kept) // 3))
    for byte in range(3):
        whole[byte + 1 :: 4] = kept[byte::3]
    return list(struct.unpack(f"<{len(whole) // 4}f", whole)), rest


def pack(values: Sequence[float]) -> str:
    return b2a_base64(struct.pack(f"<{len(values)}f", *values), newline=False).decode("ascii")


def unpack(packed: str) -> list[float]:
    data = a2b_base64(packed)
    return list(struct.unpack(f"<{len(data) // 4}f", data))
