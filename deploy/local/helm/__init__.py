"""Helm, built from its Go module like the control plane: `recipe.HELM`, and `client.Helm` that runs it."""
