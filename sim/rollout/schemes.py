"""The schemes that are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.policy.wording import counted
from sim.rollout.predictions import NOISE_44
from sim.rollout.setting import Predictor, Scheme

# What the paper's baseline is: all features off, so every response is prefilled by itself.
EVEN = Scheme("Even, held", dispatch="Even", shared_prefill=False)
EVEN_SHARED = Scheme("Even, held, one prefill a prompt", dispatch="Even")
LONGEST_FIRST = Scheme("LongestFirst, held", dispatch="LongestFirst")
LONGEST_FIRST_RELEASED = replace(LONGEST_FIRST, name="LongestFirst, early release", release=True)
RANKED = Scheme("Ranked, cut at .7, early release", dispatch="Ranked", release=True, cut=0.7)
GLOBAL = Scheme("unranked, global cut at .7, early release", dispatch="Global", release=True, cut=0.7)

_PAPER: dict[str, Any] = {
    "dispatch": "Ranked",
    "objective": "weighted",
    "when_idle": "Release",
    "least_gain": 0.0,
    "cut": 1.0,  # its estimate knows no moves
}
PAPER = Scheme("the paper's", _PAPER, cut=0.7, prefill_actor=True, trust=False, spread=False)
PAPER_WITHOUT_PREFILL_ACTOR = replace(PAPER, name="the paper's, no prefill actor", prefill_actor=False)
PAPER_44 = replace(PAPER, name="the paper's, 44 % in the right fifth", predictor=Predictor("noisy", NOISE_44))
AUTO = Scheme("ours, Auto", {}, cut=0.7)
AUTO_44 = replace(AUTO, name="ours, 44 % in the right fifth", predictor=Predictor("noisy", NOISE_44))
STATIC_RANDOM = replace(LONGEST_FIRST, name="one queue at static", predictor=Predictor("random"))
AUTO_RANDOM = replace(AUTO, name="ours, random predictions", predictor=Predictor("random"))


def at(scheme: Scheme, count: int) -> Scheme:
    """Return a scheme with a fixed count."""
    return replace(scheme, name=f"{scheme.name}, {counted(count, 'actor')}", count=count)
