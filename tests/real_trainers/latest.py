"""What DeepSpeed loads of OpenRLHF's folder after the adapter has looked at it: `python latest.py OUT`.

Two saves in the order of OpenRLHF 0.11.2 (`DeepspeedStrategy.save_ckpt`, `load_ckpt`: no tag), the second one
torn, then what a restored checkpoint elsewhere asks for, then none that is whole. Prints a line of each load.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import torch

from evalstop_client.openrlhf import ROLES
from evalstop_client.openrlhf_files import hide_latest, make_latest
from tests.torn.real import ZERO, start_deepspeed


def main() -> None:
    place = Path(sys.argv[1])
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    deepspeed = start_deepspeed()
    model = torch.nn.Linear(4, 4)
    config = {**ZERO, "zero_optimization": {"stage": 2}}
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        config[name] = 1
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def load(what: str) -> None:
        for role in ROLES:
            path, states = engine.load_checkpoint(str(place / role))
            print("LOADED", what, role, path and Path(path).parent.name, (states or {}).get("global_step"))

    def save(step: int) -> None:
        for role in ROLES:
            states: dict[str, Any] = {"global_step": step}
            engine.save_checkpoint(str(place / role), tag=f"global_step{step}", client_state=states)

    for step in (10, 20):
        save(step)
    load("newest")
    for role in ROLES:
        (place / role / "global_step20" / "mp_rank_00_model_states.pt").write_bytes(b"half")
    make_latest(place, place / ROLES[0] / "global_step10", ROLES)
    load("whole")
    named = place / ".evalstop" / "u-1" / "resume" / "global_step5"
    for role in ROLES:
        shutil.copytree(place / role / "global_step10", named / role / "global_step5")
    make_latest(place, named, ROLES)
    load("restored")
    hide_latest(place, ROLES)
    load("none")


main()
