"""How trainers lay out checkpoints, and when one of theirs is complete. One class per trainer family.

A layout answers three questions: which checkpoints are there (`candidates`), is this one complete by what
its trainer writes (`problem`), and does its content match what it says about itself (`mismatch`). Present
is not complete: folders appear before their files, files before their last byte, and rotation takes parts.
The habits are those of the versions named in docs/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.checkpoints.layouts.base import Candidate, Folder, Layout
from controller.checkpoints.layouts.huggingface import HuggingFace
from controller.checkpoints.layouts.nemorl import NeMoRL
from controller.checkpoints.layouts.openrlhf import OpenRLHF
from controller.checkpoints.layouts.plain import Plain
from controller.checkpoints.layouts.verl import Verl
from controller.checkpoints.store import Store

__all__ = [
    "LAYOUTS",
    "Candidate",
    "Folder",
    "HuggingFace",
    "Layout",
    "NeMoRL",
    "OpenRLHF",
    "Plain",
    "Verl",
    "judge",
]

LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout for layout in (Plain(), HuggingFace(), Verl(), OpenRLHF(), NeMoRL())
}


def judge(layout: Layout, store: Store, candidate: Candidate) -> str | None:
    """Why a candidate is not whole, whoever wrote it; None: it is."""
    from controller.checkpoints.completeness.judge import Survey  # it asks the layouts

    return Survey(store, layout).verdict(candidate).problem
