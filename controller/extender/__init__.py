"""The scheduler extender: tells kube-scheduler whose a node's GPUs are, from memory only."""
