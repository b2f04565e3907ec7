"""What can go wrong with the local control plane, said so that the reader can act on it."""


class PlaneError(RuntimeError):
    """The plane cannot do what was asked; the message says why and what would help."""


class ToolsMissing(PlaneError):
    """No way led to some of the binaries; the message lists what was tried for which."""
