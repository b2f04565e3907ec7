"""A real Kubernetes control plane as local processes, and nodes that run pods as processes."""
