"""What installs and runs EvalStop: images, Helm chart, kind, a local control plane."""
