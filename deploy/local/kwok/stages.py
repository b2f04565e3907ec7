"""Stages of simulated nodes and pods: KWOK's controller alone does nothing, its stages say what happens when.

Nodes become ready with so many GPUs; pods bound to them run at once, with an address of the given range, and
go on running until somebody deletes them. Pods of Jobs, too: a training run ends when it is stopped.
"""

from typing import Any

_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_DELETED = ".metadata.deletionTimestamp"

_NODE = """\
{{ $now := Now }}
conditions:
- {type: Ready, status: "True", reason: Simulated, message: simulated by KWOK,
   lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
addresses:
- {type: Hostname, address: {{ .metadata.name | Quote }}}
allocatable: %(resources)s
capacity: %(resources)s
phase: Running
"""

_POD = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
{{ $ips := PodIPsWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
{{ with $ips }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""


def stages(gpus: int) -> list[dict[str, Any]]:
    """Return the stages for nodes of ``gpus`` GPUs each."""
    resources = f'{{cpu: "1k", memory: 1Ti, pods: "1k", nvidia.com/gpu: "{gpus}"}}'
    return [
        _stage(
            "node-ready",
            "Node",
            [(_READY, "NotIn", ["True"])],
            {"statusTemplate": _NODE % {"resources": resources}},
        ),
        _stage(
            "pod-running",
            "Pod",
            [(_DELETED, "DoesNotExist", None), (".status.phase", "In", ["Pending"])],
            {"statusTemplate": _POD},
        ),
        _stage("pod-gone", "Pod", [(_DELETED, "Exists", None)], {"delete": True}),
    ]


def _stage(
    name: str, kind: str, when: list[tuple[str, str, list[str] | None]], then: dict[str, Any]
) -> dict[str, Any]:
    expressions = [
        {"key": key, "operator": operator} | ({"values": values} if values is not None else {})
        for key, operator, values in when
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": expressions},
            "next": then,
        },
    }
