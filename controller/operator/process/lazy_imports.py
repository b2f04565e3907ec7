"""Keeps library modules that the operator never calls out of its process, to save memory.

They come in because they are installed, and take 14 MB (VmRSS after ``import controller.operator.main``, with
and without):

- ``kubernetes``: its package imports the synchronous client, configuration and, through them, requests and
  oauthlib; the operator has its own client, and needs ``kubernetes.aio`` for a kubeconfig with an
  auth-provider alone. kopf takes the synchronous client's absence as it is.
- ``rich``: structlog would draw tracebacks with it.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any


def leave_out() -> None:
    """Call it first of all; what is imported already stays."""
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rich", None)
    spec = importlib.util.find_spec("kubernetes")
    if "kubernetes" in modules or spec is None:
        return
    package = ModuleType("kubernetes")
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
    modules["kubernetes"] = package
    modules.setdefault("kubernetes.client", None)
