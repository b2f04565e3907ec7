"""Which Kueue: its version, how it is built, and the manifests of that very version.

`gobuild/go.mod` says the same to Go (a test holds the two together).
"""

from pathlib import Path

from deploy.local.recipe import STRIPPED, Recipe, Tree, built_version

VERSION = "0.15.2"
MODULE = "sigs.k8s.io/kueue"
PROGRAM = "kueue"
MANIFESTS = "kueue-config"  # the module's own `config` folder, a set of kustomizations


def _ask(_: str, path: Path) -> str | None:
    return built_version(path, MODULE)  # the manager has no flag that prints its version


KUEUE = Recipe(
    name="kueue",
    title=f"Kueue {VERSION}",
    pins=(VERSION,),
    folder=Path(__file__).parent / "gobuild",
    output=PROGRAM,
    programs={PROGRAM: VERSION},
    ask=_ask,
    package=f"{MODULE}/cmd/kueue",
    flags=(
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        f"{STRIPPED} -X {MODULE}/pkg/version.GitVersion=v{VERSION}",
    ),
    trees={MANIFESTS: Tree(MODULE, "config")},
    takes="about four minutes",
)
