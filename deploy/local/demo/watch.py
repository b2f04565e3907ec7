"""Watch the API: one watching thread per kind, one queue to the demo's own thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

from controller import names

# s that one watch lasts, where what exists may well be told again: one that has gone silent costs no more.
_LASTS = {"jobs": 5}


@dataclass(frozen=True)
class Change:
    """``kind`` of what changed (jobs, pods, events); ``verb`` is ADDED, MODIFIED, DELETED or RELIST.

    RELIST, with an empty object: the watch starts anew, and everything that exists follows as ADDED.
    """

    kind: str
    verb: str
    obj: Mapping[str, Any]


class Watcher:
    """Watches RLHFJobs, pods and Events of one namespace until closed."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._api: client.ApiClient = config.new_client_from_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig)
        )
        core, custom = client.CoreV1Api(self._api), client.CustomObjectsApi(self._api)
        lists: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
            "jobs": (
                custom.list_namespaced_custom_object,
                {"group": names.GROUP, "version": names.VERSION, "plural": "rlhfjobs"},
            ),
            "pods": (core.list_namespaced_pod, {}),
            "events": (core.list_namespaced_event, {}),
        }
        self.changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self._closed = threading.Event()
        for kind, (function, arguments) in lists.items():
            arguments = {"namespace": namespace, "timeout_seconds": _LASTS.get(kind, 600), **arguments}
            # Daemons: a thread that waits for the next event of a quiet watch cannot be told to end.
            threading.Thread(
                target=self._run, args=(kind, function, arguments), name=f"watch {kind}", daemon=True
            ).start()

    def close(self) -> None:
        self._closed.set()
        self._api.close()  # type: ignore[no-untyped-call]

    def _run(self, kind: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        while not self._closed.is_set():
            self.changes.put(Change(kind, "RELIST", {}))
            try:
                watching = watch.Watch()  # type: ignore[no-untyped-call]
                for event in watching.stream(function, **arguments):  # type: ignore[no-untyped-call]
                    self.changes.put(Change(kind, event["type"], event["raw_object"]))
                    if self._closed.is_set():
                        return
            except Exception:  # the plane restarts, a connection drops: list again
                if not self._closed.is_set():
                    time.sleep(0.5)
