"""Which kubeconform, and how it is built; `gobuild/go.mod` says the same to Go (held to it by a test)."""

from pathlib import Path

from deploy.local.recipe import STRIPPED, Recipe, built_version

VERSION = "0.8.0"
MODULE = "github.com/yannh/kubeconform"
PROGRAM = "kubeconform"


def _ask(_: str, path: Path) -> str | None:
    return built_version(path, MODULE)


KUBECONFORM = Recipe(
    name="kubeconform",
    title=f"kubeconform {VERSION}",
    pins=(VERSION,),
    folder=Path(__file__).parent / "gobuild",
    output=PROGRAM,
    programs={PROGRAM: VERSION},
    ask=_ask,
    package=f"{MODULE}/cmd/kubeconform",
    flags=("-trimpath", "-buildvcs=false", "-ldflags", STRIPPED),
    takes="half a minute",
)
