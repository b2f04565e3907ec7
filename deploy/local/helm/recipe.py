"""Recipe of Helm: version and build; `gobuild/go.mod` says the same to Go (a test holds the two together)."""

from pathlib import Path

from deploy.local.recipe import of_module

VERSION = "3.22.0"
MODULE = "helm.sh/helm/v3"
PROGRAM = "helm"
# The Kubernetes that a chart's `kubeVersion` is held against where no cluster is asked (`helm template` and
# `helm lint`): that of Helm's own client library, as its releases have it. Without these it would be 1.20.
_KUBERNETES = ("1", "37")
_SET = {
    "internal/version.version": f"v{VERSION}",
    "pkg/lint/rules.k8sVersionMajor": _KUBERNETES[0],
    "pkg/lint/rules.k8sVersionMinor": _KUBERNETES[1],
    "pkg/chartutil.k8sVersionMajor": _KUBERNETES[0],
    "pkg/chartutil.k8sVersionMinor": _KUBERNETES[1],
}

HELM = of_module(
    PROGRAM,
    "Helm",
    VERSION,
    MODULE,
    Path(__file__).parent / "gobuild",
    linker=[f"-X {MODULE}/{name}={value}" for name, value in _SET.items()],
    takes="about three minutes",
)
