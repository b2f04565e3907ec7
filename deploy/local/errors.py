"""Errors of the local control plane, with messages that the reader can act on."""


class PlaneError(RuntimeError):
    """The plane cannot do what was asked; the message says why and what would help."""


class ToolsMissing(PlaneError):
    """No way led to some of the binaries; the message lists what was tried for which."""
