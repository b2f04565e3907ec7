"""EvalStop on a kind cluster: real kubelets, containers and pod networks on one machine (`make kind`)."""
