"""A pool in miniature: nodes, jobs, and what the pool keeps from pass to pass; `plan_pool` is asked twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from controller.policy.actor_types import Lending
from controller.policy.group_types import PoolSharing
from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobView, NodeView, PolicySpec, PoolPlan, PoolSnapshot, Quota


@dataclass(frozen=True)
class Op:
    """One thing that happens; the numbers choose to whom and how."""

    kind: str
    a: int
    b: int


def histories(kinds: Sequence[str], least: int, most: int) -> st.SearchStrategy[list[Op]]:
    """Return a strategy of lists of what happens, one after the other."""
    op = st.builds(Op, st.sampled_from(kinds), st.integers(0, 63), st.integers(0, 63))
    return st.lists(op, min_size=least, max_size=most)


class PoolWorld:
    """Nodes and jobs; a world that derives from it carries plans out.

    Attributes:
        foreign: GPUs by node of pods that are nobody's.
    """

    def __init__(
        self,
        policy: PolicySpec | None = None,
        nodes: dict[str, int] | None = None,
        quotas: Sequence[Quota] = (),
        recall_seconds: float = 10.0,
    ) -> None:
        self.policy = policy or PolicySpec("fifo", {"backfill": True})
        self.nodes = nodes or {"n1": 4, "n2": 4, "n3": 2}
        self.quotas = tuple(quotas)
        self.closed: set[str] = set()
        self.foreign: Counter[str] = Counter()
        self.jobs: dict[str, JobView] = {}
        self.lending = Lending(True, recall_seconds)
        self.now, self.count = 0.0, 0
        self.plans: list[PoolPlan] = []

    def sharing(self) -> PoolSharing | None:
        """Worker groups; None: the pool offers no sharing."""
        return None

    def snapshot(self) -> PoolSnapshot:
        views = [NodeView(n, g, self.foreign[n]) for n, g in self.nodes.items()]
        return PoolSnapshot(
            "p",
            self.policy,
            tuple(v for v in views if v.name not in self.closed),
            tuple(self.jobs.values()),
            closed=tuple(v for v in views if v.name in self.closed),
            quotas=self.quotas,
            lending=self.lending,
            sharing=self.sharing(),
        )

    def planned(self) -> PoolPlan:
        """Plan, the same twice."""
        snapshot = self.snapshot()
        plan = plan_pool(snapshot, self.now)
        assert plan == plan_pool(snapshot, self.now)
        self.plans.append(plan)
        return plan

    def plan(self) -> PoolPlan:
        """Plan, and carry it out."""
        raise NotImplementedError

    def happen(self, op: Op) -> PoolPlan:
        getattr(self, op.kind)(op.a, op.b)
        return self.plan()

    def node(self, a: int, b: int) -> None:
        """A node is closed, or open again."""
        self.closed ^= {sorted(self.nodes)[a % len(self.nodes)]}
