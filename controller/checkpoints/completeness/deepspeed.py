"""DeepSpeed: the ranks that its files are of, held against the number of ranks that it wrote down.

``DeepSpeedEngine.save_checkpoint`` (deepspeed 0.19.8, runtime/engine.py) writes into a tag's folder
``mp_rank_<MM>_model_states.pt`` (ZeRO-3: ``zero_pp_rank_<r>_mp_rank_<MM>_model_states.pt`` of each rank) and,
with ZeRO, ``[bf16_]zero_pp_rank_<r>_mp_rank_<MM>_optim_states.pt`` of each rank. Model states carry
``dp_world_size`` and ``mp_world_size``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from controller.checkpoints.completeness.pickles import flag, small_number
from controller.checkpoints.completeness.ranks import DIGITS, first_missing
from controller.checkpoints.weights import Content

LOOKED_AT = 32 << 20  # bytes at the start of a file: torch.save writes the pickle before the tensors
PIECE = 1 << 20
_MODEL = re.compile(rf"(?:zero_pp_rank_(?P<rank>{DIGITS})_)?mp_rank_(?P<mp>{DIGITS})_model_states\.pt")
_OPTIMIZER = re.compile(
    rf"(?:\w+_)?zero_pp_rank_(?P<rank>{DIGITS})_mp_rank_(?P<mp>{DIGITS})_optim_states\.pt"
)


class Ranks(NamedTuple):
    """Ranks found in a tag's folder. ``complete``: their number is written in it, and all of them are
    there."""

    problem: str | None
    complete: bool
    data_parallel: int | None = None


def folders(content: Content) -> list[str]:
    """Folders of a checkpoint that hold DeepSpeed's states."""
    named = (name.rpartition("/") for name in content.files())
    return sorted(
        {folder for folder, _, last in named if _MODEL.fullmatch(last) or _OPTIMIZER.fullmatch(last)}
    )


def ranks(content: Content, folder: str) -> Ranks:
    """Return whether the states of every rank are there."""
    at = f"{folder}/" if folder else ""
    model: dict[int, set[int | None]] = {}
    optimizer: dict[int, set[int]] = {}
    for name in content.files():
        if name.rpartition("/")[0] != folder:
            continue
        last = name[len(at) :]
        if found := _MODEL.fullmatch(last):
            rank = None if found["rank"] is None else int(found["rank"])
            model.setdefault(int(found["mp"]), set()).add(rank)
        elif found := _OPTIMIZER.fullmatch(last):
            optimizer.setdefault(int(found["mp"]), set()).add(int(found["rank"]))
    if not model:
        return Ranks(f"{folder} has no *model_states.pt", False)
    split = any(rank is not None for have in model.values() for rank in have)  # ZeRO-3
    data, tensor = _world(content, at, sorted(n for n in content.files() if n.startswith(at)))
    seen = {mp: {rank for rank in have if rank is not None} for mp, have in model.items()}
    widest = max((max(have) + 1 for have in (*seen.values(), *optimizer.values()) if have), default=1)
    if data is not None and widest > data:
        return Ranks(f"{folder} has states of rank {widest - 1}, of {data} ranks: another save's", False)
    for mp in range(tensor or max((*model, *optimizer)) + 1):
        size = data or widest
        lacking = first_missing(seen.get(mp, set()), size) if split else None
        if mp not in model or lacking is not None:
            return Ranks(
                f"{folder} lacks model states of rank {lacking or 0} (model-parallel rank {mp})", False
            )
        missing = first_missing(optimizer.get(mp, set()), size) if optimizer or split else None
        if missing is not None:
            return Ranks(
                f"{folder} lacks optimizer states of rank {missing} (model-parallel rank {mp})", False
            )
    return Ranks(None, data is not None and tensor is not None and bool(optimizer), data)


def _world(content: Content, at: str, names: list[str]) -> tuple[int | None, int | None]:
    """(data-parallel, model-parallel) number of ranks as the first model states say."""
    first = next((name for name in names if _MODEL.fullmatch(name[len(at) :])), None)
    if first is None:
        return None, None
    return number_in(content, first, "dp_world_size"), number_in(content, first, "mp_world_size")


def number_in(content: Content, name: str, key: str) -> int | None:
    """Return a whole number of 1 and more that a file of torch.save has under a key; None: not found."""
    found = small_number(beginning(content, name), key)
    return found if found is not None and 1 <= found <= 1_000_000 else None


def flag_in(content: Content, name: str, key: str) -> bool | None:
    """Return the truth value that a file of torch.save has under a key; None: not found."""
    return flag(beginning(content, name), key)


def beginning(content: Content, name: str) -> Iterator[bytes]:
    """Yield the start of a file of torch.save in pieces: the pickle is there."""
    for start in range(0, min(content.files()[name], LOOKED_AT), PIECE):
        yield content.read_range(name, start, PIECE)
