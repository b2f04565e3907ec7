"""`evalstop top` on a terminal: a list that is followed, filtered and sorted, and what a key does with a row.

Loaded by `top` alone, and only where it writes to a terminal: it needs the package `textual`, which no
image of a cluster has (`pip install 'evalstop[top]'`).

May import: the other modules of `controller.cli`, `textual`; `rows` and `wishes` nothing that draws.
Tests: tests/cli/test_cli_top.py.
"""
