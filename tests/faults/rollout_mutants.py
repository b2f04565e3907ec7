"""Mutants of elastic rollouts: an edit that undoes what keeps actors right, and the test that finds it.

`python -m tests.faults --mutants --rollouts` tries them, `--found --rollouts` prints what it wrote down. The
row is the part of the design (docs/understand/rollouts-design.md): 1 the planner, 2 the pool, 3 actors, 4 the
step API.
"""

from __future__ import annotations

from tests.faults.cures import Mutant

LENDING = "controller/policy/pool/lending.py"
JOB_ACTORS = "controller/policy/job/rollout_actors.py"
CLIENT = "clients/python/evalstop_client/rollouts.py"
LENDING_TEST = "tests/policy/test_policy_lending.py"
ACTORS_TEST = "tests/policy/test_policy_rollout_actors.py"
CLUSTER_TEST = "tests/operator/test_operator_rollouts.py::test_actors_of_a_step"
STEPS_TEST = "tests/rollouts/test_rollouts_steps.py"
STARVED_TEST = "tests/policy/test_policy_starvation.py"
LATE = "controller/policy/rollout/late.py"
LEAD = "controller/policy/rollout/lead.py"
LEARN = "controller/policy/rollout/learn.py"
RANKED = "controller/policy/rollout/ranked.py"
SAMPLE = "controller/policy/rollout/sample.py"
SAMPLE_TEST = "tests/policy/test_policy_rollout_sample.py"
PLANNER = "controller/steps/planner.py"
PLANNER_TEST = "tests/rollouts/test_rollouts_planner.py"
LEARNING_TEST = "tests/policy/test_policy_rollout_learning.py"
ROOM_TEST = "tests/policy/test_policy_rollout_room.py"
CURVE_TEST = "tests/policy/test_policy_rollout_curve.py"
DISPATCH_TEST = "tests/policy/test_policy_rollout_dispatch.py"
CUT_TEST = "tests/rollouts/test_rollouts_cut.py"

ROLLOUT_MUTANTS: tuple[Mutant, ...] = (
    # 1: the planner
    Mutant(
        "a late start is an error of the plan",
        "1",
        LEARN,
        "    return with_starts(plan.seconds, tuple(meant), tuple(ready), plan.dispatch)\n",
        "    return plan.seconds\n",
        STEPS_TEST,
    ),
    Mutant(
        "who comes late has done its share of one queue",
        "1",
        LATE,
        "    if len(came) == len(wanted) and late <= 0.0:\n        return planned\n",
        "    if len(came) == len(wanted) and dispatch is Dispatch.LONGEST_FIRST:\n        return planned\n",
        LEARNING_TEST,
    ),
    Mutant(
        "who never came has done its share",
        "1",
        LATE,
        "    work = sum(max(0.0, planned - at) for at in wanted)\n",
        "    work = sum(max(0.0, planned - at) for at in wanted[: len(came)])\n",
        LEARNING_TEST,
    ),
    Mutant(
        "who comes when all is done has taken its share",
        "1",
        LATE,
        "        if count == len(came) or found <= came[count]:\n",
        "        if count == len(came):\n",
        LEARNING_TEST,
    ),
    Mutant(
        "a group does not wait for its actor",
        "1",
        LATE,
        "    if dispatch is not Dispatch.LONGEST_FIRST:\n        found = max(found, planned + late)\n",
        "",
        LEARNING_TEST,
    ),
    Mutant(
        "a start that was planned late is late",
        "1",
        LATE,
        "    late = max((is_ - was for is_, was in zip(came, wanted, strict=False)), default=0.0)\n",
        "    late = max(came)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "only the start itself is ahead of generation, not the way to it",
        "1",
        LEAD,
        "    return min(max(start, known[int(SHARE * (len(known) - 1) + 0.5)]), start + MOST_BEFORE)\n",
        "    return min(start, known[-1] + MOST_BEFORE)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "one slow way has all steps' actors ask so early",
        "1",
        LEAD,
        "known[int(SHARE * (len(known) - 1) + 0.5)]), start",
        "known[-1]), start",
        LEARNING_TEST,
    ),
    Mutant(
        "ahead of generation actors start however early",
        "1",
        LEAD,
        "    return min(max(start, known[int(SHARE * (len(known) - 1) + 0.5)]), start + MOST_BEFORE)\n",
        "    return max(start, known[int(SHARE * (len(known) - 1) + 0.5)])\n",
        LEARNING_TEST,
    ),
    Mutant(
        "waiting for GPUs that others have is a part of an actor's way",
        "1",
        LEAD,
        "    return max(0.0, ready - asked - max(0.0, waited - MOST_PASSES))\n",
        "    return max(0.0, ready - asked - 0.0 * waited)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "GPUs that are lent are recalled when actors are to start",
        "1",
        LEAD,
        "    return Due(lead_seconds(start, ways) + (recall if lent else 0.0), lent)\n",
        "    return Due(lead_seconds(start, ways) + 0.0 * recall, lent)\n",
        ROOM_TEST,
    ),
    Mutant(
        "an actor that leaves costs nothing until its GPUs are somebody else's",
        "1",
        "controller/policy/rollout/curve.py",
        "(end + supply.recall if releases(",
        "(end if releases(",
        CURVE_TEST,
    ),
    Mutant(
        "a release costs no recall",
        "1",
        "controller/policy/rollout/idle.py",
        "    return idle > supply.start + supply.recall\n",
        "    return idle > supply.start\n",
        "tests/policy/test_policy_rollout_choice.py",
    ),
    Mutant(
        "a plan that was made by a guess is an error of predictions",
        "1",
        LEARN,
        "so_far.trust.seen(step.rank, step.expected if so_far.known else None, step.seconds)\n",
        "so_far.trust.seen(step.rank, step.expected, step.seconds)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "no plan is ever held against its step",
        "1",
        LEARN,
        "so_far.trust.seen(step.rank, step.expected if so_far.known else None, step.seconds)\n",
        "so_far.trust.seen(step.rank, None, step.seconds)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "a guessed law comes nearer by three times a step only",
        "1",
        LEARN,
        "refit_law(law if so_far.known else scaled_law(law, step.reports), step.reports)\n",
        "refit_law(law, step.reports)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "a law that is known is guessed anew with each step",
        "1",
        LEARN,
        "refit_law(law if so_far.known else scaled_law(law, step.reports), step.reports)\n",
        "refit_law(scaled_law(law, step.reports), step.reports)\n",
        LEARNING_TEST,
    ),
    Mutant(
        "a law is known once a step has ended, whatever it reported",
        "1",
        LEARN,
        "so_far.known or used > 0, trust",
        "so_far.known or used >= 0, trust",
        LEARNING_TEST,
    ),
    Mutant(
        "a law that was known is a guess after a step without reports",
        "1",
        LEARN,
        "so_far.known or used > 0, trust",
        "used > 0, trust",
        LEARNING_TEST,
    ),
    Mutant(
        "in a plan actors give responses away before their share is done",
        "1",
        RANKED,
        "    return min(len(done) - 1, max(0, -int(-cut * len(done) // 1) - 1))\n",
        "    return min(len(done) - 1, 0)\n",
        DISPATCH_TEST,
    ),
    Mutant(
        "in a plan responses move to whoever runs, free slots or not",
        "1",
        RANKED,
        "        if 0 < more < slots:\n            left -= slots - more\n",
        "        if 0 < more:\n            left -= slots\n",
        DISPATCH_TEST,
    ),
    Mutant(
        "an actor gives responses away before its share is done",
        "1",
        CLIENT,
        "            if link.finished >= self.plan.cut * link.given\n",
        "            if link.finished >= 0\n",
        CUT_TEST,
    ),
    Mutant(
        "an actor gives away more responses than fit elsewhere",
        "1",
        CLIENT,
        "            and 0 < len(link.live) <= free - link.free\n",
        "            and 0 < len(link.live)\n",
        CUT_TEST,
    ),
    Mutant(
        "who has given its responses away gets them back",
        "1",
        CLIENT,
        "            if loose and (not link.cut or all(other.cut for other in ready)):\n",
        "            if loose:\n",
        CUT_TEST,
    ),
    Mutant(
        "when all others are lost nobody takes what was given away",
        "1",
        CLIENT,
        "            if loose and (not link.cut or all(other.cut for other in ready)):\n",
        "            if loose and not link.cut:\n",
        CUT_TEST,
    ),
    Mutant(
        "responses of a large step are played one by one where slots are few",
        "1",
        SAMPLE,
        "    chained = -(-len(lengths) // most) if thin == slots else 1\n",
        "    chained = 1\n",
        SAMPLE_TEST,
    ),
    Mutant(
        "a chain in one queue may be longer than all others have to do",
        "1",
        SAMPLE,
        "        largest = math.inf if equal else LARGEST_CHAIN * sum(lengths) / most\n",
        "        largest = math.inf if equal else math.inf\n",
        SAMPLE_TEST,
    ),
    Mutant(
        "groups in a trainer's order differ as those of a sample's many prompts do",
        "1",
        "controller/policy/rollout/even.py",
        "        if together > 1.0:\n",
        "        if together > 1e9:\n",
        SAMPLE_TEST,
    ),
    Mutant(
        "GPUs that change hands are nobody's room",
        "1",
        "controller/policy/rollout/room.py",
        "    return (*larger, (now, room))\n",
        "    return (*larger[:0], (now, room))\n",
        ROOM_TEST,
    ),
    Mutant(
        "an actor's Job is made before its entry is written",
        "2",
        JOB_ACTORS,
        "    for gone in made.delete:\n",
        "    if view.planned is not None and view.generating and made.actors and not made.make:\n"
        "        coming = replace(made.actors[0], number=record.actor_starts, state=ActorState.STARTING)\n"
        "        if record.admission is not None and len(made.actors) < view.planned.actors:\n"
        "            context.act(MakeActor(coming, record.admission.number))\n"
        "    for gone in made.delete:\n",
        CLUSTER_TEST,
    ),
    Mutant(
        "a right of return is ignored",
        "2",
        LENDING,
        "return [self.running[key][1].gpus for key, count in self.rights.items() for _ in range(count)]\n",
        "return []\n",
        LENDING_TEST,
    ),
    Mutant(
        "what was recalled is not reserved",
        "2",
        LENDING,
        "        self.reserved.append(Reserved(key, kept, self.expires, returning))\n",
        "        assert kept is not None\n",
        LENDING_TEST,
    ),
    Mutant(
        "what was recalled is anybody's once it is free",
        "2",
        LENDING,
        "                    self.kept.setdefault(target, []).append((node, here))\n",
        "                    self.free[node] += here\n",
        LENDING_TEST,
    ),
    Mutant(
        "promises of plans are believed",
        "2",
        LENDING,
        "            gain = rollout.gain\n",
        "            gain = float(rollout.wants)\n",
        LENDING_TEST,
    ),
    Mutant(
        "spare actors lower their job's rank",
        "2",
        "controller/policy/job/types.py",
        "        return gang if self.rollout is None else gang + self.rollout.base * self.rollout.gpus\n",
        "        return gang if self.rollout is None else gang + 2 * self.rollout.base * self.rollout.gpus\n",
        ACTORS_TEST,
    ),
    Mutant(
        "GPUs count as released before actors are gone",
        "2",
        JOB_ACTORS,
        "    context.actors_left = len(made.actors) + len(strays)\n",
        "    context.actors_left = 0 * (len(made.actors) + len(strays))\n",
        ACTORS_TEST,
    ),
    Mutant(
        "each thing that is seen of an actor is written",
        "2",
        JOB_ACTORS,
        "    minor = True if made.record == before and events is made.events else None\n",
        "    minor = None\n",
        ACTORS_TEST,
    ),
    Mutant(
        "the number of an actor is used again",
        "2",
        JOB_ACTORS,
        "    starts = max([record.actor_starts, *(actor.number + 1 for actor in actors)])\n",
        "    starts = max([0, *(actor.number + 1 for actor in actors)])\n",
        ACTORS_TEST,
    ),
    Mutant(
        "actors for a step that comes start as soon as it is announced",
        "4",
        "controller/steps/sessions.py",
        "        if left <= 0.0:\n            self._due",
        "        if left <= 1e9:\n            self._due",
        STEPS_TEST,
    ),
    Mutant(
        "steps are planned in the order of their announcements, not of their begins",
        "4",
        PLANNER,
        "heapq.heappush(self._waiting, (begins_at, next(self._order), question, answer))\n",
        "heapq.heappush(self._waiting, (0.0 * (begins_at < 0), next(self._order), question, answer))\n",
        PLANNER_TEST,
    ),
    Mutant(
        "a question that nobody waits for is planned all the same",
        "4",
        PLANNER,
        "            if answer.done():\n                continue  # nobody waits for it any more\n",
        "",
        PLANNER_TEST,
    ),
    Mutant(
        "a pool gives actors to a step that is not due",
        "2",
        JOB_ACTORS,
        "    if not view.due:\n        return 0\n",
        "",
        ACTORS_TEST,
    ),
    Mutant(
        "a trainer that starved has crashed",
        "4",
        "controller/policy/job/starvation.py",
        "return asked and trouble is not None and trouble.exit_code == EXIT_STARVED\n",
        "return False\n",
        STARVED_TEST,
    ),
    Mutant(
        "whoever starves again and again is tried at once",
        "4",
        "controller/policy/job/starvation.py",
        "    return min(MOST, FIRST * 2.0 ** min(times - 1, 32))\n",
        "    return FIRST\n",
        STARVED_TEST,
    ),
    Mutant(
        "a trainer that starved fails its Job",
        "4",
        "controller/workloads/child.py",
        "    if not named and len(rules) < MOST_RULES:\n",
        "    if not named and len(rules) < 0:\n",
        "tests/workloads/test_workloads_child.py",
    ),
    Mutant(
        "nobody is told of an actor that failed",
        "3",
        JOB_ACTORS,
        '        context.event("ActorFailed", message, warning=True)\n',
        "        assert message\n",
        ACTORS_TEST,
    ),
    Mutant(
        "an actor is ready before its engine answers",
        "3",
        "controller/actor/app.py",
        '        raise Refused(503, "NotRegistered", "this actor is not registered with the step API yet")\n'
        "    return",
        '        return {"actor": -1}\n    return',
        "tests/rollouts/test_rollouts_health.py",
    ),
    Mutant(
        "an old attempt is answered",
        "4",
        "controller/steps/app.py",
        "        if attempt != job.attempt:\n",
        "        if attempt > job.attempt:\n",
        STEPS_TEST,
    ),
    Mutant(
        "a new leader refuses the step under way",
        "4",
        "controller/steps/sessions.py",
        "        if step > self.step:\n            self.begin(job, step)\n",
        "        assert step >= 0\n",
        STEPS_TEST,
    ),
    Mutant(
        "tokens by old weights are accepted",
        "4",
        CLIENT,
        '            if (tokens or ended) and frame.get("version") != self.version:\n',
        '            if (tokens or ended) and frame.get("version") is None:\n',
        "tests/rollouts/test_rollouts_faulty.py",
    ),
    Mutant(
        "a step starves while an actor starts",
        "4",
        CLIENT,
        "                    elif now - max(alone_since, self._hoped) >= starve:\n",
        "                    elif now - alone_since >= starve:\n",
        "tests/rollouts/test_rollouts_processes.py::test_a_step_does_not_starve_while_an_actor_starts",
    ),
    Mutant(
        "a sidecar keeps the authority that it started with",
        "4",
        "controller/web/registration.py",
        "            if stamp == self._stamp:\n",
        "            if self._stamp != (0, 0):\n",
        "tests/rollouts/test_rollouts_processes.py::test_a_renewed_authority_is_taken_up_by_sidecars",
    ),
    Mutant(
        "a run under way is not told of another authority",
        "4",
        JOB_ACTORS,
        "    if record.run.attempt == record.admission.number and context.observed.run_written is None:\n",
        "    if record.run.attempt < 0:\n",
        ACTORS_TEST,
    ),
    Mutant(
        "an actor takes a place of its gang",
        "2",
        "controller/extender/views.py",
        '    return Bound(key, number or 0, node, workloads.gpus(pod["spec"]), _actor(metadata["labels"]))\n',
        '    return Bound(key, number or 0, node, workloads.gpus(pod["spec"]))\n',
        "tests/extender/test_extender_ledger_sync.py",
    ),
    Mutant(
        "a pod that is seen before its Job is on its way out",
        "3",
        "controller/workloads/actor_jobs.py",
        "            seen = ActorSeen(number, deleting=deleting, bound=_bound(left))\n",
        "            seen = ActorSeen(number, deleting=deleting or True, bound=_bound(left))\n",
        "tests/workloads/test_workloads_actor_jobs.py",
    ),
    Mutant(
        "a pod whose Job is gone is forgotten",
        "3",
        "controller/workloads/actor_jobs.py",
        "number is not None and _is_of_gone_job(name, number, pod, owner) and not is_terminal(pod):\n",
        "number is not None and number < 0 and not is_terminal(pod):\n",
        "tests/workloads/test_workloads_actor_jobs.py",
    ),
)
