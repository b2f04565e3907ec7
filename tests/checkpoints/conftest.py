"""Stores that only tests have: in memory, in a folder, on this machine."""

import os

from controller.checkpoints import endpoints, object_store

object_store.LOCAL = ("file", "memory")
os.environ[endpoints.ALLOWED_ENV] = ",".join(endpoints.KINDS)
