"""Which KWOK, and how it is built; `gobuild/go.mod` says the same to Go (a test holds the two together)."""

from pathlib import Path

from deploy.local.recipe import STRIPPED, Recipe, built_version

VERSION = "0.8.0"
MODULE = "sigs.k8s.io/kwok"
PROGRAM = "kwok"


def _ask(_: str, path: Path) -> str | None:
    return built_version(path, MODULE)


KWOK = Recipe(
    name="kwok",
    title=f"KWOK {VERSION}",
    pins=(VERSION,),
    folder=Path(__file__).parent / "gobuild",
    output=PROGRAM,
    programs={PROGRAM: VERSION},
    ask=_ask,
    package=f"{MODULE}/cmd/kwok",
    flags=("-trimpath", "-buildvcs=false", "-ldflags", STRIPPED),
    takes="about two minutes",
)
