"""How trainers lay out checkpoints, and when one of theirs is complete. One class per trainer family.

A layout answers three questions: which checkpoints are there (`candidates`), is this one complete by what
its trainer writes (`problem`), and does its content match what it says about itself (`mismatch`). Present
is not complete: folders appear before their files, files before their last byte, and rotation takes parts.
The habits are those of the versions named in docs/checkpoints.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content, truncation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint as its names promise it. ``parts``: (prefix inside it, folder in the store)."""

    step: int
    name: str  # the trainer's own name for it
    parts: tuple[tuple[str, str], ...]
    problem: str | None = None  # known from the names alone

    def content(self, store: Store) -> Folder:
        return Folder(store, self.parts)


class Folder:
    """A checkpoint's files as one tree, wherever its parts lie. Implements `weights.Content`."""

    def __init__(self, store: Store, parts: Sequence[tuple[str, str]]) -> None:
        self._store = store
        self._where: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        for prefix, folder in parts:
            for name, size in store.files(folder).items():
                inside = f"{prefix}/{name}" if prefix else name
                self._where[inside] = f"{folder}/{name}"
                self._sizes[inside] = size

    def files(self) -> Mapping[str, int]:
        return self._sizes

    def where(self, name: str) -> str:
        """The store's name of a file."""
        return self._where[name]

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        return self._store.read(self._where[name], limit)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self._store.read_range(self._where[name], start, length)


class Layout(Protocol):
    name: str

    def candidates(self, store: Store) -> list[Candidate]:
        """Checkpoints by name, newest step first."""
        ...

    def problem(self, content: Content, step: int) -> str | None:
        """Why this is no complete checkpoint; None if it is. Reads names, sizes and small files only."""
        ...

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        """Where content differs from what the checkpoint says of itself; None where it says nothing."""
        ...

    def own_name(self, step: int) -> str:
        """The folder name the trainer would give a checkpoint of this step."""
        ...

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        """Small files beside the content without which the trainer does not find it when resuming."""
        ...


class _Numbered:
    """Layouts whose checkpoint is one folder named by its step."""

    name = ""
    pattern: re.Pattern[str]
    form = ""

    def candidates(self, store: Store) -> list[Candidate]:
        found: list[Candidate] = []
        for folder in store.folders():
            match = self.pattern.fullmatch(folder)
            if match:
                found.append(Candidate(int(match["step"]), folder, (("", folder),)))
        return _newest_first(found)

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return self.form.format(step)

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {}


class Plain(_Numbered):
    """``step-<N>/`` with a ``manifest.json`` of sizes and sha256 (docs/trainer-contract.md)."""

    name, form = "Plain", "step-{}"
    pattern = re.compile(r"step-(?P<step>\d{1,12})")
    manifest = "manifest.json"

    def problem(self, content: Content, step: int) -> str | None:
        listed = self._listed(content)
        if isinstance(listed, str):
            return listed
        said, entries = listed
        if said != step:
            return f"{self.manifest} says step {said}, the folder says {step}"
        sizes = content.files()
        for name, (size, _) in sorted(entries.items()):
            if name not in sizes:
                return f"{name} is missing ({self.manifest} lists it)"
            if sizes[name] != size:
                return f"{name} has {sizes[name]} of {size} bytes"
        return None

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        listed = self._listed(content)
        if isinstance(listed, str):
            return listed
        for name, (_, sha256) in sorted(listed[1].items()):
            if name not in manifest or manifest[name].sha256 != sha256:
                return f"{name} differs from the sha256 in {self.manifest}"
        return None

    def _listed(self, content: Content) -> tuple[int, dict[str, tuple[int, str]]] | str:
        """(step, files by name: (bytes, sha256 hex)), or why the manifest cannot be used."""
        document = _json(content, self.manifest)
        if isinstance(document, str):
            return document
        try:
            step, raw = document["step"], document["files"]
            items = (
                raw.items()
                if isinstance(raw, Mapping)
                else ((entry.get("name", entry.get("path")), entry) for entry in raw)
            )
            files = {
                str(name): (int(entry["size"]), str(entry["sha256"]).removeprefix("sha256:").lower())
                for name, entry in items
            }
            if isinstance(step, bool) or not isinstance(step, int) or not files:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            return (
                f"{self.manifest} is not of the form "
                '{"step": N, "files": {"<name>": {"size": bytes, "sha256": "<hex>"}}}'
            )
        return step, files


class HuggingFace(_Numbered):
    """``checkpoint-<N>/`` of the Hugging Face Trainer (TRL, Axolotl); ``trainer_state.json`` comes last."""

    name, form = "HuggingFace", "checkpoint-{}"
    pattern = re.compile(r"checkpoint-(?P<step>\d{1,12})")
    state = "trainer_state.json"
    # any one of these, or an index with all the shards it names
    weights = (
        "model.safetensors",
        "pytorch_model.bin",
        "adapter_model.safetensors",
        "adapter_model.bin",
    )
    indexes = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

    def problem(self, content: Content, step: int) -> str | None:
        state = _json(content, self.state, limit=64 << 20)  # it carries the whole log history
        if isinstance(state, str):
            return state
        if state.get("global_step") != step:
            return f"{self.state} says global_step {state.get('global_step')}, the folder says {step}"
        names = content.files()
        for index in self.indexes:
            if index in names:
                return self._sharded(content, index) or _truncated(content)
        sharded = any(
            re.match(r"pytorch_model_fsdp_\d+/\.metadata$|global_step\d+/.*model_states\.pt$", n)
            for n in names
        )
        if not sharded and not any(name in names for name in self.weights):
            return f"no weights: none of {', '.join(self.weights + self.indexes)}, and no sharded state"
        return _truncated(content)

    @staticmethod
    def _sharded(content: Content, index: str) -> str | None:
        document = _json(content, index, limit=64 << 20)
        if isinstance(document, str):
            return document
        shards = document.get("weight_map")
        if not isinstance(shards, Mapping) or not shards:
            return f"{index} has no weight_map"
        missing = sorted({str(shard) for shard in shards.values()} - content.files().keys())
        return f"{missing[0]} is missing ({index} lists it; {len(missing)} missing)" if missing else None


class Verl(_Numbered):
    """``global_step_<N>/{actor,critic,data.pt}`` of verl.

    ``latest_checkpointed_iteration.txt`` is not asked: asynchronous saves never write it. A rotated
    checkpoint keeps its folder and ``data.pt``, only the roles' folders go.
    """

    name, form = "Verl", "global_step_{}"
    pattern = re.compile(r"global_step_(?P<step>\d{1,12})")
    _rank = re.compile(r"(?P<what>model|optim|extra_state)_world_size_(?P<size>\d+)_rank_(?P<rank>\d+)\.pt")

    def candidates(self, store: Store) -> list[Candidate]:
        found = super().candidates(store)
        roles = {c.name: _folders(store, c.name) for c in found}
        critics = any("critic" in present for present in roles.values())
        return [self._by_roles(c, roles[c.name], critics) for c in found]

    @staticmethod
    def _by_roles(candidate: Candidate, roles: Iterable[str], critics: bool) -> Candidate:
        problem = None
        if "actor" not in roles:
            problem = "no actor folder: rotated away (only data.pt is left), or not written yet"
        elif critics and "critic" not in roles:
            problem = "no critic folder, though other steps have one: rotated away, or not written yet"
        return Candidate(candidate.step, candidate.name, candidate.parts, problem)

    def problem(self, content: Content, step: int) -> str | None:
        names = content.files()
        if "data.pt" not in names:
            return "no data.pt: verl writes it after the roles' folders, so the save is not finished"
        for role in ("actor", "critic"):
            of_role = [n.removeprefix(f"{role}/") for n in names if n.startswith(f"{role}/")]
            if of_role:
                problem = self._role(role, of_role)
                if problem:
                    return problem
            elif role == "actor":
                return "no actor folder: rotated away (only data.pt is left), or not written yet"
        return _truncated(content)

    def _role(self, role: str, names: list[str]) -> str | None:
        if any(re.fullmatch(r"dist_ckpt/(.*/)?(\.metadata|metadata\.json)", name) for name in names):
            return None  # Megatron: its metadata is written when every rank has finished
        ranks: dict[tuple[str, int], set[int]] = {}
        for name in names:
            match = self._rank.fullmatch(name)
            if match:
                ranks.setdefault((match["what"], int(match["size"])), set()).add(int(match["rank"]))
        if not any(what == "model" for what, _ in ranks):
            if any(
                name.startswith("huggingface/") and name.endswith((".safetensors", ".bin")) for name in names
            ):
                return None  # only the merged model was asked for
            return f"{role} has no model: neither model_world_size_*_rank_*.pt nor dist_ckpt/.metadata"
        for (what, size), present in sorted(ranks.items()):
            missing = sorted(set(range(size)) - present)
            if missing:
                return (
                    f"{role} has {what} of {size - len(missing)} of {size} ranks; first missing: {missing[0]}"
                )
        return None


class OpenRLHF:
    """``_actor/global_step<N>/`` (and ``_critic/…``): DeepSpeed tags, one folder per role.

    DeepSpeed writes ``latest`` beside the tags when a save is through; newer OpenRLHF puts ``metric.json``
    into the tag after that.
    """

    name = "OpenRLHF"
    roles = ("_actor", "_critic")
    _tag = re.compile(r"global_step(?P<step>\d{1,12})")
    _optimizer = re.compile(r"(?:\w+_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")

    def candidates(self, store: Store) -> list[Candidate]:
        tags = {role: self._tags(store, role) for role in self.roles if role in store.folders()}
        latest = {role: self._latest(store, role) for role in tags}
        found: list[Candidate] = []
        for step in sorted(set().union(*tags.values()) if tags else set(), reverse=True):
            tag = self.own_name(step)
            parts = tuple((f"{role}/{tag}", f"{role}/{tag}") for role in tags if step in tags[role])
            problem = None
            for role, steps in tags.items():
                if step not in steps:
                    problem = f"{role}/{tag} is missing: rotated away, or not written yet"
                elif latest[role] < step and not self._has(store, f"{role}/{tag}", "metric.json"):
                    problem = f"{role}/latest does not name {tag} yet: the save is not finished"
            found.append(Candidate(step, tag, parts, problem))
        return found

    def problem(self, content: Content, step: int) -> str | None:
        tag = self.own_name(step)
        for role in self.roles:
            names = [n.rpartition("/")[2] for n in content.files() if n.startswith(f"{role}/{tag}/")]
            if not names and role == "_actor":
                return f"no _actor/{tag}: it holds the policy"
            if names and not any(name.endswith("model_states.pt") for name in names):
                return f"{role}/{tag} has no *model_states.pt"
            ranks: dict[str, set[int]] = {}
            for name in names:
                match = self._optimizer.fullmatch(name)
                if match:
                    ranks.setdefault(match["mp"], set()).add(int(match["rank"]))
            world = max((len(have) for have in ranks.values()), default=0)
            for mp, have in sorted(ranks.items()):
                missing = sorted(set(range(max(world, max(have) + 1))) - have)
                if missing:
                    return (
                        f"{role}/{tag} lacks optimizer states of rank {missing[0]} (model-parallel rank {mp})"
                    )
        return _truncated(content)

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return f"global_step{step}"

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {f"{role}/latest": self.own_name(step).encode() for role in self.roles}

    def _tags(self, store: Store, role: str) -> set[int]:
        matches = (self._tag.fullmatch(folder) for folder in _folders(store, role))
        return {int(match["step"]) for match in matches if match}

    def _latest(self, store: Store, role: str) -> int:
        try:
            match = self._tag.fullmatch(store.read(f"{role}/latest", 4096).decode("utf-8", "replace").strip())
        except (Vanished, Damaged):
            return -1
        return int(match["step"]) if match else -1

    @staticmethod
    def _has(store: Store, folder: str, name: str) -> bool:
        try:
            return name in store.files(folder)
        except Vanished:
            return False


class NeMoRL(_Numbered):
    """``step_<N>/`` of NeMo-RL, written as ``tmp_step_<N>`` and renamed when complete."""

    name, form = "NeMoRL", "step_{}"
    pattern = re.compile(r"step_(?P<step>\d{1,12})")
    _writing = re.compile(r"tmp_step_(?P<step>\d{1,12})")

    def candidates(self, store: Store) -> list[Candidate]:
        found = super().candidates(store)
        done = {candidate.step for candidate in found}
        for folder in store.folders():
            match = self._writing.fullmatch(folder)
            if match and int(match["step"]) not in done:
                problem = f"{folder} is still being written"
                found.append(Candidate(int(match["step"]), folder, (("", folder),), problem))
        return _newest_first(found)

    def problem(self, content: Content, step: int) -> str | None:
        info = _json(content, "training_info.json")
        if isinstance(info, str):
            return info
        if not any(name.startswith("policy/") for name in content.files()):
            return "no policy folder: it holds the weights"
        return _truncated(content)


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout for layout in (Plain(), HuggingFace(), Verl(), OpenRLHF(), NeMoRL())
}


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint in a store. ``path`` is absolute; ``problem`` says why it is not complete, None: it is."""

    step: int
    path: str
    problem: str | None


def survey(layout: Layout, store: Store) -> list[Found]:
    """Every checkpoint of a location, newest first, with what is wrong with the incomplete ones.

    Judged by structure and sizes; contents are compared only when one is secured.
    """
    return [
        Found(c.step, store.path(c.parts[0][1] if len(c.parts) == 1 else ""), judge(layout, store, c))
        for c in layout.candidates(store)
    ]


def judge(layout: Layout, store: Store, candidate: Candidate) -> str | None:
    """Why a candidate is not complete; None: it is."""
    if candidate.problem:
        return candidate.problem
    try:
        return layout.problem(candidate.content(store), candidate.step)
    except Vanished:
        return "it was removed while it was being looked at"
    except Damaged as damage:
        return str(damage)


def _newest_first(found: list[Candidate]) -> list[Candidate]:
    # step-5 and step-005 are the same step: the shorter name wins, whichever order the store lists them in.
    best: dict[int, Candidate] = {}
    for candidate in sorted(found, key=lambda c: (c.step, -len(c.name))):
        best[candidate.step] = candidate
    return sorted(best.values(), key=lambda c: -c.step)


def _folders(store: Store, folder: str) -> list[str]:
    try:
        return store.folders(folder)
    except Vanished:
        return []


def _truncated(content: Content) -> str | None:
    for name in sorted(content.files()):
        if name.endswith((".safetensors", ".pt", ".pth", ".bin", ".distcp")):
            problem = truncation(content, name)
            if problem:
                return problem
    return None


def _json(content: Content, name: str, limit: int = 1 << 20) -> dict[str, Any] | str:
    """A JSON object of the checkpoint, or why there is none."""
    if name not in content.files():
        return f"no {name}: the save is not finished, or this is no such checkpoint"
    try:
        document = json.loads(content.read(name, limit))
    except ValueError:
        return f"{name} is not whole JSON: the save is not finished"
    return document if isinstance(document, dict) else f"{name} holds no JSON object"
