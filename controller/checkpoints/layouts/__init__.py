"""Layouts of checkpoints: where a trainer's files lie, and when a checkpoint is complete. One class per
trainer family.

A layout answers eight questions (base.py, `Layout`). judge.py asks which checkpoints are there
(`candidates`), what is certainly wrong with one (`problem`), and whether it says of itself that it is whole
(`evidence`). A reader of all bytes asks where they differ from the checkpoint's own manifest (`mismatch`).
Restoring asks what the trainer would call it (`own_name`), and which small files it needs beside it
(`resume_files`). `fits` names the file by which a checkpoint is known to be of the layout, `loads` what loads
its weights. Present is not complete: folders appear before their files, files before their last byte, and
rotation takes parts. Each class names the versions of the trainers whose habits it knows.

May import: nothing of the API or of Kubernetes: it runs in the access program.
Tests: tests/checkpoints, tests/torn.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.checkpoints.layouts.base import Candidate, Folder, Layout
from controller.checkpoints.layouts.huggingface import HuggingFace
from controller.checkpoints.layouts.nemorl import NeMoRL
from controller.checkpoints.layouts.openrlhf import OpenRLHF
from controller.checkpoints.layouts.plain import Plain
from controller.checkpoints.layouts.slime import Slime
from controller.checkpoints.layouts.torchdcp import TorchDCP
from controller.checkpoints.layouts.verl import Verl

__all__ = [
    "LAYOUTS",
    "Candidate",
    "Folder",
    "HuggingFace",
    "Layout",
    "NeMoRL",
    "OpenRLHF",
    "Plain",
    "Slime",
    "TorchDCP",
    "Verl",
]

LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (Plain(), HuggingFace(), Verl(), OpenRLHF(), NeMoRL(), Slime(), TorchDCP())
}
