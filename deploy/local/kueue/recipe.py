"""Recipe of Kueue: its version, how it is built, and the manifests of that very version.

`gobuild/go.mod` says the same to Go (a test holds the two together).
"""

from pathlib import Path

from deploy.local.recipe import Tree, of_module

VERSION = "0.15.2"
MODULE = "sigs.k8s.io/kueue"
PROGRAM = "kueue"
MANIFESTS = "kueue-config"  # the module's own `config` folder, a set of kustomizations

KUEUE = of_module(
    PROGRAM,
    "Kueue",
    VERSION,
    MODULE,
    Path(__file__).parent / "gobuild",
    linker=(f"-X {MODULE}/pkg/version.GitVersion=v{VERSION}",),
    trees={MANIFESTS: Tree(MODULE, "config")},
    takes="about four minutes",
)
