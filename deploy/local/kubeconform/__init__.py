"""kubeconform, and JSON schemas for it from the OpenAPI of a control plane that runs."""
