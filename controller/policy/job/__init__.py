"""One job's plan.

Decided here: what one RLHFJob's workload, checkpoints and record need next (`plan_job`), from what its user
wishes (`Desired`), what was seen (`Observed`), what was recorded (`JobRecord`) and the time. Its stop is only
proposed here.
May import: `stopping`, `queueing`, `node`, and the words all rooms share (`policy.types`).
Tests: tests/policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.doors import lazy

if TYPE_CHECKING:
    from controller.policy.job.actors import *
    from controller.policy.job.conditions import *
    from controller.policy.job.cures import *
    from controller.policy.job.curve import *
    from controller.policy.job.earlier_job import *
    from controller.policy.job.endings import *
    from controller.policy.job.estimates import *
    from controller.policy.job.evals import *
    from controller.policy.job.event import *
    from controller.policy.job.external_queue import *
    from controller.policy.job.folder_order import *
    from controller.policy.job.gang_timeout import *
    from controller.policy.job.gone_copies import *
    from controller.policy.job.lone_peaks import *
    from controller.policy.job.marks import *
    from controller.policy.job.not_carried_out import *
    from controller.policy.job.outcome import *
    from controller.policy.job.past_losses import *
    from controller.policy.job.peers import *
    from controller.policy.job.pin_method import *
    from controller.policy.job.plan import *
    from controller.policy.job.pod_words import *
    from controller.policy.job.record import *
    from controller.policy.job.retention import place_is_missing as place_is_missing
    from controller.policy.job.retention import place_problem as place_problem
    from controller.policy.job.rollout_record import *
    from controller.policy.job.rotation import *
    from controller.policy.job.rule_in_use import *
    from controller.policy.job.scores import *
    from controller.policy.job.service import *
    from controller.policy.job.speaker import *
    from controller.policy.job.terminating_pods import *
    from controller.policy.job.transfer import *
    from controller.policy.job.types import *
    from controller.policy.job.unable import *
    from controller.policy.job.verdict_words import *
    from controller.policy.job.verdicts import *
    from controller.policy.job.view import *
    from controller.policy.job.whereabouts import *

SHOWS = {
    "actors": "ActorSeen with_recalls with_starts",
    "cures": "BY_MESSAGE CURES Cure GROUP_CURES NEEDS_NOBODY cure_of key_of",
    "conditions": (
        "conditions ACCEPTED ADMITTED ATTENTION AWAITS_CONTROLLER CARRIED_OUT COMPLETED FAILED MARKED"
        " MEMBERS_ENDED METRICS RELEASED SCALED TERMINATION Conditions summary"
    ),
    "curve": (
        "Bucket Course CurveMark CurvePoint NEW_BASELINE RESUMED STOPPED WOULD_STOP coarser course"
        " curve_branches curve_marks"
    ),
    "earlier_job": "EARLIER_JOB_REMAINS EarlierJob earlier_job_remains",
    "ended_early": "ended_early",
    "endings": "end_is_unknown",
    "event": "Event",
    "external_queue": "waits_outside",
    "estimates": "History Kind Times Wrong by_pace by_word correction how_wrong past_run",
    "evals": "is_eval",
    "folder_order": "FolderTurn folder_turn why_before",
    "gang_timeout": "backoff_seconds",
    "gone_copies": "found_gone",
    "lives": "lives",
    "lone_peaks": "LonePeak lone_peak",
    "marks": "Finding Mark health state_reason trains",
    "no_eval": "no_eval",
    "not_carried_out": "ACTION_REFUSED WEBHOOK_FAILS",
    "outcome": "Tally beaten_by shadow_record tally was_right were_right",
    "past_losses": "losses unsaved",
    "peers": "peers PeerCurve standings",
    "plan": "plan_job",
    "pod_words": "free_first node_away pod_sentence",
    "pin_method": "is_linked",
    "preemption": "preemption",
    "record": (
        "AdmissionRecord Best Condition ConditionList CURVE_BUCKETS Decision EvalCurve FIRST_EVAL FileOwner "
        "FoundLayout GUARDS_MAX Guard JobRecord LAST_WORDS LifeRecord NO_SCHEDULER NODE_NOT_READY "
        "UNSCHEDULABLE Operation Outcome PINS_MAX PastGrades PodTrouble ProtectedCheckpoint "
        "READINGS_KEPT RefusalRecord ResidencyRecord RuleRecord RunFile StopOutcome"
    ),
    "residency": "residency",
    "retention": "place_is_missing place_problem",
    "rollout_actors": "rollout_actors",
    "rollout_record": "RolloutRecord StepAside StepMeasured StepPlan StepRow",
    "rotation": "remedy",
    "rule_in_use": "RuleInUse",
    "scores": "PROMPTS_MAX declared_scale doubted_directions",
    "service": "attained remaining_seconds seconds",
    "speaker": (
        "ANY ANY_MEMBER EXPECTED INDEX_MAX LABEL_PATTERN Gang Member Speaker SpeakerSearch candidates "
        "first_asked"
    ),
    "terminating_pods": "STUCK_AFTER",
    "transfer": "STALL",
    "unable": "unable_by_spec",
    "types": (
        "AccessView Action Answer CreateWorkload DeleteActor Desired Direction ForgetAccess GroupSeen "
        "Guardrail Hindrance MakeActor MetricPoints Observed OrphanedPod Page Plan PodView Progress "
        "ProxyMetric QueueView ReadMetrics RefuseOffer RemakeWorkload ResumeFrom ResumeRequest "
        "ResumeWorkload Retain RolloutView RunState "
        "ScrapeOutcome ScrapeView SetFinalizer StartAccess StartWorkload SuspendWorkload TrainerEnd "
        "WorkloadView WriteRun"
    ),
    "verdict_words": (
        "OtherRule alone_best evidence flat_stops lost_best other_rules other_rules_sentence promise"
        " statement stopped_by_rule stopped_soon ways_on SPARED_EVALS"
    ),
    "verdicts": "BLIND is_demoted",
    "view": "job_view queued_at",
    "whereabouts": "nodes_of place",
}
__all__ = [name for names in SHOWS.values() for name in names.split()]
__getattr__ = lazy(__name__, SHOWS)
