"""Parts of sentences that several messages use."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the program of access Jobs needs these words, and would load all types with them
    from controller.policy.types import JobKey

CLOSED = "not ready, cordoned or tainted"  # of nodes that take no pods now
UNLABELLED = ", so nobody reads "  # of pods that lack our label
ELSEWHERE = "a job of another namespace"
# How the keys of taints begin that come and go with a node's state.
STATE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
UID = "uid:"  # begins what stands for a job's name where that may not be told


def some(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` of them, and how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def same_namespace(one: JobKey, other: JobKey) -> bool:
    return one.partition("/")[0] == other.partition("/")[0]


def named(job: JobKey, reader: JobKey) -> str:
    """Return a job, as it may be named to those who may read the job ``reader``: who may read one namespace
    need not know what runs in another."""
    return job if same_namespace(job, reader) else ELSEWHERE


_EVIDENCE = {
    "SaveRecord": "whole by its save record",
    "Manifest": "whole by its manifest",
    "Siblings": "whole as far as its siblings tell, for it has no save record",
}


def whole_by(evidence: str) -> str:
    """Return by what a checkpoint is known to be whole, as a clause; "": nobody said."""
    return _EVIDENCE.get(evidence, f"whole by {evidence}" if evidence else "")


def places(nodes: Sequence[str]) -> str:
    """Return the nodes of a gang's pods, each named once: ``node-1, node-3 (2 pods)``."""
    counts = Counter(nodes)
    return ", ".join(node if n == 1 else f"{node} ({n} pods)" for node, n in counts.items())


# What a cure is filled in with. What would end a quotation, of a shell or of JSON, is left to its owner.
_MEANT = re.compile(r"did you mean '([^'\"\\\x00-\x1f]+)'\?")


# Begins what is said of a checkpoint folder in which nothing lies that any trainer writes.
NO_CHECKPOINT = "no checkpoint of any known layout"
# The same where all that lies there is of others.
NONE_OF_THIS_RUN = "nothing that lies there is of this run"
# The same where EvalStop's own folder in it, with its pins, is gone: somebody else has removed it.
FOLDER_GONE = "was removed or emptied since the checkpoint folder was claimed"
# The same of a trainer that saves after its eval, as far as its page tells.
REPORTED_FIRST = "was reported before its checkpoint was saved"
# The same of a step between others that lie there: a rotation that goes by age removes none of these.
SKIPPED = "older ones lie there: it was not saved, or not removed for its age"
# Of a turn in a worker group that was taken away for its length.
LASTED = "it lasted longer than"
# Of a trainer whose page answers, and that makes no steps.
OUT_OF_DATE = "is out of date"  # of a guardrail's verdict
STANDS_STILL = "has made no step since (rlhf_step)"
# Of a run that completed, before why none of its evals is known.
ENDED_WITHOUT = "it ran to its end, and no eval of it was read"
# Of a folder that holds what a checkpoint does, where none has the name of one.
MISNAMED = "has not the name of one"
# What is not followed, where checkpoints should lie.
LINKS = "links are not followed"
# Of an eval whose page has several series for it.
TWO_VALUES = "two values for step"


# Of evals that come from other processes than the checkpoints.
EVAL_PROCESS = "an evaluation in a process of its own takes on the trainer's identity"


def eval_process() -> str:
    """Return by what an evaluation in a process of its own is known to be the trainer's, a clause."""
    return f"{EVAL_PROCESS}: client.environment() (docs/use/trainers.md)"


# In what is said of a workload that lacks fields which nobody can give it later.
ANEW = "make the Job anew"


def did_you_mean(value: str) -> str:
    """Return the question whether a value was meant, which `meant` finds again."""
    return f"did you mean '{value}'?"


def meant(message: str) -> str:
    """Return the value that a message proposes; "": none, or it is fit for no command."""
    found = _MEANT.search(message)
    return found[1] if found else ""


def nearest(word: str, known: Collection[str]) -> str:
    """Return which of the names may have been meant: the only one, or one that is spelt alike; "": none."""
    import difflib  # of no use to whoever only reads a status

    if len(known) == 1:
        return next(iter(known))
    return next(iter(difflib.get_close_matches(word, known, 1)), "")


# Words within the names of metrics, by which way is better; a name with one of `_TURNED` says nothing.
_LESS = frozenset(
    {"cer", "error", "errors", "hallucination", "hallucinations", "harmfulness", "kl", "loss", "mae", "mse"}
    | {"nll", "perplexity", "ppl", "rmse", "toxic", "toxicity", "violation", "violations", "wer"}
)
_MORE = frozenset(
    {"acc", "accuracy", "bleu", "f1", "pass", "reward", "rewards", "rouge", "score", "win", "wins"}
)
_TURNED = frozenset({"inverse", "minus", "neg", "negated", "negative"})
_WORD = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])")


def other_way(metric: str, higher: bool) -> str:
    """Return what is to be said where a metric's name says the opposite of its direction; "": nothing.

    Args:
        metric: its name, of a spec.
        higher: higher counts as better.
    """
    words = {word.lower() for word in _WORD.findall(metric)}
    less = words & _LESS
    more = words & _MORE - ({"score"} if less else set())  # a score of what is to be less, as of toxicity
    if words & _TURNED or bool(less) is bool(more) or bool(less) is not higher:
        return ""
    counts, other, right = ("higher", "lower", "Minimize") if higher else ("lower", "higher", "Maximize")
    return f"{counts} counts as better of {metric!r}: is {other} better, its direction is {right}"


# -- numbers, everywhere the same --------------------


def counted(count: int, word: str) -> str:
    """Return a number of things: ``1 eval``, ``12 evals``, ``2 switches``."""
    more = "es" if word.endswith(("ch", "ss", "x")) else "s"
    return f"{count} {word}{agreeing(count, '', more)}"


def agreeing(count: int, one: str, more: str) -> str:
    """Return which of two words goes with a number of things: ``agreeing(1, "is", "are")`` -> ``is``."""
    return one if count == 1 else more


MOST_PERCENT = 1000  # what is more tells nobody by how much


def percent(share: float, digits: int = 3) -> str:
    """Return a share as percent with at most so many digits: ``0.3876`` -> ``38.8 %``; never as ``1e+02``.

    Of more than ten times: ``over 1000 %``; of what is no number, since a difference is beyond all numbers,
    too.
    """
    value = 100.0 * share
    if not abs(value) <= MOST_PERCENT:
        return f"over {MOST_PERCENT} %"
    text = f"{value:.{digits}g}"
    return f"{value:.0f} %" if "e" in text else f"{text} %"


MOST_TIMES = 1000.0  # the threshold, or 1: a statistic beyond says no more than that


def statistic(value: float, threshold: float, digits: int = 4) -> str:
    """Return a rule's statistic with so many digits: ``3.104``; of a run that is all but without noise, where
    it is beyond all sense: ``over 4000``, ``below -4000``.

    Args:
        value: of the statistic; finite.
        threshold: of the same verdict; it only sets what is beyond sense.
        digits: significant ones.
    """
    most = MOST_TIMES * max(1.0, abs(threshold))
    if abs(value) > most:
        return f"{'over' if value > 0 else 'below'} {two_digits(math.copysign(most, value))}"
    return f"{value:.{digits}g}"


def silent_since(at: float) -> str:
    """Return that something answers nobody since then (s since the epoch): ``14:03:09 UTC``."""
    return f"it has not answered since {clock_of(at)}"


def clock_of(at: float) -> str:
    """Return the time of day of s since the epoch: ``14:03:09 UTC``."""
    minutes, seconds = divmod(int(at) % 86400, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02} UTC"


def two_digits(value: float) -> str:
    """Return an estimate with two digits: ``1234`` -> ``1200``, ``0.0731`` -> ``0.073``."""
    if abs(value) < 10.0:
        return f"{value:.2g}"
    places = len(f"{abs(value):.0f}") - 2
    return f"{round(value, -places):.0f}"


def about(value: float, unit: str) -> str:
    """Return an estimate with its unit, in the plural but for 1: ``about 38 GPU-hours``; of none: ``no
    GPU-hours``."""
    text = two_digits(value)
    return f"about {text} {unit.removesuffix('s') if text == '1' else unit}" if value else f"no {unit}"


def how_far(step: int, total: int) -> str:
    """Return in words how far a run is, by the total of steps that its trainer told."""
    if step > total > 0:
        return f"step {step}, beyond the {total} that its trainer told: its length is not known"
    return f"step {step} of {total} ({step / total if total else 1.0:.0%})"


def unlabelled(pods: Sequence[str], workload: str, label: str, job: str) -> str:
    """Return in words that pods of a Job lack the label by which EvalStop finds them; a cure reads it."""
    return (
        f"{agreeing(len(pods), 'pod', 'pods')} {some(pods, 3)} of Job {workload} "
        f"{agreeing(len(pods), 'lacks', 'lack')} label {label}={job}"
        f"{UNLABELLED}{agreeing(len(pods), 'it', 'them')}"
    )


def lacks_members(sizes: Iterable[tuple[str, int]], replicas: int) -> str:
    """Return in words which size of a workload, by its field, is less than its gang's; "": none is."""
    found = next(((field, size) for field, size in sizes if size < replicas), None)
    return "" if found is None else f"{found[0]} is {found[1]}, expected {replicas} as in spec.gang.replicas"
