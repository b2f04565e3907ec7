"""Becomes Kueue's manager, with its metrics certificates where it insists on having them.

`python -m deploy.local.kueue.launch ROOT CERTIFICATES PROGRAM ARGUMENT…`

The manager reads tls.crt and tls.key from /etc/kueue/metrics/certs, and no setting changes that. So it gets a
mount namespace of its own in which the folder CERTIFICATES is seen there; this machine's /etc stays as it is.
ROOT is an empty folder, on which that view of the machine is put together.
"""

import os
import sys

from deploy.local.agent import enter

PLACE = "/etc/kueue/metrics/certs"


def main() -> None:
    root, certificates, *command = sys.argv[1:]
    parent = os.getppid()
    way = enter.probe()
    if way == "none":
        sys.exit(
            f"Kueue needs its certificates in {PLACE}, and this machine allows no mount namespace for that"
        )
    try:
        if way == "user":
            enter.enter_user_namespace()
        enter.unshare(enter.CLONE_NEWNS)
        mount = {"source": certificates, "target": PLACE, "read_only": True}
        enter.enter_root(root, [mount], [])
    except (OSError, enter.Refused) as error:
        sys.exit(f"Kueue's view of this machine, with {certificates} in {PLACE}: {error}")
    enter.die_with_parent()  # once more: the kernel forgets it when credentials change
    if os.getppid() != parent:
        sys.exit("whoever started this has left")
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
