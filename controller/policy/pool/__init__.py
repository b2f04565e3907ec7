"""One pool's plan.

Decided here: which jobs of a GPUPool are released, admitted, preempted or held back, for whom GPUs are
reserved, who gets a residency in a worker group and which groups open and close (`plan_pool`, from a
`PoolSnapshot`), and what of it is written to each job (`outcomes`).
May import: `job`, `fleet`, `queueing`, `node`, `sharing`.
Tests: tests/policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.doors import lazy

if TYPE_CHECKING:
    from controller.policy.pool.best_fit import *
    from controller.policy.pool.delegates import *
    from controller.policy.pool.demotion import *
    from controller.policy.pool.gpu_accounting import *
    from controller.policy.pool.group_plan import *
    from controller.policy.pool.group_record import *
    from controller.policy.pool.groups import *
    from controller.policy.pool.handovers import *
    from controller.policy.pool.job_outcomes import *
    from controller.policy.pool.lending import *
    from controller.policy.pool.placement import *
    from controller.policy.pool.plan import *
    from controller.policy.pool.planner import *
    from controller.policy.pool.reservations import *
    from controller.policy.pool.residencies import *

SHOWS = {
    "best_fit": "FreeGpus",
    "delegates": "DELEGATIONS ordered_by",
    "demotion": "LOWEST REASON give_way",
    "gpu_accounting": "free_gpus",
    "group_plan": "Errand GroupHeard GroupSight GroupStep ask_again errands plan_group unready waits",
    "group_record": "ANSWERS COUNTS ENDS GroupRecord GroupResident closed group_view restarted "
    "with_residents",
    "groups": "shares",
    "handovers": "HANDOVERS_KEPT Handover newest_handovers",
    "job_outcomes": "Verb Write after outcomes",
    "placement": "NodeRoom Shape SlotRoom fit_job",
    "plan": "plan_pool",
    "planner": "Planner",
    "residencies": "profile_of",
    "reservations": "reservations RESERVATIONS_MAX",
}
__all__ = [name for names in SHOWS.values() for name in names.split()]
__getattr__ = lazy(__name__, SHOWS)
