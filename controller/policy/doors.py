"""Lazy packages: what a package exports, each name imported when it is first used.

Who reads a status needs the records of a job and none of the forty modules that decide. So the doors of the
larger rooms do not import what they show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, shows: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package's ``__init__``.

    Args:
        package: its ``__name__``.
        shows: the modules of it, each with the names that it shows, separated by spaces. A module that names
            itself is shown as a whole.
    """
    where = {name: module for module, names in shows.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} shows no {name!r}")
        module = import_module(f"{package}.{where[name]}")
        return module if name == where[name] else getattr(module, name)

    return __getattr__
