"""The dashboards as data: rows of panels, each a title, a unit and its queries."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.model import Dashboard, Panel, Row, stat

FOLDER = Path(__file__).resolve().parents[1] / "helm" / "evalstop" / "files" / "dashboards"
RATE = "[$__rate_interval]"


def quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{RATE})))"


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{RATE}))"


RUNS = Dashboard(
    uid="evalstop-runs",
    title="EvalStop / Runs and GPUs",
    description="What EvalStop does for its users: runs by state, stops, handovers, GPU-hours saved.",
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Running",
                    'sum(evalstop_jobs{state=~"Running|Declining|Demoted|Crashing|NotStarting|Unsafe|Unwatched|Blind|WouldStop"})',
                ),
                stat("Waiting", 'sum(evalstop_jobs{state=~"Queued|Unfit"})'),
                stat("Being stopped", 'sum(evalstop_jobs{state="Stopping"})'),
                stat("Need a hand", "sum(evalstop_unhealthy_jobs)", warn=1),
                stat("GPU-hours saved", "sum(increase(evalstop_gpu_hours_saved_total[$__range]))", unit="h"),
                stat("Breakers open", "max(evalstop_circuit_breaker_open)", warn=1),
            ),
        ),
        Row(
            "Runs",
            (
                Panel(
                    "Runs by state", "short", (("max by (state) (evalstop_jobs)", "{{state}}"),), stack=True
                ),
                Panel(
                    "Runs that need a hand",
                    "short",
                    (("max by (mark) (evalstop_unhealthy_jobs)", "{{mark}}"),),
                    note="docs/operate/alerts.md says what each mark means and whose it is.",
                ),
                Panel(
                    "For how long the first of them has",
                    "s",
                    (("max by (mark) (evalstop_unhealthy_job_seconds)", "{{mark}}"),),
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                Panel(
                    "Verdicts on new evals",
                    "short",
                    ((rate("evalstop_verdicts_total", "verb, reason"), "{{verb}} {{reason}}"),),
                    note="Per second.",
                ),
                Panel(
                    "Stops decided",
                    "short",
                    (
                        (
                            "sum by (mode, reason) (increase(evalstop_decisions_total[1h]))",
                            "{{mode}} {{reason}}",
                        ),
                    ),
                    note="In the last hour.",
                ),
                Panel(
                    "Stops held back",
                    "short",
                    (("sum by (reason) (increase(evalstop_stops_held_back_total[1h]))", "{{reason}}"),),
                    note="In the last hour, by the limit of their pool.",
                ),
                Panel(
                    "What pools did",
                    "short",
                    (("sum by (verb) (increase(evalstop_pool_outcomes_total[1h]))", "{{verb}}"),),
                    note="In the last hour.",
                ),
            ),
        ),
        Row(
            "GPUs",
            (
                Panel(
                    "Handing GPUs back, half of the stops",
                    "s",
                    ((quantile(0.5, "evalstop_handover_seconds", "stage"), "{{stage}}"),),
                    note="From the decision to each stage.",
                ),
                Panel(
                    "Handing GPUs back, nine in ten",
                    "s",
                    ((quantile(0.9, "evalstop_handover_seconds", "stage"), "{{stage}}"),),
                ),
                Panel(
                    "GPU-hours saved, and lost to preemption",
                    "h",
                    (
                        ("sum(increase(evalstop_gpu_hours_saved_total[1d]))", "saved"),
                        ("sum(increase(evalstop_preempted_lost_gpu_seconds_total[1d])) / 3600", "lost"),
                    ),
                    note="In the last day. Saved: to its planned end, at a run's own pace.",
                ),
                Panel(
                    "GPU-hours after a rule asked for less",
                    "h",
                    (
                        (
                            "sum by (mode, action) (increase(evalstop_graded_gpu_seconds_total[1d])) / 3600",
                            "{{mode}} {{action}}",
                        ),
                    ),
                    note="In the last day. In Shadow: what acting on it would have saved at most.",
                ),
                Panel(
                    "Gangs that found no room in time",
                    "short",
                    (("sum(increase(evalstop_gang_timeouts_total[1h]))", "gangs"),),
                ),
            ),
        ),
        Row(
            "Rollout actors",
            (
                Panel("Actors", "short", (("max by (state) (evalstop_rollout_actors)", "{{state}}"),)),
                Panel(
                    "GPU-hours of actors",
                    "h",
                    (
                        (
                            "sum by (account) (increase(evalstop_rollout_gpu_seconds_total[1d])) / 3600",
                            "{{account}}",
                        ),
                    ),
                    note="In the last day. Held: by actors that have ended. Lent: for which base actors were "
                    "let go. Saved: in Shadow, as the plans have it.",
                ),
                Panel(
                    "Steps by the reason of their plan",
                    "short",
                    (("sum by (reason) (increase(evalstop_rollout_steps_total[1h]))", "{{reason}}"),),
                    note="In the last hour.",
                ),
                Panel(
                    "Actors that ended unasked",
                    "short",
                    (("sum(increase(evalstop_rollout_actors_failed_total[1h]))", "actors"),),
                    note="In the last hour; those that were put aside among them.",
                ),
            ),
        ),
        Row(
            "Worker groups",
            (
                Panel("Groups", "short", (("max by (state) (evalstop_worker_groups)", "{{state}}"),)),
                Panel(
                    "Residents",
                    "short",
                    (
                        ("max by (state) (evalstop_worker_group_residents)", "{{state}}"),
                        ("max(evalstop_slowed_residents)", "slower than they allow"),
                    ),
                ),
                Panel(
                    "Turns",
                    "short",
                    (
                        ("sum by (end) (increase(evalstop_worker_group_turns_total[1h]))", "{{end}}"),
                        ("sum(increase(evalstop_worker_group_switches_total[1h]))", "with a switch"),
                    ),
                    note="In the last hour.",
                ),
                Panel(
                    "GPU-hours of groups",
                    "h",
                    (
                        (
                            "sum by (account) (increase(evalstop_worker_group_gpu_seconds_total[1d])) / 3600",
                            "{{account}}",
                        ),
                    ),
                    note="In the last day. Charged: to residents. Vacant: while a group had none.",
                ),
            ),
        ),
    ),
)

MACHINERY = Dashboard(
    uid="evalstop-machinery",
    title="EvalStop / Operator and extender",
    description="How the operator and the scheduler extender themselves are doing.",
    rows=(
        Row(
            "Leadership",
            (
                stat("Leaders", "sum(evalstop_leader)"),
                stat("Term", "max(evalstop_leader_epoch)"),
                Panel("Who leads", "short", (("evalstop_leader", "{{instance}}"),)),
                Panel(
                    "Clocks against the API server's",
                    "s",
                    (("evalstop_clock_skew_seconds", "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Loop and passes",
            (
                Panel(
                    "Loop lag",
                    "s",
                    (
                        (quantile(0.5, "evalstop_loop_lag_seconds", "instance"), "{{instance}} half"),
                        (quantile(0.99, "evalstop_loop_lag_seconds", "instance"), "{{instance}} 99 %"),
                    ),
                ),
                Panel(
                    "Passes", "ops", ((rate("evalstop_passes_total", "kind, result"), "{{kind}} {{result}}"),)
                ),
                Panel(
                    "Time of a pass",
                    "s",
                    (
                        (quantile(0.9, "evalstop_pass_seconds", "kind"), "{{kind}} with its writes"),
                        (quantile(0.9, "evalstop_plan_seconds", "kind"), "{{kind}} its plan"),
                    ),
                    note="Nine in ten are faster.",
                ),
                Panel("Keys that wait", "short", (("max by (kind) (evalstop_queue_depth)", "{{kind}}"),)),
            ),
        ),
        Row(
            "API server",
            (
                Panel(
                    "Writes",
                    "reqps",
                    (
                        (
                            'sum by (verb, resource) (rate(evalstop_api_calls_total{verb!~"get|list|watch"}'
                            f"{RATE}))",
                            "{{verb}} {{resource}}",
                        ),
                    ),
                ),
                Panel(
                    "Calls that failed",
                    "reqps",
                    (
                        (
                            "sum by (verb, resource, outcome) "
                            f'(rate(evalstop_api_calls_total{{outcome!~"2..|cancelled"}}{RATE}))',
                            "{{verb}} {{resource}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Objects in the cache",
                    "short",
                    (("max by (resource) (evalstop_objects)", "{{resource}}"),),
                ),
                Panel(
                    "Changes that the watch had missed",
                    "short",
                    (
                        (
                            "sum by (resource) (increase(evalstop_watch_missed_events_total[1h]))",
                            "{{resource}}",
                        ),
                    ),
                    note="In the last hour.",
                ),
            ),
        ),
        Row(
            "Scrapes",
            (
                Panel("Scrapes", "reqps", ((rate("evalstop_scrapes_total", "outcome"), "{{outcome}}"),)),
                Panel("Trainers", "short", (("max(evalstop_scrape_targets)", "being scraped"),)),
                Panel("Lateness", "s", (("max(evalstop_scrape_lag_seconds)", "latest scrape"),)),
            ),
        ),
        Row(
            "Extender",
            (
                Panel(
                    "Requests",
                    "reqps",
                    ((rate("evalstop_extender_requests_total", "verb, status"), "{{verb}} {{status}}"),),
                ),
                Panel(
                    "Time of an answer",
                    "s",
                    (
                        (quantile(0.5, "evalstop_extender_request_seconds", "verb"), "{{verb}} half"),
                        (quantile(0.99, "evalstop_extender_request_seconds", "verb"), "{{verb}} 99 %"),
                    ),
                ),
                Panel(
                    "Refusals", "ops", ((rate("evalstop_extender_refusals_total", "reason"), "{{reason}}"),)
                ),
                Panel(
                    "Pods that wait, GPUs that are kept",
                    "short",
                    (
                        ("max(evalstop_extender_unschedulable_pods)", "parked pods"),
                        ("max(evalstop_extender_reserved_gpus)", "GPUs kept for gangs"),
                    ),
                ),
                Panel("Ready", "short", (("evalstop_extender_ready", "{{instance}}"),)),
                stat(
                    "Days left of certificates",
                    "(min(evalstop_extender_certificate_expiry_timestamp_seconds) - time()) / 86400",
                    unit="d",
                ),
            ),
        ),
    ),
)

DASHBOARDS = (RUNS, MACHINERY)


def stale() -> list[str]:
    """Files that are not what they would be."""
    files = {dashboard.file: FOLDER / dashboard.file for dashboard in DASHBOARDS}
    texts = {dashboard.file: dashboard.text() for dashboard in DASHBOARDS}
    return [name for name, path in files.items() if not path.exists() or path.read_text() != texts[name]]
