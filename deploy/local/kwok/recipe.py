"""Recipe of KWOK: version and build; `gobuild/go.mod` says the same to Go (a test holds the two together)."""

from pathlib import Path

from deploy.local.recipe import of_module

VERSION = "0.8.0"
MODULE = "sigs.k8s.io/kwok"
PROGRAM = "kwok"

KWOK = of_module(
    PROGRAM,
    "KWOK",
    VERSION,
    MODULE,
    Path(__file__).parent / "gobuild",
    takes="about two minutes",
)
