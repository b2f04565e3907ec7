"""Scores of each prompt in a validation of verl's, from what it has before it takes the means.

verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py: `_validate` hands all prompts' texts to
`_maybe_log_val_generations` (1162) and, in the same order, their data source, id and results to
`_val_metrics_update` (1197). The ids are made anew in each validation (1051), so the text is the key. The
mean of ``val-core/<source>/<variable>/mean@<n>`` is over the prompts with n answers
(verl/trainer/ppo/metric_utils.py 1016, 1070-1084); an answer that failed counts as 0 where the variable is
``acc`` (955-971).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Means(NamedTuple):
    """A metric that is a mean over prompts, as verl names it."""

    source: str
    variable: str
    answers: int

    @staticmethod
    def of(metric: str) -> Means | None:
        """Return what a metric is the mean of; None: it is no such mean. A source may have slashes in it."""
        section, _, rest = metric.partition("/")
        parts = rest.rsplit("/", 2)
        if section not in ("val-core", "val-aux") or len(parts) != 3 or not parts[2].startswith("mean@"):
            return None
        answers = parts[2][len("mean@") :]
        return Means(parts[0], parts[1], int(answers)) if answers.isdecimal() else None


def scores_of(
    metric: str,
    texts: Sequence[str],
    sources: Sequence[str],
    ids: Sequence[Any],
    results: Mapping[str, Sequence[Any]],
    expected: Mapping[tuple[str, str], int],
) -> dict[Any, list[float]]:
    """Return the scores of each prompt's answers; empty if the metric is no mean over prompts.

    Args:
        metric: as it is logged.
        texts: of each answer its prompt.
        sources: of each answer its prompt's data source.
        ids: of each answer its prompt's id.
        results: of each answer, by variable; None: the variable is not known of it.
        expected: how many answers each prompt was to have, by source and id.
    """
    means = Means.of(metric)
    if means is None or means.variable not in results or len(texts) != len(ids):
        return {}
    found: dict[Any, list[float]] = {}
    text_of: dict[Any, str] = {}
    for text, source, prompt, value in zip(texts, sources, ids, results[means.variable]):
        if source == means.source and value is not None:
            text_of[prompt] = text
            found.setdefault(prompt, []).append(float(value))
    for (source, prompt), answers in expected.items():
        if source == means.source and means.variable == "acc":
            of = found.setdefault(prompt, [])
            of += [0.0] * (answers - len(of))
    seen: Counter[str] = Counter()
    by_text: dict[Any, list[float]] = {}
    for prompt, scores in found.items():
        if len(scores) == means.answers:
            text = text_of.get(prompt, "")
            seen[text] += 1
            by_text[text, seen[text]] = scores
    return by_text
