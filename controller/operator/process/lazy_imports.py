"""Keeps library modules that the operator never calls out of its process, to save memory.

They come in because they are installed, and take 16 MB (VmRSS after ``import controller.operator.main``, with
and without):

- ``kubernetes``: its package imports the synchronous client, configuration and, through them, requests and
  oauthlib; the operator has its own client, and needs ``kubernetes.aio`` for a kubeconfig with an
  auth-provider alone. kopf takes the synchronous client's absence as it is.
- ``rich``: structlog would draw tracebacks with it.
- ``greenlet``: structlog asks which greenlet logs, and takes its absence for the answer.

And aiohttp, when it is imported, loads every authority that the system trusts (2 MB), for requests that bring
no TLS context of their own. There are none in the operator.
"""

from __future__ import annotations

import importlib
import importlib.util
import ssl
import sys
from types import ModuleType
from typing import Any


def leave_out() -> None:
    """Call it first of all; what is imported already stays."""
    _import_aiohttp()
    modules: dict[str, Any] = sys.modules
    for name in ("rich", "greenlet"):
        modules.setdefault(name, None)
    spec = importlib.util.find_spec("kubernetes")
    if "kubernetes" in modules or spec is None:
        return
    package = ModuleType("kubernetes")
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
    modules["kubernetes"] = package
    modules.setdefault("kubernetes.client", None)


def _import_aiohttp() -> None:
    load = ssl.SSLContext.set_default_verify_paths
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        importlib.import_module("aiohttp.connector")
    finally:
        ssl.SSLContext.set_default_verify_paths = load  # type: ignore[method-assign]
