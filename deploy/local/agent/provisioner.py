"""Dynamic claims: folders as PersistentVolumes, made under an identity of its own (no node's).

Runs beside the node agents (`AgentConfig.provisioner`) or alone:
`python -m deploy.local.agent.provisioner KUBECONFIG FOLDER`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from controller import log as logs
from controller.kube.client import Api, Object
from controller.kube.errors import AlreadyExists, ApiError, NotFound
from controller.kube.kubeconfig import as_caller
from controller.kube.resources import CLAIMS
from deploy.local.agent.events import Recorder
from deploy.local.agent.follow import follow
from deploy.local.agent.resources import PERSISTENT_VOLUMES, STORAGE_CLASSES

log = logging.getLogger(__name__)

USER = "evalstop-provisioner"
STORAGE_CLASS = "local-folder"
NAME = "evalstop.dev/local-folder"  # of the provisioner, in storage classes and annotations
_ASKED = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_STORAGE = "/apis/storage.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_RETRY = 2.0  # s

#: What an administrator installs once: (path of the collection, object). Volumes bind at once: every node of
#: this machine reaches every folder.
MANIFESTS: tuple[tuple[str, Object], ...] = (
    (
        f"{_STORAGE}/storageclasses",
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": NAME,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        },
    ),
    (
        f"{_RBAC}/clusterroles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": USER},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["persistentvolumes"],
                    "verbs": ["get", "list", "watch", "create", "delete"],
                },
                {
                    "apiGroups": [""],
                    "resources": ["persistentvolumeclaims"],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": ["storage.k8s.io"],
                    "resources": ["storageclasses"],
                    "verbs": ["get", "list", "watch"],
                },
                {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
            ],
        },
    ),
    (
        f"{_RBAC}/clusterrolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        },
    ),
)


class Provisioner:
    """Makes a folder and a volume for each claim that asks for one, removes both when its claim is gone.

    `folder` holds one folder per volume, ``<namespace>-<claim>-<last part of the claim's uid>``.
    """

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._events = Recorder(api, USER)
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()  # claims (uid) that were told already

    async def run(self) -> None:
        """Serve until cancelled."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await asyncio.gather(self._events.run(), self._follow_claims(), self._follow_volumes())

    async def _follow_claims(self) -> None:
        async for change in follow(self._api, CLAIMS):
            if change.kind != "DELETED":
                for claim in change.items:
                    self._begin(self._provision, claim)

    async def _follow_volumes(self) -> None:
        async for change in follow(self._api, PERSISTENT_VOLUMES):
            if change.kind != "DELETED":
                for volume in change.items:
                    self._begin(self._reclaim, volume)

    def _begin(self, work: Callable[[Object], Awaitable[None]], item: Object) -> None:
        """Work on one object while others are worked on; both kinds of work may be done twice."""
        task = asyncio.create_task(self._until_done(work, item))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_done(self, work: Callable[[Object], Awaitable[None]], item: Object) -> None:
        """Try a few times: a lost answer must not leave a claim pending until its next change."""
        for attempt in range(5):
            try:
                await work(item)
                return
            except (ApiError, OSError) as error:
                log.warning("%s %s: %s", item.get("kind", ""), item["metadata"]["name"], error)
                await asyncio.sleep(_RETRY * (attempt + 1))

    async def _provision(self, claim: Object) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        annotations = metadata.get("annotations") or {}
        if not any(annotations.get(key) == NAME for key in _ASKED):
            return
        if spec.get("volumeName") or metadata.get("deletionTimestamp"):
            return
        if spec.get("volumeMode") == "Block":
            self._refuse(claim, "block volumes cannot be folders: use volumeMode Filesystem")
            return
        if spec.get("dataSource") or spec.get("dataSourceRef"):
            self._refuse(claim, "a folder cannot be made from a data source")
            return
        kind = await self._api.get(STORAGE_CLASSES, spec["storageClassName"])
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        folder = self._folder / f"{namespace}-{name}-{uid.rpartition('-')[2]}"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"pvc-{uid}", "annotations": {_PROVISIONED_BY: NAME}},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "persistentVolumeReclaimPolicy": kind.get("reclaimPolicy") or "Delete",
                "storageClassName": spec["storageClassName"],
                "volumeMode": "Filesystem",
                "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": namespace,
                    "name": name,
                    "uid": uid,
                },
            },
        }
        try:
            await self._api.create(PERSISTENT_VOLUMES, volume)
        except AlreadyExists:
            pass
        else:
            self._events.post(
                claim, "ProvisioningSucceeded", f"Successfully provisioned volume pvc-{uid} in {folder}"
            )

    def _refuse(self, claim: Object, why: str) -> None:
        uid = claim["metadata"]["uid"]
        if uid not in self._refused:
            self._refused.add(uid)
            self._events.post(claim, "ProvisioningFailed", why, warning=True)

    async def _reclaim(self, volume: Object) -> None:
        """Remove a released volume of ours whose class said Delete: the folder first, then the object."""
        metadata, spec = volume["metadata"], volume["spec"]
        if (metadata.get("annotations") or {}).get(_PROVISIONED_BY) != NAME:
            return
        if (volume.get("status") or {}).get("phase") != "Released":
            return
        if spec.get("persistentVolumeReclaimPolicy") != "Delete" or metadata.get("deletionTimestamp"):
            return
        folder = Path(spec["hostPath"]["path"])
        if folder.parent == self._folder:  # never what somebody else's hand wrote into the object
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(NotFound):
            await self._api.delete(PERSISTENT_VOLUMES, metadata["name"], None, metadata["uid"])


async def serve(kubeconfig: Path, folder: Path) -> None:
    """Run a provisioner until cancelled."""
    caller = await as_caller(str(kubeconfig))
    async with Api(caller.connection, user_agent=USER, manager=USER) as api:
        await Provisioner(api, folder).run()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("python -m deploy.local.agent.provisioner KUBECONFIG FOLDER")
    logs.configure(form="console")
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]).absolute()))


if __name__ == "__main__":
    main()
