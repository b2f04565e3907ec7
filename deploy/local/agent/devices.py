"""GPUs of one node, handed out by number. They are virtual: an id in the environment, not a device."""

from __future__ import annotations


class OutOfGpus(Exception):
    """More GPUs were asked for than are free."""


class Gpus:
    """``count`` GPUs, numbered from 0; each belongs to at most one container at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._owner: dict[int, tuple[str, str]] = {}  # id -> (pod uid, container)

    @property
    def free(self) -> int:
        return self.count - len(self._owner)

    def assign(self, uid: str, container: str, wanted: int) -> tuple[int, ...]:
        """Lowest free ids for a container; the same ones when it asks again. Raises OutOfGpus."""
        held = tuple(sorted(number for number, owner in self._owner.items() if owner == (uid, container)))
        if len(held) == wanted:
            return held
        free = [number for number in range(self.count) if number not in self._owner]
        if wanted > len(free):
            raise OutOfGpus(f"{wanted} GPUs asked for, {len(free)} of {self.count} free")
        for number in free[:wanted]:
            self._owner[number] = (uid, container)
        return tuple(free[:wanted])

    def release(self, uid: str) -> None:
        """Take back all that a pod holds."""
        self._owner = {number: owner for number, owner in self._owner.items() if owner[0] != uid}


def variables(ids: tuple[int, ...]) -> dict[str, str]:
    """Return the environment that tells a container its GPUs, as NVIDIA's runtime does: none at all is said
    too."""
    listed = ",".join(str(number) for number in ids)
    return {"NVIDIA_VISIBLE_DEVICES": listed or "void", "CUDA_VISIBLE_DEVICES": listed}
