"""Recipe of versitygw: version and build; `gobuild/go.mod` says the same to Go (held to it by a test)."""

from pathlib import Path

from deploy.local.recipe import of_module

VERSION = "1.8.0"
MODULE = "github.com/versity/versitygw"
PROGRAM = "versitygw"

VERSITYGW = of_module(
    PROGRAM,
    "versitygw",
    VERSION,
    MODULE,
    Path(__file__).parent / "gobuild",
    takes="about three minutes",
)
