"""The simulator: the production policy (`controller.policy`, unchanged) on virtual GPUs and virtual time.

May import: `controller.policy`, `controller.names`, `controller.bounded`: nothing else of the product
(contract "The simulator drives the brain").
Tests: tests/sim, tests/sim_experiments, tests/sim_rules,
tests/sim_traces, tests/sim_workloads.
"""
