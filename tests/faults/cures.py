"""For each cure of docs/understand/reliability.md an edit that undoes it, by the row of the issue.

Those without a test are found by the machine (`mutants`). The others are cures outside policy and store, or
against what the world does not have: their test is named.
"""

from __future__ import annotations

from dataclasses import dataclass

LIVES = "controller/policy/job/lives.py"
HISTORY = "controller/policy/job/evals.py"
BESTS = "controller/policy/job/bests.py"
RULE_IN_USE = "controller/policy/job/rule_in_use.py"
SAFEKEEPING = "controller/policy/job/checkpoints.py"
STOPPING = "controller/policy/job/stop.py"
RETENTION = "controller/policy/job/retention.py"
TAKING_BACK = "controller/policy/job/withdrawal.py"
ENDINGS = "controller/policy/job/endings.py"
CLAIMING = "controller/policy/job/location_claim.py"
LOST_BESTS = "controller/policy/job/lost_bests.py"
JUDGE = "controller/checkpoints/judge.py"
SECURING = "controller/checkpoints/securing.py"


@dataclass(frozen=True)
class Mutant:
    """``old`` in ``file`` becomes ``new``. ``test``: what finds it, where the machine cannot."""

    name: str
    row: str
    file: str
    old: str
    new: str
    test: str = ""


MUTANTS: tuple[Mutant, ...] = (
    # 1: the same step on another branch
    Mutant(
        "a pin stands for a step, whoever made it",
        "1",
        "controller/policy/job/record.py",
        "return (self.attempt, self.best_step) == (best.attempt, best.step)",
        "return self.best_step == best.step",
    ),
    Mutant(
        "evals of a branch that was left stay",
        "1",
        HISTORY,
        "    return rewind(leaving(after), use, after.lives[-1].resumed)\n",
        "    return after\n",
    ),
    Mutant(
        "anybody's checkpoint of the step serves",
        "1",
        JUDGE,
        "        found: Verdict | None = None\n        for attempt in own:\n",
        "        if own and (whole := [a for a, d in differences.items() if d is None]):\n"
        "            return Verdict(None, SAVE_RECORD, whole[0])\n"
        "        found: Verdict | None = None\n        for attempt in own:\n",
    ),
    Mutant(
        "of many processes the newest are remembered, not those on the way",
        "1",
        LIVES,
        "lives=_kept((*former, new)), ",
        "lives=(*former, new)[-LIVES_KEPT:], ",
        "tests/policy/test_policy_identity.py"
        "::test_the_life_that_all_restarts_went_on_from_is_kept_however_many_there_are",
    ),
    Mutant(
        "of the step that a process started from only the one before counts",
        "1",
        "controller/checkpoints/inventory.py",
        "    anew = [life for life in branch if life.after == step]\n",
        "    anew: list[BranchLife] = []\n",
    ),
    Mutant(
        "what a process started from is not on its way if it was thought to be left",
        "10",
        LIVES,
        "after if lives[i].attempt in within and after > 0 else None)",
        "None)",
        "tests/policy/test_policy_identity.py::test_whose_checkpoints_lie_on_the_way_to_an_eval",
    ),
    Mutant(
        "an eval of the step that a process started from is left out",
        "1",
        HISTORY,
        "        record = _measured_again(_first_of_life(record, use, point), use, point)\n",
        "        record = _first_of_life(record, use, point)\n",
    ),
    Mutant(
        "an eval far beyond those that it bears out counts with them where a branch is left",
        "7",
        "controller/policy/stopping/gate.py",
        "any(self._bears_out(memory.last[0], score, other) for n",
        "any(len(scores) > 1 for n",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_what_bears_others_out_and_is_far_beyond_them_is_borne_out_by_none",
    ),
    Mutant(
        "what others refuted is no best though another branch bears it out",
        "7",
        HISTORY,
        ".difference(gone, waits)\n    counting =",
        ".difference(gone, waits, rule.refuted)\n    counting =",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_what_others_refuted_is_the_best_again_once_another_branch_bears_it_out",
    ),
    Mutant(
        "an eval that others refuted stays the best once its step is evaluated again",
        "1",
        HISTORY,
        "{*_unsure(use, rule), *rule.refuted}",
        "_unsure(use, rule)",
        "tests/policy/test_policy_identity.py"
        "::test_what_others_have_refuted_is_no_best_when_its_step_is_evaluated_again",
    ),
    Mutant(
        "the pin of a best that was refuted elsewhere has no score",
        "1",
        BESTS,
        "    return on_account_of(record, {(best.attempt, best.step)}, score=best.score)\n",
        "    return record\n",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_a_best_that_was_refuted_elsewhere_has_its_score_in_its_pin_again",
    ),
    Mutant(
        "a resumed run that is stopped before it ran goes on from its latest checkpoint",
        "17",
        "controller/policy/job/stop.py",
        "        restored=None if ran else context.record.restored,\n",
        "        restored=None,\n",
        "tests/policy/test_policy_endings.py"
        "::test_a_resumed_run_that_is_stopped_before_it_ran_still_goes_on_from_that_checkpoint",
    ),
    Mutant(
        "a process whose start no claim has told is followed back over once its successor starts there",
        "1",
        "controller/policy/job/lives.py",
        " if record.lives and _start_unknown(record) else record\n",
        " if False else record\n",
        "tests/policy/test_policy_identity.py"
        "::test_what_came_before_a_process_whose_start_nobody_told_is_not_on_its_successors_way",
    ),
    Mutant(
        "a process whose start is gone is taken for one of the branch that was seen last",
        "10",
        "controller/checkpoints/ownership.py",
        "    return survey.left_by_none_of(request.known)\n",
        "    return False\n",
        "tests/checkpoints/test_checkpoints_lives.py"
        "::test_a_process_began_elsewhere_if_an_unseen_one_has_saved_and_its_own_start_is_gone",
    ),
    Mutant(
        "what a late claim noted lay there before its process, though a later one saved it",
        "1",
        "controller/checkpoints/judge.py",
        " and not self._seen_later(others[-1], candidate.step):\n",
        ":\n",
        "tests/checkpoints/test_checkpoints_lives.py"
        "::test_what_the_next_process_saved_is_not_what_one_started_from_whose_claim_came_late",
    ),
    Mutant(
        "what a late claim noted lay there before its process, though a process saved it that no claim noted",
        "1",
        "controller/policy/job/access_requests.py",
        "    later = lives.later(context.record, request.attempt) if request.branch else ()\n",
        "    later = ()\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "what was judged is not what is linked for a resume",
        "3",
        "controller/checkpoints/retaining.py",
        " or (judged and content.files().keys() != judged.keys()):",
        ":",
        "tests/checkpoints/test_checkpoints_lives.py"
        "::test_what_rotation_takes_between_the_verdict_and_the_links_is_missed",
    ),
    Mutant(
        "of several that started from one step only the newest is on the way",
        "1",
        LIVES,
        " or (after == least and after > 0)):",
        "):",
        "tests/policy/test_policy_identity.py"
        "::test_the_life_that_all_restarts_went_on_from_is_kept_however_many_there_are",
    ),
    Mutant(
        "a best whose process has ended is looked for without an end",
        "1",
        "controller/policy/job/lost_bests.py",
        " or lives.has_ended(context.record, waited.attempt):\n",
        ":\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "the first process that is seen is taken for the first of its attempt",
        "1",
        "controller/policy/job/location_claim.py",
        "    alone = first and not lives.after_unseen(record)\n",
        "    alone = first\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "a pin that failed and the claim that it lacks wait for each other",
        "1",
        "controller/policy/job/location_claim.py",
        "            again = again and (not tries or may_tell(context))\n",
        "            again = False\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "what lay there before a run is its own, once the trainer has removed .evalstop",
        "1",
        "controller/checkpoints/ownership.py",
        "up_to=made.newest)",
        "up_to=-1)",
        "tests/checkpoints/test_checkpoints_folder_gone.py"
        "::test_what_lay_there_when_the_folder_was_claimed_is_nobodys_still",
    ),
    Mutant(
        "pins that the trainer has removed with .evalstop are held to be there",
        "1",
        "controller/policy/job/folder_gone.py",
        "        _forget_pins(context, answered.path)\n",
        "        pass\n",
        "tests/policy/test_policy_folder_gone.py::test_what_a_user_pinned_is_pinned_again",
    ),
    Mutant(
        "a claim that gave way once waits for the pin that lacks its answer",
        "1",
        "controller/policy/job/location_claim.py",
        "again and (not tries or may_tell(context))\n",
        "again and not tries\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "a first eval that waited stays the best of a branch that was left",
        "7",
        "controller/policy/job/evals.py",
        "    if best is not None and best.step in agreeing:\n",
        "    if best is not None:\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "a first eval that was borne out waits anew once the run went back to it",
        "7",
        "controller/policy/job/evals.py",
        "        settled |= counted.difference(use.unscaled(former.state))\n",
        "        pass\n",
        "tests/policy/test_policy_identity.py"
        "::test_a_first_eval_that_was_borne_out_stays_so_however_often_the_run_goes_back",
    ),
    Mutant(
        "an eval that was borne out is dropped by a collapse after the run went back to it",
        "7",
        HISTORY,
        "    gone = [step for step in use.dropped(state) if step not in rule.settled]\n",
        "    gone = [*use.dropped(state)]\n",
        "tests/policy/test_policy_identity.py"
        "::test_a_best_that_was_borne_out_outlives_a_collapse_after_the_run_went_back_to_it",
    ),
    Mutant(
        "one eval far above one that was borne out agrees with it",
        "7",
        RULE_IN_USE,
        "        return open_ if len(open_) > 1 else ()\n",
        "        return found\n",
        "tests/policy/test_policy_identity.py"
        "::test_one_eval_far_above_one_that_was_borne_out_does_not_agree_with_it",
    ),
    Mutant(
        "what counted without a scale is sure once the run goes back to it",
        "7",
        HISTORY,
        "        settled |= counted.difference(use.unscaled(former.state))\n",
        "        settled |= counted\n",
        "tests/policy/test_policy_identity.py"
        "::test_what_counted_without_a_scale_is_still_in_doubt_when_the_run_goes_back_to_it",
    ),
    Mutant(
        "what others have refuted is believed again once the run goes back",
        "7",
        HISTORY,
        "        refuted |= judged.difference(counted, use.waiting(former.state))\n",
        "        pass\n",
        "tests/policy/test_policy_identity.py"
        "::test_what_others_have_refuted_is_not_believed_again_when_the_run_goes_back",
    ),
    Mutant(
        "what took the best's place waits anew when the rule begins anew",
        "10",
        HISTORY,
        "    rule = _remembered(record, use, _anew(record, use), record.evals, others)\n",
        "    rule = use.remember(_anew(record, use), record.evals, others)\n",
        "tests/policy/test_policy_identity.py"
        "::test_what_took_the_bests_place_keeps_it_when_the_rule_begins_anew_with_it",
    ),
    Mutant(
        "what is judged no more is judged again by another rule",
        "7",
        HISTORY,
        "    sure = use.counted(base, kept[unjudged:])",
        "    sure = {p.step for p in use.counting(rule, kept)}",
        "tests/policy/test_policy_identity.py"
        "::test_what_is_judged_no_more_counts_on_when_its_user_changes_the_rule",
    ),
    Mutant(
        "what no eval will bear out is let go with the evals kept",
        "19",
        HISTORY,
        "    awaiting = awaiting or undecided_for_good(record, use, evals, best)\n",
        "",
        "tests/policy/test_policy_identity.py"
        "::test_what_no_eval_will_ever_bear_out_stays_pinned_when_it_is_older_than_the_evals_kept",
    ),
    Mutant(
        "a process's evals are taken back with each of its saves",
        "1",
        HISTORY,
        "    if lives.start(after) == lives.start(record) or ",
        "    if after.lives == record.lives or ",
        "tests/policy/test_policy_identity.py::test_a_process_that_saves_does_not_have_its_evals_taken_back",
    ),
    Mutant(
        "two evals that agreed and were dropped by a bad one let it count at once",
        "7",
        "controller/policy/stopping/gate.py",
        "        drops = memory.drops + (not memory.dropped)\n",
        "        drops = memory.drops + 1\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "what a process started from is the pin of the save before it",
        "1",
        SECURING,
        "            if not _of_left_branch(survey, request, step, found):\n",
        "            if True:\n",
        "tests/checkpoints/test_checkpoints_lives.py",
    ),
    Mutant(
        "the latest checkpoint is copied whosever it is",
        "1",
        SAFEKEEPING,
        "branch = lives.branch(record, lives.newest(record)) if operation is Operation.RETAIN else ()",
        "branch = ()",
        "tests/policy/test_policy_withdrawal.py"
        "::test_a_new_best_under_a_verdict_that_stands_is_pinned_and_copied_too",
    ),
    # 2: a newer best while a secure Job runs
    Mutant(
        "an answer is recorded without its score",
        "2",
        SAFEKEEPING,
        "        waited.score,\n        waited.attempt,\n        waited.baseline,\n",
        "        0.0,\n        waited.attempt,\n        waited.baseline,\n",
    ),
    Mutant(
        "an answer is recorded with the score of the best by now",
        "2",
        SAFEKEEPING,
        "        waited.score,\n        waited.attempt,\n        waited.baseline,\n",
        "        (context.record.best or waited).score,\n        waited.attempt,\n        waited.baseline,\n",
    ),
    # 3: torn saves, and what rotation took
    Mutant(
        "looking again for a lost best begins the tries of the others anew",
        "3",
        LOST_BESTS,
        "    if waited is not None and (waited.tries < LOST_TRIES or ",
        "    if waited is not None and (waited.tries < FINISH_TRIES or ",
        "tests/policy/test_policy_endings.py"
        "::test_looking_again_for_a_lost_best_keeps_no_other_from_being_given_up",
    ),
    Mutant(
        "what stands in for a lost best goes before what is above it",
        "3",
        SAFEKEEPING,
        " or (awaiting is not None and (best != record.best or _comes_between(context, awaiting)))",
        "",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_evals_above_the_best_go_before_what_stands_in_for_it",
    ),
    Mutant(
        "whoever has begun a save has saved",
        "3",
        JUDGE,
        "            found = Verdict(differences[attempt] or over, SAVE_RECORD, attempt)\n",
        "            found = Verdict(None, SAVE_RECORD, attempt)\n",
    ),
    Mutant(
        "a record counts though another process saved over it",
        "3",
        JUDGE,
        "            over = _saved_over(attempt, ",
        "            over = None and (attempt, ",
        "tests/checkpoints/test_checkpoints_lives.py"
        "::test_a_step_that_another_process_saved_anew_is_not_the_former_ones",
    ),
    Mutant(
        "files are not looked at again once they are linked",
        "3",
        SECURING,
        "        if _written(store, candidate) != before:\n"
        '            raise Damaged("files came, went or were written while it was being linked")\n',
        "",
        "tests/checkpoints/test_checkpoints_lives.py::test_files_that_change_while_they_are_linked_are_not_pinned",
    ),
    Mutant(
        "what was judged is not what is linked",
        "3",
        SECURING,
        "_times(survey.looked_at(candidate))\n",
        "_written(store, candidate)\n",
        "tests/checkpoints/test_checkpoints_lives.py"
        "::test_what_rotation_takes_between_the_verdict_and_the_links_is_missed",
    ),
    Mutant(
        "what was linked is not compared with what was there",
        "3",
        SECURING,
        "        if {name: file.size for name, file in staged.manifest.items()} != content.files():\n"
        '            raise Damaged("what was linked is not what was there before")\n',
        "",
        "tests/checkpoints/test_checkpoints_lives.py::test_a_copy_that_came_out_short_is_not_a_pin",
    ),
    Mutant(
        "a save that is not through counts by its marker file",
        "3",
        JUDGE,
        "        if evidence.unfinished:\n            return _Alone(Verdict(evidence.unfinished))\n",
        "",
        "tests/checkpoints/test_checkpoints_whole.py",
    ),
    Mutant(
        "what whole ones beside it have may be missing",
        "3",
        JUDGE,
        "        if lacking:\n",
        "        if lacking and not lacking:\n",
        "tests/checkpoints/test_checkpoints_whole.py",
    ),
    Mutant(
        "what lies in a folder that is away is missing",
        "3",
        "controller/checkpoints/access.py",
        "            if store is not None and not store.exists():\n",
        "            if False:\n",
        "tests/checkpoints/test_checkpoints_unreadable.py"
        "::test_a_location_that_is_away_is_unreachable_and_comes_back",
    ),
    Mutant(
        "a stale handle is an absence",
        "3",
        "controller/checkpoints/volume.py",
        "(FileNotFoundError, NotADirectoryError) as error:\n                # ESTALE is no absence:",
        "OSError as error:\n                # ESTALE is no absence:",
        "tests/checkpoints/test_checkpoints_unreadable.py"
        "::test_stale_handles_of_a_network_file_system_are_no_absence",
    ),
    Mutant(
        "a pin that is missing is let go at once",
        "3",
        LOST_BESTS,
        "    if problem.reason == CHANGED:\n        if damaged is not None:",
        "    if damaged is not None:\n        access_requests.release(context, damaged.path)\n"
        "    if problem.reason == CHANGED:\n        if damaged is not None:",
        "tests/policy/test_policy_changed.py::test_a_pin_that_is_missing_is_asked_for_anew_and_not_let_go",
    ),
    # 4: another trainer's page
    Mutant(
        "a page of another RLHFJob counts", "4", LIVES, "        if page.uid != uid:\n", "        if False:\n"
    ),
    Mutant(
        "a page of another attempt counts",
        "4",
        LIVES,
        "        if page.attempt.number != number:\n",
        "        if False:\n",
    ),
    Mutant(
        "an earlier process speaks again",
        "4",
        LIVES,
        "    if earlier or older_pod:\n",
        "    if False:\n",
        "tests/policy/test_policy_identity.py::test_an_earlier_process_says_nothing_any_more",
    ),
    Mutant(
        "a page that does not say whose it is stops the run",
        "4",
        "controller/policy/job/verdicts.py",
        "    if read and not lives.identified(record, scrape):\n",
        "    if False:\n",
        "tests/policy/test_policy_identity.py::test_nobody_is_stopped_on_a_page_that_does_not_say_whose_it_is",
    ),
    # 5: eyes closed once a stop is decided
    Mutant(
        "a stop stands though its rule says so no more",
        "5",
        TAKING_BACK,
        "    if verdicts.stands(context, use) is None:\n",
        "    if False:\n",
        "tests/policy/test_policy_withdrawal.py::test_a_run_that_rises_to_a_new_best_while_its_copy_is_made_is_not_stopped",
    ),
    Mutant(
        "a stop stands though the mode forbids it",
        "5",
        TAKING_BACK,
        "    if desired.mode is not Mode.ENFORCE:\n",
        "    if False:\n",
        "tests/policy/test_policy_withdrawal.py::test_mode_and_cap_are_obeyed_until_the_suspend",
    ),
    Mutant(
        "a new best under a stop is not pinned",
        "5",
        RETENTION,
        "        return True\n    if wanted is not None or secured is None:\n        unsettle(context)\n",
        "        return True\n    if secured is None:\n        unsettle(context)\n",
        "tests/policy/test_policy_withdrawal.py::test_a_new_best_under_a_verdict_that_stands_is_pinned_and_copied_too",
    ),
    Mutant(
        "a stop asks for no fresh page",
        "5",
        TAKING_BACK,
        "    if scrape is not None and scrape.at > settled and scrape.outcome is ScrapeOutcome.OK:\n",
        "    if True:\n",
        "tests/policy/test_policy_withdrawal.py::test_just_before_the_suspend_it_is_read_once_more",
    ),
    Mutant(
        "a copy has an hour",
        "5",
        "controller/checkpoints/access_jobs.py",
        '            "backoffLimit": 0,\n',
        '            "backoffLimit": 0,\n            "activeDeadlineSeconds": 3600,\n',
        "tests/checkpoints/test_checkpoints_access_jobs.py",
    ),
    Mutant(
        "a copy begins from zero",
        "5",
        "controller/checkpoints/staging.py",
        "            elif _taken(parent, name, str(own)):\n                return str(own)\n",
        "            else:\n                clear(parent, name)\n",
        "tests/checkpoints/test_checkpoints_goes_on.py",
    ),
    # 6: a user's stop whose copy cannot be made
    Mutant(
        "a user's stop waits for its copy for ever",
        "6",
        RETENTION,
        "    if hopeless(context, USER_TRIES, USER_STILL) or _lost_meanwhile(context, decision, wanted):\n",
        "    if False:\n",
        "tests/policy/test_policy_withdrawal.py::test_a_user_s_stop_suspends_though_no_copy_can_be_made_and_copies_on",
    ),
    Mutant(
        "a user's stop goes through all evals whose checkpoints are gone",
        "6",
        RETENTION,
        " or _lost_meanwhile(context, decision, wanted):\n",
        ":\n",
        "tests/policy/test_policy_endings.py"
        "::test_a_users_stop_does_not_go_through_all_evals_whose_checkpoints_are_gone",
    ),
    Mutant(
        "a user's stop waits for a save that is still to come",
        "6",
        SAFEKEEPING,
        "        if left or early:  #",
        "        if left:  #",
        "tests/policy/test_policy_endings.py"
        "::test_a_users_stop_does_not_wait_for_a_checkpoint_that_the_trainer_has_not_saved",
    ),
    Mutant(
        "in Shadow a user's stop of a refused run that somebody started by hand is not carried out",
        "6",
        "controller/policy/job/plan.py",
        "        and not _stopped_by_user(context)\n",
        "",
        "tests/policy/test_policy_watched.py::test_what_somebody_starts_meanwhile_is_suspended",
    ),
    Mutant(
        "a user's stop cannot be called off",
        "6",
        TAKING_BACK,
        'return Problem("CalledOff", "spec.runState is Run again") if again else None',
        "return None",
        "tests/policy/test_policy_withdrawal.py::test_run_takes_a_user_s_stop_back_until_the_suspend_and_resumes_after_it",
    ),
    # 7: one eval that says nothing
    Mutant(
        "every eval counts, however far it jumps",
        "7",
        "controller/policy/stopping/gate.py",
        "        if limit is None or abs(point.score - memory.last[0]) <= limit"
        " or memory.drops >= self.params.most:\n",
        "        if True:\n",
        "tests/policy/test_policy_gate.py::test_what_counts",
    ),
    Mutant(
        "what bears a jump out counts, however far from it",
        "7",
        "controller/policy/stopping/gate.py",
        "                memory, counts = self._count(memory, held[0], noise.error(held[0]))\n",
        "                for one in held:\n"
        "                    memory, more = self._count(memory, one, noise.error(one))\n"
        "                    counts += more\n"
        "                held = held[:1]\n",
        "tests/policy/test_policy_gate.py::test_what_counts",
    ),
    Mutant(
        "evals that agree are left out beside a doubtful best",
        "7",
        BESTS,
        "    agree = agree if best.step in agree else ()\n",
        "",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_evals_that_agree_above_a_doubtful_best_are_the_ones_beside_it",
    ),
    Mutant(
        "evals that waited when the rule began anew are compared with those that count",
        "7",
        BESTS,
        "            best = use.best_of(use.counting(rule, evals))\n",
        "            pass\n",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_evals_that_waited_when_the_rule_began_anew_are_no_best_beside_any_that_counts",
    ),
    Mutant(
        "what waits is compared with a best whose checkpoint is lost",
        "7",
        BESTS,
        "        bar = keepable(known, use.direction, use) or best\n",
        "        pass\n",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_an_eval_that_waits_above_what_stands_in_for_a_lost_best_is_pinned_beside_it",
    ),
    Mutant(
        "bests of before all that lies there are looked for one by one",
        "1",
        "controller/policy/job/lost_bests.py",
        "    while now is not None and (now.attempt, now.step) in others and",
        "    while False and",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_bests_of_before_all_that_lies_there_are_not_looked_for_one_by_one",
    ),
    Mutant(
        "what agrees with a lost best is left out beside what stands in for it",
        "7",
        BESTS,
        "    if not lost and any((p.attempt, p.step) == of_best",
        "    if any((p.attempt, p.step) == of_best",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_beside_what_stands_in_for_a_lost_best_is_the_other_that_agrees_with_it",
    ),
    Mutant(
        "a resume from the best takes a copy that is worse than the pin",
        "14",
        "controller/policy/job/resume.py",
        " and not pin.copies(record.retained) else ()\n",
        " and _not_copied(context) else ()\n",
        "tests/policy/test_policy_endings.py"
        "::test_a_resume_from_the_best_takes_the_pin_that_no_stop_has_copied",
    ),
    Mutant(
        "what waits above a best whose pin fails is pinned only once that is given up",
        "7",
        SAFEKEEPING,
        "(best != record.best or _comes_between(context, awaiting))",
        "best != record.best",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "what waits is let go once the best's checkpoint is lost",
        "7",
        BESTS,
        "        awaiting = use.best_of([waited], awaiting)\n",
        "        pass\n",
        "tests/policy/test_policy_unsettled_bests.py::test_what_waits_goes_on_waiting_when_the_best_is_lost",
    ),
    Mutant(
        "what waited when the rule began anew is let go beside a doubtful best",
        "7",
        BESTS,
        "        return best, use.best_of(others, _other_than(best, use, rule, evals, record))\n",
        "        return best, _other_than(best, use, rule, evals, record)\n",
        "tests/policy/test_policy_unsettled_bests.py"
        "::test_what_waited_when_the_rule_began_anew_goes_beside_a_doubtful_best_if_it_is_higher",
    ),
    Mutant(
        "an eval of no samples counts",
        "7",
        HISTORY,
        "    return math.isfinite(point.score) and point.samples != 0\n",
        "    return math.isfinite(point.score)\n",
        "tests/policy/test_policy_gate.py::test_an_eval_of_no_samples_is_no_eval",
    ),
    Mutant(
        "a late pin makes a dropped eval the best",
        "7",
        SAFEKEEPING,
        "        if not _counts(context, kept) or (secured",
        "        if (secured",
        "tests/policy/test_policy_identity.py"
        "::test_the_late_pin_of_an_eval_that_waits_behind_a_higher_one_is_not_the_bests",
    ),
    # 8: the evaluator changes, or the run ends, while a secure Job runs
    Mutant(
        "evals of two evaluators on one page are compared",
        "8",
        "controller/metrics/parse.py",
        "    if len(versions) != 1:",
        "    if True:",
        "tests/metrics/test_metrics_parse.py::test_evals_of_another_evaluator_than_the_page_s_are_left_out",
    ),
    Mutant(
        "all evals of a page say its present evaluator",
        "8",
        "clients/python/evalstop_client/client.py",
        "(value, spread, samples, reward, differences, self._evaluator, prompts, compared)",
        '(value, spread, samples, reward, differences, "", prompts, compared)',
        "tests/trainer/test_trainer_client.py::test_an_eval_keeps_the_evaluator_that_scored_it",
    ),
    Mutant(
        "what was asked on the old scale is taken for the new one's",
        "8",
        SAFEKEEPING,
        "    if baseline is not None and kept.baseline != baseline.number:\n",
        "    if baseline is not None and kept.baseline != kept.baseline:\n",
        "tests/policy/test_policy_identity.py::test_the_answer_about_the_old_evaluators_best_stays_beside_the_new_ones",
    ),
    Mutant(
        "the best's pin of before goes with the second of evaluators that change at each eval",
        "8",
        "controller/policy/job/short_baselines.py",
        "    if seen >= speaks_at(use.rule) or (by is None and series is None):\n",
        "    if seen >= 0 or (by is None and series is None):\n",
        "tests/policy/test_policy_short_baselines.py"
        "::test_the_highest_of_a_series_and_the_best_before_it_stay_pinned",
    ),
    Mutant(
        "of evaluators that change at each eval the newest one's pin stays, not the highest's",
        "8",
        "controller/policy/job/short_baselines.py",
        "    highest = higher_of(use.direction, series.highest, leaving)\n",
        "    highest = higher_of(use.direction, leaving, None) or series.highest\n",
        "tests/policy/test_policy_short_baselines.py"
        "::test_the_highest_of_a_series_and_the_best_before_it_stay_pinned",
    ),
    Mutant(
        "a pin that comes after the next change of the evaluator takes the place of the best of before",
        "8",
        SAFEKEEPING,
        "        if former is not None and short is not None and kept.baseline > former.baseline:\n",
        "        if former is not None and short is not None and kept.baseline < former.baseline:\n",
        "tests/policy/test_policy_short_baselines.py"
        "::test_an_answer_that_comes_after_the_next_change_takes_its_place_by_its_score",
    ),
    Mutant(
        "an answer that comes after the end is dropped, what it replaces is let go",
        "8",
        "controller/policy/job/plan.py",
        "    if answered is not None:\n        checkpoints.take_answer(context, answered)\n",
        "    if answered is not None and context.record.finished is not None:\n"
        "        context.update(access=None)\n"
        "    elif answered is not None:\n        checkpoints.take_answer(context, answered)\n",
        "tests/policy/test_policy_identity.py::test_the_answer_of_a_job_that_outlives_the_run_is_recorded",
    ),
    # 9: the pool befalls something
    Mutant(
        "a run is not read while its pool is not usable",
        "9",
        "controller/policy/job/plan.py",
        "    if use is not None:\n        proposal = _watch(context, use)\n",
        "    if use is not None and context.problem is None:\n        proposal = _watch(context, use)\n",
        "tests/policy/test_policy_watched.py::test_what_befalls_a_pool_stops_neither_reading_nor_securing",
    ),
    Mutant(
        "a run is not read while its rule cannot be made",
        "9",
        "controller/policy/job/plan.py",
        "    context.use = use = made if desired.metric else None\n",
        "    context.use = use = made if desired.metric and wrong is None else None\n",
        "tests/policy/test_policy_watched.py",
    ),
    # 10: a verdict of a branch that was left, or of yesterday
    Mutant(
        "a verdict of yesterday stops a run",
        "10",
        "controller/policy/job/verdict_age.py",
        "    if read is None or not read.status:\n",
        "    if False:\n",
        "tests/policy/test_policy_withdrawal.py",
    ),
    Mutant(
        "a verdict of the process before stops a run",
        "10",
        "controller/policy/job/verdict_age.py",
        "    if newest.resumed is None and record.evals[-1].attempt != newest.attempt:\n",
        "    if False:\n",
        "tests/policy/test_policy_withdrawal.py::test_a_verdict_of_the_process_before_stops_nobody_though_somebody_waits_now",
    ),
    Mutant(
        "a checkpoint of another branch that no eval told of is taken for this one's",
        "10",
        "controller/policy/job/location_claim.py",
        "            context.record = evals.leaving(context.record)\n",
        "            pass\n",
        "tests/policy/test_policy_location_claim.py"
        "::test_a_checkpoint_that_lay_there_beyond_where_a_process_began_is_of_another_branch",
    ),
    Mutant(
        "what a process without evals started from is on every later branch",
        "10",
        HISTORY,
        "    return rewind(leaving(after), use, ",
        "    return rewind(after, use, ",
        "tests/policy/test_policy_identity.py"
        "::test_a_checkpoint_that_a_process_without_evals_started_from_is_of_a_branch_that_was_left",
    ),
    Mutant(
        "what waited when the rule began anew for a start that nobody had seen is let go",
        "10",
        BESTS,
        "        held += undecided\n",
        "",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "a stop does not wait for a claim to tell whose checkpoint its process started from",
        "10",
        "controller/policy/job/verdicts.py",
        "    if (step := lives.start_unclaimed(record)) is not None:\n",
        "    if (step := lives.start_unclaimed(record)) is not None and False:\n",
        "tests/faults/test_faults.py::test_what_was_found_once_is_not_found_again",
    ),
    Mutant(
        "a process that began on another branch has the checkpoints of those before it",
        "10",
        LIVES,
        "            if lives[index].other_branch:\n",
        "            if False:\n",
        "tests/policy/test_policy_identity.py"
        "::test_a_process_that_began_on_another_branch_has_none_of_the_ones_before_it",
    ),
    Mutant(
        "a claim is asked about a process's own checkpoints alone",
        "10",
        CLAIMING,
        "lives.branch_by_steps(context.record, lives.newest(context.record))",
        "lives.branch(context.record, lives.newest(context.record))",
        "tests/policy/test_policy_identity.py"
        "::test_a_claim_of_a_start_that_nobody_had_seen_names_the_process_before",
    ),
    Mutant(
        "a start from a checkpoint that nobody had seen is from the branch before",
        "10",
        LIVES,
        "    return known is not None and known < step\n",
        "    return False\n",
        "tests/policy/test_policy_identity.py"
        "::test_what_a_process_started_from_is_of_no_branch_until_a_claim_tells",
    ),
    Mutant(
        "a step that was evaluated is a step that was saved",
        "10",
        LIVES,
        "        return max(life.saved, life.resumed or 0)\n",
        "        pass\n",
        "tests/policy/test_policy_identity.py"
        "::test_a_step_that_a_process_has_evaluated_and_not_saved_is_of_the_branch_that_was_left",
    ),
    Mutant(
        "nobody looks whose the checkpoint is that a process started from",
        "10",
        "controller/policy/job/location_claim.py",
        "            if answered.other_branch:\n",
        "            if False:\n",
        "tests/policy/test_policy_location_claim.py"
        "::test_a_claim_that_finds_the_start_on_another_branch_begins_the_rule_anew",
    ),
    Mutant(
        "where no claim has told how far the checkpoints go there is no other branch",
        "10",
        HISTORY,
        "    unknown = record.claim is not None and not former.claimed\n",
        "    unknown = False\n",
    ),
    # 11: leftovers, another RLHFJob's folder, a step written anew
    Mutant(
        "what lay there before is the run's own",
        "11",
        "controller/checkpoints/inventory.py",
        '    if not same:\n        return ""\n',
        '    return ""\n',
        "tests/checkpoints/test_checkpoints_lives.py",
    ),
    Mutant(
        "a pin is taken again though its files were written anew",
        "11",
        SECURING,
        '    if noted.get("digest") != kept.digest:\n        raise Damaged(f"it was changed',
        '    if False:\n        raise Damaged(f"it was changed',
        "tests/checkpoints/test_checkpoints_lives.py::test_a_pin_whose_files_were_written_into_is_not_answered_again",
    ),
    Mutant(
        "a best that was changed after its pin keeps its score",
        "11",
        LOST_BESTS,
        "        lose(context, _of(waited), problem)\n        return\n    delay",
        "    delay",
        "tests/policy/test_policy_changed.py::test_a_changed_best_is_never_kept_under_its_score",
    ),
    Mutant(
        "a best that was changed is looked for again",
        "11",
        LOST_BESTS,
        "    if best in record.changed_bests:\n",
        "    if False:\n",
        "tests/policy/test_policy_changed.py::test_a_changed_best_is_never_kept_under_its_score",
    ),
    Mutant(
        "a folder has two owners",
        "11",
        "controller/checkpoints/ownership.py",
        "        _refuse_unless_over(own, store.root, request)\n        own = None\n",
        "        own = None\n",
        "tests/checkpoints/test_checkpoints_lives.py::test_a_folder_has_one_owner_and_both_are_named",
    ),
    Mutant(
        "two RLHFJobs share a location",
        "11",
        "controller/operator/state/locations.py",
        "        if first is None:\n",
        "        if True:\n",
        "tests/operator/test_operator_locations.py",
    ),
    Mutant(
        "a job made anew does not follow its predecessor",
        "11",
        "controller/policy/job/location_claim.py",
        "    if answered.reason == TAKEN and _follows(context, waited, answered):\n",
        "    if False:\n",
        "tests/policy/test_policy_location_claim.py",
    ),
    Mutant(
        "a pin takes the turn of the claim that follows a predecessor",
        "11",
        "controller/policy/job/location_claim.py",
        "    _start(context, access_requests.again(context, follower, waited.tries, context.now))\n",
        "    access_requests.again(context, follower, waited.tries, context.now)\n",
        "tests/policy/test_policy_location_claim.py"
        "::test_what_is_pinned_waits_for_the_claim_that_follows_a_deleted_predecessor",
    ),
    # 12: a guardrail's direction is corrected
    Mutant(
        "a guardrail's memory outlives its direction",
        "12",
        RULE_IN_USE,
        '    fingerprint += INVERTED if direction is Direction.MINIMIZE else ""\n',
        "",
        "tests/policy/test_policy_guardrails.py::test_a_guardrail_whose_direction_is_corrected_begins_anew",
    ),
    Mutant(
        "another rule reads what the one before kept",
        "12",
        HISTORY,
        "    if record.rule is not None:\n        record = _same_rule(record, use)  #",
        "    if record.rule is None:\n        record = _same_rule(record, use)  #",
        "tests/policy/test_policy_edited_rule.py",
    ),
    # 13: the clock
    Mutant(
        "the newest answer is believed",
        "13",
        "controller/operator/process/clock.py",
        "SAMPLES = 9 ",
        "SAMPLES = 1 ",
        "tests/lease/test_lease_clock.py",
    ),
    Mutant(
        "time jumps",
        "13",
        "controller/operator/process/clock.py",
        "FASTEST, SLOWEST = 2.0, 0.5 ",
        "FASTEST, SLOWEST = 1e9, 0.0 ",
        "tests/lease/test_lease_clock.py",
    ),
    # 14: a finished child is removed
    Mutant(
        "a child that is gone is trained again",
        "14",
        ENDINGS,
        "    return context.observed.workload is None and started and record.finished is None\n",
        "    return False\n",
    ),
    # 15: GPUs
    Mutant(
        "a stopped child that somebody starts runs on",
        "15",
        ENDINGS,
        "    if ours and external_queue.to_be_stopped(context.observed):\n",
        "    if False:\n",
    ),
    Mutant(
        "what its user stopped and somebody starts runs on where mode is Shadow",
        "15",
        ENDINGS,
        "    ours = context.desired.mode is Mode.ENFORCE or is_users(context)\n",
        '    ours = context.desired.mode is Mode.ENFORCE or context.desired.run_state == "Stopped"\n',
        "tests/policy/test_policy_endings.py",
    ),
    Mutant(
        "a stopped child that somebody starts while its pods are going runs on",
        "15",
        STOPPING,
        "        started = decision.suspended_at is not None ",
        "        started = False ",
        "tests/policy/test_policy_endings.py"
        "::test_a_stopped_run_that_somebody_starts_while_its_pods_are_going_is_suspended_again",
    ),
    Mutant(
        "GPUs are released while a pod may come in the place of another",
        "15",
        ENDINGS,
        "    return workload.settled or (workload.finished is not None and not workload.active)\n",
        "    return True\n",
        "tests/policy/test_policy_endings.py",
    ),
    Mutant(
        "a gang with a member that ended is admitted time after time",
        "15",
        "controller/policy/job/incomplete.py",
        "    if workload is None or not workload.completed:\n        return None\n",
        "    return None\n",
        "tests/policy/test_policy_endings.py",
    ),
    Mutant(
        "a member that ended early keeps its node for the extender",
        "15",
        "controller/policy/job/gang_timeout.py",
        "    if admission is not None and workload is not None and workload.completed != admission.ended:\n",
        "    if False:\n",
        "tests/policy/test_policy_endings.py",
    ),
    Mutant(
        "a member whose planned node others took is charged nowhere",
        "15",
        "controller/policy/pool/gpu_accounting.py",
        "            short.append((job, missing))\n",
        "",
        "tests/policy/test_policy_gpu_accounting.py"
        "::test_a_member_whose_planned_node_others_took_is_charged_where_it_fits",
    ),
    # 16: a user's pin Job hangs, or a claim
    Mutant(
        "the best waits for a claim for as long as it takes",
        "16",
        CLAIMING,
        "    return left > 0\n",
        "    return True\n",
        "tests/policy/test_policy_location_claim.py::test_bests_are_pinned_though_the_claim_fails_or_hangs",
    ),
    Mutant(
        "the best waits for a claim that is tried again",
        "16",
        CLAIMING,
        "    if waited.tries and not retries:\n        return False\n",
        "",
        "tests/policy/test_policy_location_claim.py::test_a_best_waits_for_no_claim_that_is_tried_again",
    ),
    Mutant(
        "a claim gives way to nothing",
        "16",
        SAFEKEEPING,
        "    Operation.CHECK,\n    Operation.CLAIM,\n)\n",
        "    Operation.CHECK,\n)\n",
        "tests/policy/test_policy_location_claim.py::test_bests_are_pinned_though_the_claim_fails_or_hangs",
    ),
    Mutant(
        "the best waits for a user's pin",
        "16",
        SAFEKEEPING,
        "_GIVES_WAY = (\n    Operation.SECURE,\n    Operation.PIN,\n",
        "_GIVES_WAY = (\n    Operation.SECURE,\n",
    ),
    Mutant(
        "a linked pin stays one though the run went back behind it",
        "11",
        "controller/policy/job/linked_pins.py",
        "    if kept is None or context.observed.workload is None:\n        return\n",
        "    return\n",
        "tests/policy/test_policy_linked_pins.py"
        "::test_a_linked_pin_from_the_step_on_that_the_run_went_back_to_is_copied_once",
    ),
    Mutant(
        "a pin that was found changed stays on record",
        "11",
        "controller/policy/job/linked_pins.py",
        "    for path in paths:\n",
        "    for path in ():\n",
        "tests/policy/test_policy_linked_pins.py::test_any_job_at_the_location_tells_of_a_changed_pin",
    ),
    Mutant(
        "a Job that does not move is waited for",
        "16",
        "controller/policy/job/access_requests.py",
        "    if transfer.stalled(view, context.now):\n",
        "    if False:\n",
        "tests/policy/test_policy_withdrawal.py",
    ),
    Mutant(
        "a request for a branch that was left keeps pins waiting",
        "16",
        SAFEKEEPING,
        "        left = wanted is None or not waited.is_for(wanted)\n",
        "        left = False\n",
        "tests/policy/test_policy_edited_rule.py"
        "::test_a_best_of_a_branch_that_was_left_keeps_no_user_s_pin_waiting",
    ),
    # 17: deletion, failover, resumes
    Mutant(
        "the last copy is resumed from, not the best",
        "17",
        "controller/policy/job/resume.py",
        "        kept = retention.best_of(context, (*record.retained, *pinned))\n",
        "        kept = next(reversed((*record.retained, *pinned)), None)\n",
        "tests/policy/test_policy_withdrawal.py::test_resumed_from_the_best_of_what_was_retained_not_from_the_newest",
    ),
    Mutant(
        "a resume from the best is answered with another process's step",
        "17",
        SAFEKEEPING,
        "(waited.operation, waited.step, waited.attempt) == (operation, step, attempt)",
        "(waited.operation, waited.step) == (operation, step)",
        "tests/policy/test_policy_withdrawal.py"
        "::test_a_resume_from_the_best_is_not_answered_with_another_process_s_checkpoint_of_its_step",
    ),
    Mutant(
        "a resume that was taken back keeps pins waiting",
        "17",
        "controller/policy/job/resume.py",
        "    if waited is None or waited.operation is not Operation.RESTORE:\n        return\n",
        "    return\n",
        "tests/policy/test_policy_withdrawal.py",
    ),
    Mutant(
        "a deletion drops the copy",
        "17",
        RETENTION,
        "    if hopeless(context, DELETED_TRIES, DELETED_STILL):\n",
        "    if True:\n",
        "tests/policy/test_policy_withdrawal.py",
    ),
    Mutant(
        "a new leader skips the trainer's save",
        "17",
        STOPPING,
        "            return _waits_to_ask(context, settled)\n",
        "            return False\n",
        "tests/policy/test_policy_withdrawal.py",
    ),
    Mutant(
        "a process that starts again goes back to where its attempt began",
        "17",
        "clients/python/evalstop_client/client.py",
        '        own = [r for r in found if r.uid == uid and r.attempt.partition("-")[0] == str(number)]\n',
        "        own = []\n",
        "tests/trainer/test_trainer_saves.py",
    ),
    # 18: an object over 5 GiB
    Mutant(
        "large objects are copied in one go",
        "18",
        "controller/checkpoints/s3.py",
        "        if size <= self.copy_limit:\n",
        "        if True:\n",
        "tests/checkpoints/test_checkpoints_s3.py::test_an_object_above_what_one_copy_takes_is_secured",
    ),
    # 19
    Mutant(
        "a stop is granted on a plan that was made anew since",
        "19",
        "controller/operator/reconcile/pool.py",
        "if isinstance(write.what, Grant) and full.plan.proposal != write.what.proposal:",
        "if False:",
        "tests/operator/test_operator_watched.py::test_a_stop_is_granted_only_while_the_newest_plan_asks_for_it",
    ),
    Mutant(
        "a living worker's staging folder is taken over",
        "19",
        "controller/checkpoints/staging.py",
        "found.serial >= writer.serial and not _dead(parent, name, seen, dead_seconds, monotonic())",
        "False",
        "tests/checkpoints/test_checkpoints_goes_on.py tests/checkpoints/test_checkpoints_safety.py",
    ),
    Mutant(
        "a worker that was given up lets pins go",
        "19",
        SECURING,
        "            fence.check(store, request)\n",
        "",
        "tests/checkpoints/test_checkpoints_fence.py",
    ),
    Mutant(
        "a worker that was given up clears what a run was resumed from",
        "19",
        "controller/checkpoints/retaining.py",
        "        lambda: fence.check(location, request),\n",
        "",
        "tests/checkpoints/test_checkpoints_fence.py",
    ),
    Mutant(
        "a look that came too late is noted",
        "19",
        "controller/checkpoints/inventory.py",
        "        fence.check(store, request)\n",
        "",
        "tests/checkpoints/test_checkpoints_fence.py",
    ),
    Mutant(
        "a trainer's state is read whole",
        "19",
        "controller/checkpoints/completeness/streams.py",
        "PIECE = 1 << 20 ",
        "PIECE = 1 << 30 ",
        "tests/checkpoints/test_checkpoints_whole.py::test_a_trainer_state_of_60_mb_needs_little_memory",
    ),
    Mutant(
        "an access pod asks for CPU on a node that has none",
        "19",
        "controller/checkpoints/access_jobs.py",
        '{"cpu": settings.least_cpu, "memory": settings.least_memory}',
        '{"cpu": settings.cpu, "memory": settings.memory}',
        "tests/checkpoints/test_checkpoints_access_jobs.py::test_on_the_trainers_node_it_asks_for_what_is_always_there",
    ),
    Mutant(
        "a best that is older than the evals kept is forgotten",
        "19",
        BESTS,
        "    if record.best is not None and record.best.step <= step:\n        candidates",
        "    if False:\n        candidates",
        "tests/policy/test_policy_identity.py",
    ),
    Mutant(
        "a copy that was found gone is looked for again and again, though its pin is there",
        "17",
        "controller/policy/job/gone_copies.py",
        " and waited.tries % 2 == 1\n",
        " and False\n",
        "tests/policy/test_policy_gone_copies.py",
    ),
    Mutant(
        "a silent group's residency ends though calls were made in it",
        "19",
        "controller/policy/job/residency.py",
        "if entry.leaving and not entry.joined and not live",
        "if entry.leaving and not live",
        "tests/policy/test_policy_residency.py::test_silence_ends_only_a_residency_that_no_call_was_made_in",
    ),
    Mutant(
        "who leaves a group is gone with the first of its pods, not with the last",
        "19",
        "controller/policy/pool/group_plan.py",
        "    if empty:  # worker",
        "    if True:  # worker",
        "tests/policy/test_policy_group_plan.py::test_a_resident_ends_by_the_groups_word_or_with_all_its_pods",
    ),
    Mutant(
        "pods whose Job is gone before them are no pods of the group",
        "19",
        "controller/operator/state/groups.py",
        'return bool(ours.get(str(owner.get("uid")), left))',
        'return bool(ours.get(str(owner.get("uid")), False))',
        "tests/operator/test_operator_group_passes.py::test_the_next_start_waits_for_pods_whose_job_is_gone_before_them",
    ),
    Mutant(
        "GPUs held through claims are not counted",
        "19",
        "controller/operator/state/devices.py",
        "        return self._of_pod.get(uid, 0)\n",
        "        return 0\n",
        "tests/operator/test_operator_devices.py",
    ),
    Mutant(
        "standard errors that the run's own evals contradict are believed",
        "7",
        "controller/policy/job/plan.py",
        "        use = use.without_errors()\n",
        "        pass\n",
        "tests/policy/test_policy_unable.py::test_standard_errors_by_far_smaller_than_the_scatter_stop_nothing",
    ),
    Mutant(
        "the standard error of one eval of few samples counts for all others",
        "7",
        "controller/policy/stopping/gate.py",
        "        return Precision.of(point).coarser(Precision(*memory.coarsest), self.params.imprecise)\n",
        "        return False\n",
        "tests/policy/test_policy_precision.py::test_one_eval_of_few_samples_hides_no_fall",
    ),
    Mutant(
        "a checkpoint with the number of the best eval is its own, whatever counter numbers it",
        "1",
        "controller/policy/job/step_counts.py",
        "disagree = _certain(record, counts) or (",
        "disagree = (",
        "tests/policy/test_policy_step_counts.py::test_no_run_is_stopped_on_a_checkpoint_that_another_counter_numbers",
    ),
    Mutant(
        "evals that stay behind the checkpoints count by another counter",
        "1",
        "controller/policy/job/step_counts.py",
        "    ratio = _ratio(told[-ON_A_LINE:] if numbered else told) if numbered or unsaved else None\n",
        "    ratio = _ratio(told[-ON_A_LINE:])\n",
        "tests/policy/test_policy_step_counts.py::test_a_run_of_one_counter_is_not_said_to_have_two",
    ),
    Mutant(
        "a trainer that does not go on from its checkpoint looks as if it did",
        "1",
        "controller/policy/job/plan.py",
        "    restarts.look(context, scrape, former[0] if former is not None else None)\n",
        "",
        "tests/policy/test_policy_restarts.py::test_a_trainer_that_does_not_go_on_is_told_at_once",
    ),
    Mutant(
        "evals below the start that a page claims count for nothing",
        "1",
        HISTORY,
        "not 0 < point.step < said - apart(record, said)",
        "True",
        "tests/policy/test_policy_restarts.py::test_its_evals_are_those_of_a_run_that_began_anew",
    ),
    Mutant(
        "a run is resumed beside pods of an earlier attempt that live on without its workload",
        "14",
        "controller/policy/job/plan.py",
        "    orphans.refuse(context)\n",
        "",
        "tests/policy/test_policy_endings.py::test_a_run_whose_pods_were_orphaned_is_not_resumed_beside_them",
    ),
    Mutant(
        "a job is started while pods of an earlier attempt are on their way out",
        "14",
        "controller/policy/job/plan.py",
        "    if orphans.wait(context):\n",
        "    if False:\n",
        "tests/policy/test_policy_endings.py::test_a_job_that_waits_is_not_started_beside_orphaned_pods",
    ),
)
