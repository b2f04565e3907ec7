"""A namespace for one test."""

import contextlib
import re
import secrets
import time
from collections.abc import Iterator

from deploy.local.plane import Plane


@contextlib.contextmanager
def fresh_namespace(plane: Plane, test: str) -> Iterator[str]:
    """A namespace named after a test, in which pods can be created; deleted in the end, without waiting."""
    readable = re.sub(r"[^a-z0-9]+", "-", test.lower())[:40].strip("-")
    name = f"{readable}-{secrets.token_hex(3)}"
    admin = plane.client()
    admin.post("/api/v1/namespaces", {"metadata": {"name": name}})
    deadline = time.monotonic() + 20
    while not admin.succeeds(f"/api/v1/namespaces/{name}/serviceaccounts/default"):
        assert time.monotonic() < deadline, f"namespace {name} got no service account within 20 s"
        time.sleep(0.02)
    yield name
    admin.delete(f"/api/v1/namespaces/{name}")
