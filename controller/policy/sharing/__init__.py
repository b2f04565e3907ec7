"""Shared groups of training workers: residents, turns, charges, and what becomes of a turn.

Decided here: when enough is known of a kind of job (`Profile`), and when it is measured anew (`due`, `look`);
whether a job fits beside a group's residents (`fit_into`); who gets a residency or a new group, and for what
the first of the others waits (`plan_placements`); whose turn is next (`TurnQueue`, with its bound on waits);
what residents are charged (`Charges`); and who has to leave when somebody stays too slow (`too_slow`). From
measured turns and switch times, sizes of states, the pool's settings and the order of the queue. Times are
whole microseconds. And the protocol of a turn, as two pure state machines (`coordinator`, `member`) and their
`messages`. Nothing here knows pods, nodes or devices.
May import: no other room that decides (contract "Sharing is for operator, groups and simulator alike").
Tests: tests/policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.doors import lazy

if TYPE_CHECKING:
    from controller.policy.sharing import coordinator as coordinator
    from controller.policy.sharing import member as member
    from controller.policy.sharing import messages as messages
    from controller.policy.sharing.charging import *
    from controller.policy.sharing.fit import *
    from controller.policy.sharing.measure import *
    from controller.policy.sharing.messages import *
    from controller.policy.sharing.overlap import *
    from controller.policy.sharing.place import *
    from controller.policy.sharing.profile import *
    from controller.policy.sharing.reservation import *
    from controller.policy.sharing.turns import *
    from controller.policy.sharing.types import *
    from controller.policy.sharing.watch import *

SHOWS = {
    "charging": "UNITS Charges gpu_seconds",
    "coordinator": "coordinator",
    "fit": "Fit Misfit alone fit_into",
    "member": "member",
    "messages": (
        "messages Answer Died Forget FromMember Gone Granted Load Loaded Ran Refused Released Run"
        " ToMember Token TurnOver Written"
    ),
    "measure": "LOOK_AGAIN Look Pace Paces ReportedTurn TurnsOf due look measured outdated",
    "overlap": "Player player slowdowns",
    "place": "NO_GROUP_FITS WAYS Placed SharingPlan Wait Way plan_placements residencies why_not",
    "profile": "LEAST_STEPS MOST_STEPS MOST_TURNS Profile RecordedTurn profile_from",
    "reservation": "GroupReservation NEVER reserve",
    "turns": "TurnQueue choose longest_wait",
    "types": "MOST_RESIDENTS SECOND Family GroupSupply SharingPlacement Resident SharingSettings WorkerGroup",
    "watch": "Slowness TooSlow too_slow",
}
__all__ = [name for names in SHOWS.values() for name in names.split()]
__getattr__ = lazy(__name__, SHOWS)
