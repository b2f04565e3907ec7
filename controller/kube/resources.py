"""The kinds the operator reads or writes, and their addresses on the API server."""

from __future__ import annotations

from controller import names
from controller.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind. ``selector`` is the label selector under which the operator lists and watches it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    selector: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """``jobs.batch``, ``pods``: the name kubectl and RBAC use."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """URL path of a collection or an object; ``namespace=None`` on a namespaced kind: all namespaces.

        Raises:
            ValueError: an object of a namespaced kind without its namespace.
        """
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name!r}: a namespaced object needs its namespace")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return self.qualified

    def __hash__(self) -> int:
        return hash(self.plural)  # it is asked for at each look into the cache


RLHFJOBS = Resource(names.GROUP, names.VERSION, "rlhfjobs", "RLHFJob")
GPUPOOLS = Resource(names.GROUP, names.VERSION, "gpupools", "GPUPool", namespaced=False)
WORKERGROUPS = Resource(names.GROUP, names.VERSION, "workergroups", "WorkerGroup")
JOBS = Resource("batch", "v1", "jobs", "Job", selector=names.LABEL_JOB)
PODS = Resource("", "v1", "pods", "Pod", selector=names.LABEL_JOB)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", selector=names.LABEL_JOB)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SECRETS = Resource("", "v1", "secrets", "Secret")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

CAPACITIES = Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")

# Kueue's. The operator keeps copies of them once a GPUPool has delegate Kueue, of AdmissionChecks always.
KUEUE = "kueue.x-k8s.io"
WORKLOADS = Resource(KUEUE, "v1beta2", "workloads", "Workload")
LOCAL_QUEUES = Resource(KUEUE, "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES = Resource(KUEUE, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
FLAVORS = Resource(KUEUE, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
ADMISSION_CHECKS = Resource(KUEUE, "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)

# Of dynamic resource allocation, where the API server serves it (in this version since Kubernetes 1.34).
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)

# Plurals of those of the kinds above that are in no namespace.
CLUSTER_WIDE = frozenset(
    kind.plural for kind in tuple(globals().values()) if isinstance(kind, Resource) and not kind.namespaced
)

# What the operator keeps a copy of, in the order in which it is first listed: nodes and pods before the
# jobs that would be judged by them.
WATCHED: tuple[Resource, ...] = (NODES, PODS, JOBS, CONFIGMAPS, GPUPOOLS, WORKERGROUPS, RLHFJOBS)
# Of these, the operator's own: kopf lists and watches them, by way of `controller.kube.kopf_session`.
BY_KOPF: tuple[Resource, ...] = (GPUPOOLS, RLHFJOBS)
