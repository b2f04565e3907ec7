"""Find the cause of a stop or an end that is earlier or later in one run, or in one run only."""

from __future__ import annotations

from controller.parity.run_pair import TIE, Both, Cause, bears, longer, signed
from controller.parity.timeline import Event, How

_ROUNDED = 0.05  # s, less is rounded to nothing


def end(both: Both, event: Event, moved: float) -> Cause | None:
    """Of a stop, or of an end by itself."""
    if (own := _own(both, event)) is not None and bears(own[0], moved):
        return Cause("delay", own[1], moved, own[0])
    key = event.key
    here, there = both.cluster.last_start(key), both.sim.last_start(key)
    start = here.time - there.time
    found = [(start, f"its last start came {signed(start)}")]
    more = both.trained(both.cluster, key, here.nth) - both.trained(both.sim, key, there.nth)
    if abs(more) >= _ROUNDED:
        before = f"it had trained {abs(more):.1f} s {'less' if more < 0 else 'more'} before its last start"
        found += [(-more, before), (start - more, f"{before}, which came {signed(start)}")]
    by, words = min(found, key=lambda one: abs(one[0] - moved))
    return Cause("follows", words, moved, by) if bears(by, moved) else None


def close(both: Both, event: Event) -> Cause | None:
    """Return why a job was stopped in one run and ended by itself in the other; None: not known."""
    facts = both.facts.get(event.key)
    last = None if facts is None else facts.last
    words = None if last is None else last.words
    if facts is None or last is None or words is None:
        return None
    if facts.ended is not None and facts.decided is not None and facts.decided <= words.ended:
        left = words.ended - facts.decided
        return Cause("delay", f"decided to stop {left:.1f} s before the training ended by itself")
    behind = _behind(both, event.key)
    if facts.ended is None and facts.decided is not None:
        left, where = behind - (words.start + facts.decided - words.began), "cluster"
    else:
        left, where = words.to - behind, "simulator"
    if not 0.0 <= left <= TIE:
        return None
    return Cause("tie", f"decided in the {where} {left:.1f} s before the training would have ended")


def _own(both: Both, event: Event) -> tuple[float, str] | None:
    """Return how much longer than calibrated a run took in its last stay besides training (s), and in
    words."""
    facts = both.facts.get(event.key)
    admitted = None if facts is None else facts.last
    if facts is None or admitted is None:
        return None
    words, parts = admitted.words, list[tuple[float, str]]()
    began = admitted.running if words is None else words.began
    if began is not None:
        parts.append((began - admitted.at - both.mean("start_delay"), "its start"))
    if event.kind == How.STOP and words is not None and facts.decided is not None:
        evaluated = next((at for step, at in words.evals if step == facts.decided_step), None)
        if evaluated is not None:
            parts.append((facts.decided - evaluated - both.mean("eval_delay"), "reading the eval"))
    if event.kind == How.END and words is not None and facts.freed is not None:
        parts.append((facts.freed - words.ended - both.mean("end_delay"), "seeing its end"))
    sentences = [
        f"{what} took {longer(seconds, 'calibrated')}" for seconds, what in parts if abs(seconds) >= _ROUNDED
    ]
    return sum(seconds for seconds, _ in parts), ", ".join(sentences)


def _behind(both: Both, key: str) -> float:
    """Return how much of its training a run of the simulator had behind it at its stop, or its end (s)."""
    last = both.sim.jobs[key].stays[-1]
    left = last.freed - both.mean("end_delay") if last.decided is None else last.decided
    number = both.sim.last_start(key).nth
    return both.trained(both.sim, key, number) + left - last.admitted - both.mean("start_delay")
