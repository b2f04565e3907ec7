"""kubeconfig files: self-contained, one per identity, readable by their owner only."""

import base64
from pathlib import Path

import yaml

from deploy.local.pki import Pair, write_private

CLUSTER = "evalstop-local"


def write(path: Path, url: str, ca: Path, user: str, pair: Pair) -> Path:
    """Write to `path` how `user` reaches the API server at `url`, certificates embedded; return `path`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": CLUSTER, "cluster": {"server": url, "certificate-authority-data": _embedded(ca)}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _embedded(pair.certificate),
                    "client-key-data": _embedded(pair.key),
                },
            }
        ],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
    return path


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
