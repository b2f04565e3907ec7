"""Pin the official releases for this platform: `python -m deploy.local.pin` writes digests.json.

It asks the releases for the sha256 of each file of the versions in versions.py, and drops what is there of
other versions. This is the one moment at which the release's own server is believed: compare what it wrote
with another place that publishes the digests before you commit it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.local.acquire import releases_from_environment
from deploy.local.download import DownloadError, Releases, published
from deploy.local.versions import BINARIES, DIGESTS_FILE, ETCD, KUBERNETES


def pinned(releases: Releases, before: Mapping[str, str]) -> dict[str, str]:
    """Return the digests for this platform, and those of others that are of the same versions.

    Raises:
        DownloadError: one cannot be had, with its address.
    """
    kept = {key: digest for key, digest in before.items() if key.split(" ")[1] in (KUBERNETES, ETCD)}
    return dict(sorted((kept | published(releases, BINARIES)).items()))


def main(path: Path = DIGESTS_FILE) -> int:
    try:
        digests = pinned(releases_from_environment(), json.loads(path.read_text()))
    except (DownloadError, ValueError) as error:
        print(f"nothing was pinned: {error}", file=sys.stderr)
        return 1
    path.write_text(json.dumps(digests, indent=1) + "\n")
    print(f"{len(digests)} digests in {path}: compare them with another place before you commit them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
