"""Notifications: tells receivers, as CloudEvents, of marks, stops, resumes and outcomes of runs.

A process of its own, `python -m controller.notify`, which reads RLHFJobs and writes nothing. Whatever its
receivers do, the operator waits for none of them.
May import: everything of `controller` but `cli`, `operator`, `extender`, `install`, `parity` (contract
"Arrows run one way").
Tests: tests/notify.
"""
