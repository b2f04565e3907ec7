"""For each alert: books of metrics that fire it, and others, near them, that must not.

Values are promtool's: `0+1x60` is 0, 1, 2, … 60, one each half minute; `_` is no sample, `stale` the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Series = dict[str, str]
HALF_HOUR, HOUR, DAY = 60, 120, 2880  # samples


@dataclass(frozen=True)
class Case:
    """``at``: when the alert must fire (promtool's duration); ``labels``, ``summary``: what it then says."""

    alert: str
    fires: Series
    at: str
    summary: str
    silent: Series
    labels: dict[str, str] = field(default_factory=dict)


def calls(verb: str, outcome: str, values: str, resource: str = "rlhfjobs") -> Series:
    return {f'evalstop_api_calls_total{{verb="{verb}",resource="{resource}",outcome="{outcome}"}}': values}


def lag(slow: str, fast: str) -> Series:
    """Of the loop's wake-ups, ``fast`` within 10 ms, and in all ``slow`` within 10 s."""
    name = 'evalstop_loop_lag_seconds_bucket{instance="a",le="%s"}'
    return {
        name % "0.01": fast,
        name % "1.0": fast,
        name % "5.0": slow,
        name % "10.0": slow,
        name % "+Inf": slow,
    }


def marked(mark: str, values: str) -> Series:
    return {f'evalstop_unhealthy_job_seconds{{mark="{mark}",instance="a"}}': values}


def ends(certificate: str, at: str) -> Series:
    name = "evalstop_extender_certificate_expiry_timestamp_seconds"
    return {f'{name}{{certificate="{certificate}"}}': f"{at}x{2 * HOUR}"}


def requests(status: str, values: str) -> Series:
    return {f'evalstop_extender_requests_total{{verb="filter",status="{status}"}}': values}


CASES = (
    Case(
        "EvalStopNoLeader",
        {'evalstop_leader{instance="a"}': "1x9 0x60", 'evalstop_leader{instance="b"}': "0x60"},
        "10m",
        "No EvalStop operator leads",
        {'evalstop_leader{instance="a"}': "1x9 0 0 stale", 'evalstop_leader{instance="b"}': "0x11 1x60"},
    ),
    Case(
        "EvalStopTwoLeaders",
        {'evalstop_leader{instance="a"}': "1x60", 'evalstop_leader{instance="b"}': "1x60"},
        "10m",
        "2 EvalStop operators act at once",
        {'evalstop_leader{instance="a"}': "1x10 0x60", 'evalstop_leader{instance="b"}': "0x9 1x60"},
    ),
    Case(
        "EvalStopLeadershipFlaps",
        {'evalstop_leader_epoch{instance="a"}': "1x5 2x5 3x5 4x5 5x5 6x5"},
        "20m",
        "The operator's leadership changed hands 5 times in half an hour",
        {'evalstop_leader_epoch{instance="a"}': "1x5 2x5 3x50"},
    ),
    Case(
        "EvalStopRightsRefused",
        {
            'evalstop_refused_seconds{instance="a"}': "0 40+60x60",
            'evalstop_refused_seconds{instance="b"}': "0x61",
        },
        "3m",
        "The EvalStop operator has been refused its rights for 5m 40s",
        {'evalstop_refused_seconds{instance="a"}': "0 40 0x60"},
    ),
    Case(
        "EvalStopLoopStalled",
        lag(slow="0+50x60", fast="0+30x60"),
        "15m",
        "The operator's event loop on a wakes 4s late",
        lag(slow="0+50x60", fast="0+49x60"),
        {"instance": "a"},
    ),
    Case(
        "EvalStopPassesFail",
        {'evalstop_passes_total{kind="job",result="failed"}': "0+1x60"},
        "20m",
        "Passes over jobs fail in a way they should not",
        {
            'evalstop_passes_total{kind="job",result="failed"}': "0x10 1x60",
            'evalstop_passes_total{kind="job",result="stale"}': "0+9x60",
        },
        {"kind": "job"},
    ),
    Case(
        "EvalStopPoolFails",
        {'evalstop_pool_failing_seconds{instance="a"}': "0+30x60"},
        "10m",
        "No pass of a GPUPool has succeeded for 10m 0s",
        {'evalstop_pool_failing_seconds{instance="a"}': "0+30x7 0x60"},
    ),
    Case(
        "EvalStopObjectsPutAside",
        {'evalstop_objects_put_aside{instance="a",resource="rlhfjobs"}': "2x60"},
        "15m",
        "2 rlhfjobs are put aside: too deep or too large to be read",
        {'evalstop_objects_put_aside{instance="a",resource="rlhfjobs"}': "2x15 stale"},
        {"resource": "rlhfjobs"},
    ),
    Case(
        "EvalStopUnreadableStatus",
        {'evalstop_unreadable_jobs{instance="a"}': "2x60"},
        "10m",
        "2 RLHFJobs are left alone: they, or their status, cannot be read",
        {'evalstop_unreadable_jobs{instance="a"}': "0x60"},
    ),
    Case(
        "EvalStopClockWrong",
        {'evalstop_clock_skew_seconds{instance="a"}': "-90x60"},
        "15m",
        "The clock under the operator on a is 1m 30s off",
        {'evalstop_clock_skew_seconds{instance="a"}': "-1.2x60"},
        {"instance": "a"},
    ),
    Case(
        "EvalStopDecisionLogLosesLines",
        {"evalstop_decision_log_dropped_total": "0x10 7x60"},
        "10m",
        "The decision log loses lines",
        {"evalstop_decision_log_dropped_total": "7x60"},
    ),
    Case(
        "EvalStopWritesRefused",
        calls("patch-status", "422", "0+1x60"),
        "15m",
        "The API server refuses patch-status of rlhfjobs (422)",
        calls("dry-run", "422", "0+1x60", "jobs")
        | calls("create", "403", "0+1x60", "events")
        | calls("patch-status", "409", "0+1x60"),
        {"verb": "patch-status", "resource": "rlhfjobs", "outcome": "422"},
    ),
    Case(
        "EvalStopAPIServerFails",
        calls("patch", "timeout", "0+4x60") | calls("get", "503", "0+6x60") | calls("get", "200", "0+10x60"),
        "15m",
        "50% of the operator's API calls fail",
        calls("patch", "timeout", "0+1x60") | calls("get", "200", "0+10x60"),
    ),
    Case(
        "EvalStopScrapesFail",
        {
            'evalstop_scrapes_total{outcome="Ok"}': "0+60x80",
            'evalstop_scrapes_total{outcome="Timeout"}': "0+20x80",
            'evalstop_scrapes_total{outcome="Unreachable"}': "0+20x80",
            'evalstop_scrapes_total{outcome="NoPods"}': "0+500x80",
        },
        "30m",
        "40% of the scrapes of trainers fail",
        {
            'evalstop_scrapes_total{outcome="Ok"}': "0+60x80",
            'evalstop_scrapes_total{outcome="Timeout"}': "0+10x80",
            'evalstop_scrapes_total{outcome="NoPods"}': "0+500x80",
        },
    ),
    Case(
        "EvalStopNoEvals",
        marked("Unwatched", "0x60 1800+30x60"),
        "36m",
        "A run has been going on for 35m 30s without its evals being read",
        marked("Unwatched", "0x20 1800x8 0x100") | marked("Stuck", "9999x120"),
    ),
    Case(
        "EvalStopTrainersCrash",
        {'evalstop_unhealthy_jobs{mark="Crashing"}': "0x4 2x60"},
        "20m",
        "2 runs hold GPUs and do not train: their pods crash, or do not start",
        {'evalstop_unhealthy_jobs{mark="NotStarting"}': "0x10 2x15 0x60"},
    ),
    Case(
        "EvalStopScrapesLate",
        {'evalstop_scrape_lag_seconds{instance="a"}': "45x60"},
        "15m",
        "Scrapes begin 45s late",
        {'evalstop_scrape_lag_seconds{instance="a"}': "45x15 2x60"},
    ),
    Case(
        "EvalStopNoiseUnknown",
        {'evalstop_unhealthy_jobs{mark="Blind"}': f"3x{DAY}"},
        "7h",
        "3 runs cannot be judged: their rule lacks what it judges by",
        {'evalstop_unhealthy_jobs{mark="Blind"}': f"3x8 0x{DAY}"},
    ),
    Case(
        "EvalStopRolloutsStarved",
        {'evalstop_unhealthy_jobs{mark="Starved"}': "0x4 2x60"},
        "20m",
        "2 runs go on without the rollout actors, or the step plans, that they should have",
        {'evalstop_unhealthy_jobs{mark="Starved"}': "0x4 2x8 0x60"},
    ),
    Case(
        "EvalStopActorsFail",
        {"evalstop_rollout_actors_failed_total": "0x10 0+1x60"},
        "30m",
        "49 rollout actors ended unasked, or were put aside, within half an hour",
        {"evalstop_rollout_actors_failed_total": "0x10 0+1x9 9x60"},
    ),
    Case(
        "EvalStopStepsUnplanned",
        {
            'evalstop_rollout_steps_total{reason="Planned"}': "0+1x120",
            'evalstop_rollout_steps_total{reason="NoForecast"}': "0+3x120",
        },
        "45m",
        "75% of the rollout steps get the static count of actors",
        {
            'evalstop_rollout_steps_total{reason="KeptCount"}': "0+2x120",
            'evalstop_rollout_steps_total{reason="NoForecast"}': "0+1x120",
        },
    ),
    Case(
        "EvalStopGroupsNotReady",
        {'evalstop_worker_group_unready_seconds{instance="a"}': "0+30x60"},
        "25m",
        "A worker group has not been able to grant turns for 25m 0s since its start",
        {'evalstop_worker_group_unready_seconds{instance="a"}': "0+30x29 0x60"},
    ),
    Case(
        "EvalStopGroupsUnheard",
        {'evalstop_worker_group_unheard_seconds{instance="a"}': "5x10 0+30x60"},
        "20m",
        "A worker group has not reported for 14m 30s",
        {'evalstop_worker_group_unheard_seconds{instance="a"}': "5x10 170x60"},
    ),
    Case(
        "EvalStopTurnsLost",
        {
            'evalstop_worker_group_turns_total{end="Released"}': "0+3x60",
            'evalstop_worker_group_turns_total{end="Lost"}': "0+1x60",
        },
        "25m",
        "25% of the turns in worker groups are lost",
        {
            'evalstop_worker_group_turns_total{end="Released"}': "0+30x60",
            'evalstop_worker_group_turns_total{end="Lost"}': "0+1x60",
        },
    ),
    Case(
        "EvalStopResidentsSlowed",
        {'evalstop_slowed_residents{instance="a"}': "0x4 2x200"},
        "90m",
        "2 residents of worker groups are slower than they allow",
        {'evalstop_slowed_residents{instance="a"}': "2x100 0x100"},
    ),
    Case(
        "EvalStopCheckpointsNotSecured",
        marked("Unsafe", "0x30 900+30x120"),
        "25m",
        "A best checkpoint has not been brought into safety for 24m 30s",
        marked("Unsafe", "0x30 900x8 0x120"),
    ),
    Case(
        "EvalStopGPUsNotHandedBack",
        marked("Stuck", "0x60 1800+30x120"),
        "40m",
        "A run that is to be off its GPUs has held them for 39m 30s",
        marked("Stuck", "0x60 1800x8 0x120"),
    ),
    Case(
        "EvalStopBreakerOpen",
        {
            'evalstop_circuit_breaker_open{instance="a"}': "1x60",
            'evalstop_circuit_breaker_open{instance="b"}': "0x60",
        },
        "10m",
        "1 GPUPools stop nobody: too many runs asked to be stopped at once",
        {'evalstop_circuit_breaker_open{instance="a"}': "1x5 0x60"},
    ),
    Case(
        "EvalStopStopsHeldBack",
        {'evalstop_stops_held_back_total{reason="HourlyLimit"}': "0+0.1x180"},
        "70m",
        "12 stops were held back in an hour: HourlyLimit",
        {'evalstop_stops_held_back_total{reason="HourlyLimit"}': "0+0.01x180"},
        {"reason": "HourlyLimit"},
    ),
    Case(
        "EvalStopGangTimeouts",
        {"evalstop_gang_timeouts_total": "0+0.1x180"},
        "70m",
        "12 gangs found no room in time in the last hour",
        {"evalstop_gang_timeouts_total": "0x10 2x180"},
    ),
    Case(
        "EvalStopExtenderDown",
        {
            'evalstop_pools_with_scheduler{instance="a"}': "2x60",
            'evalstop_extender_ready{instance="x"}': "1x10 0x60",
            'evalstop_extender_ready{instance="y"}': "1x9 stale",
        },
        "15m",
        "No scheduler extender answers, and 2 GPUPools rely on it",
        {
            'evalstop_pools_with_scheduler{instance="a"}': "2x60",
            'evalstop_extender_ready{instance="x"}': "0x60",
            'evalstop_extender_ready{instance="y"}': "1x60",
        },
    ),
    Case(
        "EvalStopExtenderFails",
        requests("500", "0+1x60") | requests("200", "0+9x60"),
        "15m",
        "10% of the requests to the extender fail",
        requests("500", "0x60") | requests("200", "0+9x60"),
    ),
    Case(
        "EvalStopExtenderSlow",
        {
            'evalstop_extender_request_seconds_bucket{verb="filter",le="0.25"}': "0+90x60",
            'evalstop_extender_request_seconds_bucket{verb="filter",le="1.0"}': "0+100x60",
            'evalstop_extender_request_seconds_bucket{verb="filter",le="+Inf"}': "0+100x60",
        },
        "20m",
        "One request in a hundred to the extender takes over 925ms",
        {
            'evalstop_extender_request_seconds_bucket{verb="filter",le="0.25"}': "0+100x60",
            'evalstop_extender_request_seconds_bucket{verb="filter",le="1.0"}': "0+100x60",
            'evalstop_extender_request_seconds_bucket{verb="filter",le="+Inf"}': "0+100x60",
        },
    ),
    Case(
        "EvalStopExtenderFailsOpen",
        {'evalstop_extender_ignorable{instance="x"}': f"1x{2 * HOUR}"},
        "70m",
        "The second scheduler passes over the extender when it fails",
        {'evalstop_extender_ignorable{instance="x"}': f"0x{2 * HOUR}"},
    ),
    Case(
        "EvalStopCertificateExpires",
        ends("serving", "867600") | ends("client-ca", "9e8"),
        "1h",  # promtool's time begins at 0
        "The extender's serving certificate ends in 10d 0h 0m 0s",
        ends("serving", "1.3e6"),
        {"certificate": "serving"},
    ),
)
