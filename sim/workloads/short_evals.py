"""Evals as public runs of language models have them: 6 to 41, on 50 to 1,319 prompts, with sudden collapses.

The generator is `sim.twin`. RLHF jobs decline with the workload's own share; of those that do not, and of the
other kinds, two thirds rise and one third stays flat, as the twin has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim import twin
from sim.workload import Evals
from sim.workloads.curves import training_loss
from sim.workloads.kinds import Kind
from sim.workloads.truth import Truth

STREAM = 5  # of the random numbers for these evals
FLAT = twin.SHARES[twin.FLAT] / (twin.SHARES[twin.FLAT] + twin.SHARES[twin.RISING])


def drawn(kinds: Sequence[Kind], declining: float, stderr: bool, seed: int) -> tuple[list[Evals], Truth]:
    """Return evals for jobs of these kinds, and the truth about them; each job has numbers of its own.

    Args:
        kinds: of the jobs.
        declining: share of the RLHF jobs that do.
        stderr: whether each eval has the standard error that follows from its prompts.
        seed: of all that is drawn.
    """
    evals, hacks, peaks = [], [], []
    for row, kind in enumerate(kinds):
        random = np.random.default_rng([seed, STREAM, row])
        label, flat = random.random(2)
        hacking = kind is Kind.RLHF and label < declining
        what = twin.DECLINING if hacking else twin.FLAT if flat < FLAT else twin.RISING
        run = twin.run(what, random)
        count = len(run.scores)
        at = tuple((number + 1) / count for number in range(count))
        mean = (run.prompts * run.scores + 1.0) / (run.prompts + 2.0)
        errors = np.sqrt(mean * (1.0 - mean) / run.prompts).tolist() if stderr else ()
        losses = [training_loss(share) for share in at]
        evals.append(Evals(at, run.scores.tolist(), losses, stderrs=errors))
        hacks.append(hacking)
        peaks.append(at[run.peak] if hacking else 1.0)
    return evals, Truth(tuple(kinds), tuple(hacks), tuple(peaks))
