"""Plan of a copy, piece by piece, so that a copy goes on where an earlier try ended.

The pieces' digests are of the same read as the files' own, so a copy all of whose pieces are right is the
tree whose digest was recorded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from controller import bounded
from controller.checkpoints.digest import FileDigest, Manifest, tree_digest
from controller.checkpoints.errors import Damaged
from controller.frozen import dataclass

SUFFIX = ".pieces.json"  # after the name of a folder: where its pieces are recorded
LIMIT = 32 << 20  # bytes of such a file: those of 15 TB
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece: ``index`` counts them over all files of the plan, in the order of names and offsets."""

    index: int
    name: str  # of the file, relative to the checkpoint
    start: int  # bytes
    size: int  # bytes
    sha256: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """The files of a checkpoint and their pieces of ``piece`` bytes."""

    manifest: Manifest
    piece: int
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", tree_digest(self.manifest))

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.manifest.values())

    def key(self) -> str:
        """16 hex digits that only an equal plan has: who writes by one writes what the others would."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def pieces(self) -> Iterator[Piece]:
        """Yield all of them; a file without content has none."""
        index = 0
        for name in sorted(self.manifest):
            file = self.manifest[name]
            for number, sha256 in enumerate(file.pieces or (file.sha256,)):
                start = number * self.piece
                if start < file.size:
                    yield Piece(index, name, start, min(self.piece, file.size - start), sha256)
                    index += 1

    def to_json(self) -> str:
        files = {
            name: {"size": f.size, "sha256": f.sha256, "pieces": list(f.pieces)}
            for name, f in self.manifest.items()
        }
        document = {"digest": self.digest, "piece": self.piece, "files": files}
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def parse(text: bytes) -> Plan:
        """Return the plan that `to_json` has written.

        Raises:
            ValueError: the text is not such a plan, or its files do not match its digest.
        """
        raw = bounded.load(text, "the list of pieces", LIMIT)
        try:
            plan = Plan({n: _file(f, raw["piece"]) for n, f in raw["files"].items()}, raw["piece"])
        except (KeyError, TypeError, AttributeError, Damaged) as error:
            raise ValueError(f"not a list of pieces: {error!r}") from error
        if plan.digest != raw.get("digest"):
            raise ValueError("its files are not those of its digest")
        return plan


def _file(raw: Mapping[str, object], piece: int) -> FileDigest:
    size, sha256, pieces = raw["size"], raw["sha256"], raw["pieces"]
    if not isinstance(size, int) or not isinstance(pieces, list) or piece < 1 or size < 0:
        raise ValueError("sizes and pieces of the wrong kind")
    wanted = -(-size // piece) if size > piece else 0
    if len(pieces) != wanted or not all(_SHA256.match(str(d)) for d in (sha256, *pieces)):
        raise ValueError(f"{len(pieces)} pieces for {size} bytes, expected {wanted}")
    return FileDigest(size, str(sha256), tuple(map(str, pieces)))
