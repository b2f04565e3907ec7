"""The simulator held against a cluster: one trace in both, what came of it, and why where they differ.

`compressed_trace` compresses a trace in time, `calibration` measures the cluster's own delays, `cluster_run`
runs the trace on a cluster with pods that play it (`examples/played.py`), `simulated` runs it in the
simulator, and `compare` sets the two `timeline`s side by side; `attribution` finds the cause of each
difference. `parity_run` does all of these in order. Nothing here knows how the cluster came about.
docs/understand/parity.md.

May import: everything of `controller` but `cli`, `operator`, `extender`, `install`; `sim`; never `deploy`.
Tests: tests/parity.
"""
