"""The scheduler extender: tells kube-scheduler whose a node's GPUs are. A process of its own, from memory only."""
