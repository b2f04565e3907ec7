"""Sharded tensors that each rank writes by torch.save into a file of its own: of how many ranks they are.

FSDP 1 keeps ``ShardedTensor``s, whose pickled state has ``global_world_size`` (torch 2.15,
torch/distributed/_shard/sharded_tensor/api.py `ShardedTensor.__getstate__`). FSDP 2 keeps ``DTensor``s on a
``DeviceMesh``, whose pickled state has the ranks of the whole mesh as a tuple ``_flatten_rank_map``
(torch/distributed/device_mesh.py `DeviceMesh.__init__`).
"""

from __future__ import annotations

from controller.checkpoints.completeness.deepspeed import beginning, number_in
from controller.checkpoints.completeness.pickles import highest_number
from controller.checkpoints.weights import Content

WORLD, MESH = "global_world_size", "_flatten_rank_map"


def world_size(content: Content, name: str) -> int | None:
    """Return how many ranks there were by what the sharded tensors in a file say; None: they do not."""
    world_size = number_in(content, name, WORLD)
    if world_size is not None:
        return world_size
    highest = highest_number(beginning(content, name), MESH)
    return highest + 1 if highest is not None and 0 <= highest < 1_000_000 else None
