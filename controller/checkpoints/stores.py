"""The store for a location: a folder on a volume, or a prefix in an object store."""

from __future__ import annotations

from controller.checkpoints.staging import Writer
from controller.checkpoints.store import Store
from controller.checkpoints.volume import Volume


def open_store(root: str, writer: Writer | None = None, within: str = "") -> Store:
    """Return the store for an absolute path or a URI such as ``s3://bucket/prefix``.

    Args:
        root: the absolute path or URI.
        writer: who works on it, as other workers see it; None: one without a request.
        within: the mount point that a path lies below; links on the way from there are not trusted.

    Raises:
        AccessError: BAD_REQUEST, neither of the two or a scheme that is not supported.
    """
    if "://" in root:
        from controller.checkpoints.object_store import ObjectStore  # imports fsspec: only where it is needed

        return ObjectStore.at(root, writer)
    return Volume(root, writer, within)
