"""The dashboard: what EvalStop sees and decides, for people. It only reads, and shows nobody more than the
API server would.

`local` serves it on loopback with the caller's own rights (``evalstop dashboard``), `process` in a cluster
behind TokenReview and SubjectAccessReview (``python -m controller.web.dashboard``).

May import: what `controller.web` may.
Tests: tests/web, tests/browser.
"""
