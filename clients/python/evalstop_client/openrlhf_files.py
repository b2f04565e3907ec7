"""OpenRLHF's checkpoint folder, changed so that DeepSpeed loads the checkpoint that the run goes on from.

``<ckpt.path>/<role>/<tag>`` holds a role's states, and ``<ckpt.path>/<role>/latest`` names the tag that is
loaded (deepspeed 0.19.8, runtime/engine.py `load_checkpoint` without a tag). No file of a checkpoint is ever
changed: what is put in place is links, or copies where the file system has none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

LATEST, HIDDEN = "latest", "latest.not-whole"


def make_latest(place: Path, checkpoint: Path, roles: Iterable[str]) -> None:
    """Have the next load take this checkpoint.

    Args:
        place: ``ckpt.path``.
        checkpoint: ``<place>/<role>/<tag>``; or a folder elsewhere, as the operator restores one, with
            ``<role>/<tag>`` in it, which are put in place first.
        roles: names of the roles' folders.

    Raises:
        ValueError: no role's states are there.
        OSError: something cannot be written.
    """
    own = checkpoint.parent.parent == place
    top, tag = (place, checkpoint.name) if own else (checkpoint, "")
    found = False
    for role in roles:
        if not own:
            tag = next(
                (entry.name for entry in sorted((top / role).glob("*global_step*")) if entry.is_dir()), ""
            )
        if tag and (top / role / tag).is_dir():
            found = True
            if not own:
                _put(top / role / tag, place / role / tag)
            _write(place / role / LATEST, tag)
    if not found:
        raise ValueError(f"{checkpoint}: expected DeepSpeed's states below {' or '.join(roles)}")


def hide_latest(place: Path, roles: Iterable[str]) -> None:
    """Have the next load find none, so that the training starts afresh."""
    for role in roles:
        if (place / role / LATEST).exists():
            (place / role / LATEST).replace(place / role / HIDDEN)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".tmp-{path.name}")
    draft.write_text(text)
    draft.replace(path)


def _put(source: Path, target: Path) -> None:
    """Put a folder's files at another place of the same volume, instead of what is there: another save of
    that step has the same names and sizes."""
    if _files(source) == _files(target):
        return
    draft = target.with_name(f".tmp-{target.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, draft, copy_function=_link)
    if target.exists():
        shutil.rmtree(target)
    draft.replace(target)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return which files a folder's names stand for: device and inode."""
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (at.st_dev, at.st_ino) for path, at in found}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, another user's file
        shutil.copy2(source, target)
