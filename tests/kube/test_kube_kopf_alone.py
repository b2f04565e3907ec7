"""kopf comes without the official client, which can be imported afterwards all the same."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import sys
from controller.kube.kopf_alone import kopf
print(sorted(name for name in sys.modules if name.startswith("kubernetes")))
import kubernetes.client
print(kubernetes.client.V1Pod.__name__)
"""


def test_the_official_client_is_not_imported_with_kopf_and_is_there_for_others() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["[]", "V1Pod"], done.stderr
