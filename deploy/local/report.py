"""The callback by which long steps report progress, as a protocol."""

from typing import Protocol


class Report(Protocol):
    """Takes one line for people; a `progress` line is replaced by the line that follows it."""

    def __call__(self, line: str, progress: bool = False) -> None: ...


def silent(line: str, progress: bool = False) -> None:
    """Drop the line: a report that shows nothing."""
