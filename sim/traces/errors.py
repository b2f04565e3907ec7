"""Errors in a trace, by file, line and field; and what is done about them."""

from __future__ import annotations

from pathlib import Path

from controller.policy.wording import counted

_SHOWN = 200  # characters of a value in a message


class TraceError(ValueError):
    """A trace cannot be used as it is: damaged, empty, or a value that cannot be.

    ``line`` counts from 1, 0 where the whole file is meant; ``field`` is named as the file names it.
    """

    def __init__(self, file: Path, line: int, field: str, problem: str) -> None:
        where = f"{file}, line {line}" if line else str(file)
        super().__init__(f"{where}, {field}: {problem}" if field else f"{where}: {problem}")
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem

    @staticmethod
    def value(file: Path, line: int, field: str, value: object, expected: str) -> TraceError:
        """Return a value that is not allowed; of a long one its beginning is shown."""
        shown = repr(value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}… ({counted(len(shown), 'character')})"
        return TraceError(file, line, field, f"{shown} is not allowed, expected {expected}")


class Skipped:
    """Handler of rows that are wrong: raise, or with ``skip`` count them and go on."""

    def __init__(self, *, skip: bool = False) -> None:
        self._skip = skip
        self.errors: list[TraceError] = []

    def add(self, error: TraceError) -> None:
        """Record a wrong row, or raise its error if wrong rows are not to be skipped."""
        if not self._skip:
            raise error
        self.errors.append(error)

    def copy(self) -> Skipped:
        """Another one that begins with the same rows."""
        made = Skipped(skip=self._skip)
        made.errors += self.errors
        return made

    def __len__(self) -> int:
        return len(self.errors)
