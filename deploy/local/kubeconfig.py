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


def embedded(path: Path, folder: Path) -> tuple[str, Path, Pair]:
    """Return how the current context of a self-contained kubeconfig reaches its API server.

    Args:
        path: the kubeconfig.
        folder: to which its certificates are written.

    Returns:
        URL, certificate of the authority, and the user's certificate.
    """
    config = yaml.safe_load(path.read_text())
    chosen = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == chosen["cluster"])
    user = next(u["user"] for u in config["users"] if u["name"] == chosen["user"])

    def file(name: str, data: str) -> Path:
        made = folder / name
        write_private(made, base64.b64decode(data))
        return made

    ca = file("ca.crt", cluster["certificate-authority-data"])
    certificate = file("admin.crt", user["client-certificate-data"])
    return str(cluster["server"]), ca, Pair(certificate, file("admin.key", user["client-key-data"]))


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
