"""Load a checkpoint as the product says that it is loaded: `python load.py KIND CHECKPOINT BASE OUT`.

It fails if a weight is missing, or is still the base model's.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.torn.recorded import KINDS

TRAINED = "model.layers.1.self_attn.q_proj.weight"


def main() -> None:
    kind, checkpoint, base, out = sys.argv[1], *map(Path, sys.argv[2:])
    how = KINDS[kind][1]
    untrained = AutoModelForCausalLM.from_pretrained(base)
    if how.startswith("PeftModel"):
        from peft import PeftModel

        found = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), checkpoint)
        model, missing = found.merge_and_unload(), set()
    else:
        place = checkpoint
        if how.startswith("from_pretrained,") or "beside" in how:
            _merge(how, checkpoint, place := out)
            if not (place / "config.json").exists():
                shutil.copy(base / "config.json", place)
        model, told = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True)
        missing = set(told["missing_keys"]) | set(told["unexpected_keys"])
    assert not missing, missing
    ours, theirs = model.state_dict()[TRAINED].float(), untrained.state_dict()[TRAINED].float()
    assert not torch.equal(ours, theirs), "the weights are the base model's"


def _merge(how: str, checkpoint: Path, out: Path) -> None:
    """Do what it says after the word "after", in this process: an import of it all takes ten seconds."""
    before, argv = os.getcwd(), sys.argv
    words = how.partition("after ")[2].replace("OUT", str(out)).split()
    os.chdir(checkpoint)
    try:
        if words[0] == "accelerate":
            sys.argv = words
            runpy.run_module("accelerate.commands.accelerate_cli", run_name="__main__")
        else:
            assert words[0] == "python", how
            sys.argv = words[1:]
            runpy.run_path(words[1], run_name="__main__")
    finally:
        sys.argv = argv
        os.chdir(before)


main()
