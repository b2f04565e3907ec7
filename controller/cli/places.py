"""The commands, and where each is. Nothing of any is loaded here."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Place of a command: the panel of the help that it stands in, its module, and the function or
    `typer.Typer` there."""

    panel: str
    module: str
    attribute: str


LOOK, ACT, RUN, STUDY = "Look", "Act", "Run it", "Study"

COMMANDS = {
    "list": Place(LOOK, "controller.cli.jobs", "list_jobs"),
    "get": Place(LOOK, "controller.cli.get", "get"),
    "why": Place(LOOK, "controller.cli.why", "why"),
    "history": Place(LOOK, "controller.cli.history", "history"),
    "pools": Place(LOOK, "controller.cli.pools", "pools"),
    "rollouts": Place(LOOK, "controller.cli.rollouts", "rollouts"),
    "groups": Place(LOOK, "controller.cli.groups", "groups"),
    "queue": Place(LOOK, "controller.cli.queue", "queue"),
    "top": Place(LOOK, "controller.cli.top", "top"),
    "dashboard": Place(LOOK, "controller.cli.dashboard", "dashboard"),
    "mode": Place(ACT, "controller.cli.change", "mode"),
    "stop": Place(ACT, "controller.cli.change", "stop"),
    "resume": Place(ACT, "controller.cli.change", "resume"),
    "pin": Place(ACT, "controller.cli.pin", "pin"),
    "report": Place(STUDY, "controller.cli.report", "report"),
    "simulate": Place(STUDY, "controller.cli.simulate", "simulate"),
    "export": Place(STUDY, "controller.cli.export", "export"),
    "what-if": Place(STUDY, "controller.cli.what_if", "what_if"),
    "replay": Place(STUDY, "controller.cli.replay", "replay"),
    "parity": Place(STUDY, "controller.cli.parity", "parity"),
    "rules": Place(STUDY, "controller.cli.rules", "app"),
    "sim": Place(STUDY, "controller.cli.sim", "app"),
    "extender": Place(RUN, "controller.cli.extender", "app"),
    "check": Place(RUN, "controller.cli.check", "check"),
    "checkpoints": Place(LOOK, "controller.cli.checkpoints", "checkpoints"),
    "doctor": Place(RUN, "controller.cli.doctor.command", "doctor"),
    "version": Place(RUN, "controller.cli.version", "version"),
}
