"""A development node agent: it stands in for kubelet and runs containers as plain local processes.

No isolation, no Services to pods, no resource limits; docs/understand/local-nodes.md says what holds and
what does not.

May import: `controller.kube` and `controller.api.values`; of the plane only its versions; of `deploy.images`
which images there are and what they run.
Tests: tests/agent.
"""
