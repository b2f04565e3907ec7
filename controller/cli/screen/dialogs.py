"""Windows over the list: a page to read, a question with what follows from yes, a choice of modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from controller.cli.screen.wishes import MODES, Wish

_BOX = """
    align: center middle;
    & > #box { width: 90%; max-width: 110; height: auto; max-height: 90%; padding: 1 2;
      border: round $primary; }
"""


class Reader(ModalScreen[None]):
    """A page that is read and left. ``command``: what prints the same, for `c`; "": nothing does."""

    DEFAULT_CSS = f"Reader {{ {_BOX} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Back"),
        Binding("c", "copy", "Copy the command"),
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
        Binding("space,pagedown", "scroll(15)", show=False),
        Binding("pageup", "scroll(-15)", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[str], command: str = "") -> None:
        super().__init__()
        self._title, self.lines, self.command = title, list(lines), command

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box"):
            yield Static(Text(self._title, style="bold"))
            yield Static(Text.from_ansi("\n".join(self.lines)))
            yield Static(Text("Esc: back" + (f"   c copies: {self.command}" if self.command else ""), "dim"))

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_copy(self) -> None:
        if self.command:
            self.app.copy_to_clipboard(self.command)
            self.app.notify(self.command, title="Copied")

    def action_scroll(self, lines: int) -> None:
        self.query_one("#box").scroll_relative(y=lines, animate=False)


class Ask(ModalScreen[bool]):
    """A question; what follows from yes stands below it."""

    DEFAULT_CSS = f"Ask {{ {_BOX} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
        Binding("c", "copy", "Copy the command"),
    ]

    def __init__(self, wish: Wish) -> None:
        super().__init__()
        self.wish = wish

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(Text(self.wish.title, style="bold"))
            yield Static(Text(f"\n{self.wish.follows}\n"))
            yield Static(Text(f"y: yes   n: no   c copies: {self.wish.command}", style="dim"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.wish.command)
        self.app.notify(self.wish.command, title="Copied")


class Modes(ModalScreen[str]):
    """The choice of a mode; "": none."""

    DEFAULT_CSS = f"Modes {{ {_BOX} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "choose('Enforce')", "Enforce"),
        Binding("s", "choose('Shadow')", "Shadow"),
        Binding("o", "choose('Off')", "Off"),
        Binding("escape,q,n", "choose('')", "Back"),
    ]

    def __init__(self, key: str, now: str) -> None:
        super().__init__()
        self._key, self._now = key, now

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(Text(f"How far may EvalStop go with {self._key}? Now: {self._now}.\n", style="bold"))
            for name, follows in MODES.items():
                yield Static(Text(f"{name[0].lower()}  {name}: {follows}"))
            yield Static(Text("\nEsc: as it is", style="dim"))

    def action_choose(self, name: str) -> None:
        self.dismiss(name)
