"""The operator's logs are the project's: `controller.log`."""

from controller.log import configure, get

__all__ = ["configure", "get"]
