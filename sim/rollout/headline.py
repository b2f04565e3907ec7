"""`headline`: the paper's scheme against its baseline, with a bad predictor, and ours against both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from controller.policy.wording import counted
from sim.experiments.executor import Executor
from sim.experiments.findings import Findings
from sim.rollout import schemes
from sim.rollout.predictions import right_fifths
from sim.rollout.rows import COLUMNS, losses, row
from sim.rollout.run import Job
from sim.rollout.setting import PPO, RolloutSetting
from sim.rollout.trial import Progress, Sums, against, perform_all

TITLE = "RLHFless's scheme and ours against 3 Even actors, Qwen2.5-3B on 2 x L40S"


def headline(
    setting: RolloutSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    ppo = replace(setting, **PPO)
    long = replace(setting, profile=replace(setting.profile, prompt=1024))
    arms = [
        (setting, schemes.EVEN),
        (setting, schemes.PAPER),
        (ppo, schemes.EVEN),
        (ppo, schemes.PAPER),
        (setting, schemes.PAPER_44),
        (setting, schemes.RANKED),
        (setting, schemes.GLOBAL),
        (setting, schemes.AUTO),
        (ppo, schemes.AUTO),
        (setting, schemes.AUTO_44),
        (setting, schemes.EVEN_SHARED),
        *((long, scheme) for scheme in (schemes.EVEN, schemes.PAPER, schemes.AUTO)),
        # Must lose.
        (replace(setting, slots=setting.prompts * setting.copies), schemes.EVEN),
        (replace(setting, slots=setting.prompts * setting.copies), schemes.PAPER),
        (setting, replace(schemes.RANKED, cut=None)),
        (ppo, schemes.PAPER_WITHOUT_PREFILL_ACTOR),
        (setting, schemes.AUTO_RANDOM),
        (setting, schemes.STATIC_RANDOM),
    ]
    (
        even, paper, ppo_even, ppo_paper, paper_44, local, global_, auto, ppo_auto, auto_44, shared,
        long_even, long_paper, long_auto, roomy_even, roomy_paper, ranked, ppo_plain, random, static,
    ) = perform_all(arms, seeds, executor, progress)  # fmt: skip
    grpo, ppo_gain = against(paper, even), against(ppo_paper, ppo_even)
    bad, cut = against(paper_44, even), against(local, global_)
    ours, ours_paper = against(auto, even), against(auto, paper)
    worst = against(roomy_paper, roomy_even)
    ppo_better = ppo_gain.speed.low > grpo.speed.high or ppo_gain.cost.high < grpo.cost.low
    late = [[_from_fourth(one) for one in arm] for arm in (random, static, even)]
    worst_static, worst_even = _slowest(random, static), _slowest(random, even)
    with_actor = against(ppo_paper, ppo_plain)
    rows = [
        row(
            "the paper's scheme, GRPO, against 3 Even held", paper, even, "1.2-1.45x, -33..-50 %",
            1.2 <= grpo.speed.value <= 1.45 and -0.5 <= grpo.cost.value <= -0.33,
        ),
        row(
            "the same for PPO", ppo_paper, ppo_even, "in neither better than GRPO beyond the interval",
            not ppo_better,
        ),
        row(
            "the paper's, 44 % of prompts predicted in the right fifth", paper_44, even, ">= 1.10x, -25 %",
            bad.speed.value >= 1.10 and bad.cost.value <= -0.25,
        ),
        row(
            "3 actors: ranked, local cut, against unranked, global cut", local, global_,
            "cheaper, interval without 0 (paper: 12.8 %)", cut.cost.high < 0.0,
        ),
        row(
            "ours, Auto, against 3 Even held", auto, even, ">= 1.35x, -37 %",
            ours.speed.value >= 1.35 and ours.cost.value <= -0.37,
        ),
        row(
            "ours against the paper's, paired", auto, paper, "better in both, intervals without 0",
            ours_paper.speed.low > 1.0 and ours_paper.cost.high < 0.0,
        ),
        row("ours for PPO", ppo_auto, ppo_even),
        row("ours, 44 % in the right fifth", auto_44, even),
        row("3 Even held, one prefill for the copies of a prompt", shared, even),
        row(
            "must lose: the paper's where all responses fit the slots", roomy_paper, roomy_even, ".9-1.1x",
            0.9 <= worst.speed.value <= 1.1,
        ),
        row(
            "must lose: Ranked at the static count, no cut", ranked, even, "slower than Even",
            against(ranked, even).speed.high < 1.0,
        ),
        row(
            "must lose: PPO with a prefill actor against without", ppo_paper, ppo_plain, "slower or dearer",
            with_actor.speed.value < 1.0 or with_actor.cost.value > 0.0,
        ),
        row(
            "must not lose: ours, random predictions, against one queue at static, from step 4",
            late[0], late[1],
            "no step 5 % slower", worst_static <= 1.05,
        ),
        row("ours, random predictions, against 3 Even held, from step 4", late[0], late[2]),
        row("prompts of 1,024 tokens: the paper's scheme", long_paper, long_even),
        row("prompts of 1,024 tokens: ours", long_auto, long_even),
    ]  # fmt: skip
    first = Job(setting, schemes.PAPER_44, 0)
    fifths = fmean(right_fifths(first.predict(i), step) for i, step in enumerate(first.steps))
    return Findings(
        "headline",
        TITLE,
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds, "steps": auto[0].count},
        [
            f"{counted(seeds, 'paired run')} of {counted(auto[0].count, 'step')}; intervals are 95 %, "
            "bootstrapped over runs.",
            f"Fitted: {counted(setting.slots, 'slot')}, spread of lengths {setting.profile.variation:g}; "
            "nothing else.",
            "Generation alone: the paper bills neither starts nor the time between steps. Held: GPU-seconds"
            " of whole steps; a static job holds its actors while the learner trains.",
            f"The noisy predictor puts {100 * fifths:.0f} % of the first run's prompts into the right fifth.",
            f"With random predictions the slowest step from the fourth on took {worst_static:.2f} of the"
            f" static queue's time, {worst_even:.2f} of Even's.",
            *losses(rows),
        ],
    )


def _from_fourth(one: Sums) -> Sums:
    """Return the sums without the first three steps; GPU-seconds are still of all."""
    return replace(one, seconds=sum(one.generation_seconds[3:]), steps=sum(one.step_seconds[3:]))


def _slowest(ours: Sequence[Sums], base: Sequence[Sums]) -> float:
    """Return how long the slowest step from the fourth on took, as a multiple of the baseline's."""
    return max(
        mine / theirs
        for a, b in zip(ours, base, strict=True)
        for mine, theirs in list(zip(a.step_seconds, b.step_seconds, strict=True))[3:]
    )
