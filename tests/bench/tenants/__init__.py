"""`python -m tests.bench tenants`: honest jobs beside hostile ones, against the same jobs alone.

On a real control plane with the operator as a process under its own identity, and pods that nobody runs
(`tests/support/fake_kubelet.py`): their pages are served here, and by the hostile process.
"""
