"""Recipe of kubeconform: version and build; `gobuild/go.mod` says the same to Go (held to it by a test)."""

from pathlib import Path

from deploy.local.recipe import of_module

VERSION = "0.8.0"
MODULE = "github.com/yannh/kubeconform"
PROGRAM = "kubeconform"

KUBECONFORM = of_module(
    PROGRAM,
    "kubeconform",
    VERSION,
    MODULE,
    Path(__file__).parent / "gobuild",
    takes="half a minute",
)
