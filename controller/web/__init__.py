"""HTTP faces of the operator for people and programs: today the queue positions, on demand.

May import: `controller.delegates` and what lies below it; nothing of operator or extender (contract "Arrows
run one way").
Tests: tests/web.
"""
