"""The simulator: the production policy (`controller.policy`, unchanged) on virtual GPUs and virtual time."""
