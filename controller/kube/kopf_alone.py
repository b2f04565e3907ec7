"""kopf, without the official client beside it.

kopf imports that client where it is installed, to know its objects when a handler gives it one. Ours gives it
none, and the import is a fifth of what a start of the operator costs, and 10 MB of its memory. Whoever needs
the client (`controller.kube.credential_plugin`) can import it afterwards.
"""

from __future__ import annotations

import sys

_CLIENT = "kubernetes"

if _CLIENT in sys.modules:
    import kopf
else:
    sys.modules[_CLIENT] = None  # type: ignore[assignment]  # how Python is told that it is not there
    try:
        import kopf
    finally:
        del sys.modules[_CLIENT]

__all__ = ["kopf"]
