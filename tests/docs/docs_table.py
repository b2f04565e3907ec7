"""Which test runs which command of the pages, or why none does."""

from __future__ import annotations

# Whole pages whose blocks a test runs or compares as they stand.
BLOCKS = {
    "cli.md": "tests/cli/test_cli_docs.py::test_examples_are_what_the_commands_print",
    "reading-a-decision.md": "tests/cli/test_cli_docs.py::test_examples_are_what_the_commands_print",
    "troubleshooting.md": "tests/cli/test_cli_docs.py::test_examples_are_what_the_commands_print",
}
# ```sh blocks of these are pasted whole, as they stand, into a terminal.
PASTED = {"first-ten-minutes.md": "tests/story/test_story_ten_minutes.py::test_the_blocks_as_they_stand"}
# ```sh blocks of these are run line by line on a real API server.
ON_A_CLUSTER = ("writing-a-job.md", "security.md", "troubleshooting.md")
CLUSTER = "tests/docs/test_docs_cluster.py::test_the_pages_commands_on_a_real_api_server"
DOCS = "tests/docs/test_docs_cluster.py::"
CHANGE, SEE = (
    DOCS + "test_what_operators_are_told_to_change",
    DOCS + "test_what_operators_are_told_to_look_at",
)
HERE = "tests/docs/test_docs_commands.py::test_rules_of_the_page_on_stop_actions"
INSTALLED = "tests/chart/test_chart_installed.py::"
LIFECYCLE = "tests/local/test_local_lifecycle.py::test_command_line_from_up_to_down"
BY_HAND = "by hand: "  # and why
DOCKER = BY_HAND + "it takes docker; docs/operate/install.md shows what it printed"
MINUTES = BY_HAND + "it takes minutes and both cores; what it printed stands on the page"
WEB_QUEUE = "tests/web/test_web_queue.py::"
STUDY = "tests/docs/test_docs_study.py::test_the_commands_as_they_stand"
LOOK = DOCS + "test_commands_within_sentences"

SHOWN = {
    "evalstop checkpoints": "tests/cli/test_cli_checkpoints.py::"
    "test_weights_that_only_their_owner_reads_cannot_be_pinned_by_another",
    "make demo STORY=elastic": MINUTES,
    "make demo STORY=shared": MINUTES,
    "make demo STORY=shared JOBS=3": MINUTES,
    "make demo": "tests/demo/test_demo_story.py::test_the_story_happens",
    "make test": BY_HAND + "it is what runs this",
    "make generate": "tests/chart/test_chart_schema.py::test_generated_files_are_up_to_date",
    "make check": BY_HAND + "before each commit; it runs no test",
    "make setup": BY_HAND + "the environment that runs this was made by it",
    "make images": DOCKER,
    "make kind": DOCKER,
    "make test-kind": DOCKER,
    "make kind-parity": DOCKER,
    "make kind-down": DOCKER,
    # a plane of one's own
    "python -m deploy.local up": "tests/local/test_local_cli.py::test_up",
    "python -m deploy.local status": LIFECYCLE,
    "python -m deploy.local down": LIFECYCLE,
    'eval "$(python -m deploy.local env)"': LIFECYCLE,
    "kubectl get namespaces": LIFECYCLE,
    "kubectl get nodes": "tests/agent/test_agent_crash.py::test_a_killed_agent_comes_back_and_goes_on",
    # install, upgrade, remove
    "helm install evalstop": INSTALLED + "test_installed_and_the_notes_say_what_comes_next",
    "helm test evalstop": INSTALLED + "test_helm_test_looks_at_it_from_inside",
    "helm template evalstop": "tests/docs/test_docs_study.py::test_a_wrong_value_is_refused_as_the_page_says",
    "helm upgrade evalstop": INSTALLED
    + "test_the_documented_upgrade_keeps_what_was_set_and_the_pods_of_running_jobs",
    "helm uninstall evalstop": INSTALLED + "test_uninstalling_leaves_jobs_definitions_pools_and_checkpoints",
    "image=$(kubectl -n kube-system get pods": DOCKER,
    "kubectl patch gpupool research": CHANGE,
    "kubectl delete rlhfjobs": CHANGE,
    "kubectl delete gpupools": CHANGE,
    "kubectl delete crd": CHANGE,
    "kubectl delete priorityclass": CHANGE,
    "kubectl taint nodes": CHANGE,
    # run it
    "kubectl -n evalstop-system get pods,lease": SEE,
    "kubectl -n evalstop-system logs": SEE,
    "kubectl -n evalstop-system get lease": SEE,
    "kubectl -n evalstop-system exec": BY_HAND + "it looks into the pod of an operator that runs",
    "kubectl apply -k deploy/extender": "tests/extender/test_extender_process.py::"
    "test_the_manifests_are_accepted_and_grant_no_wildcard",
    "evalstop extender certificates": "tests/extender/test_extender_parts.py",
    "evalstop extender config": "tests/extender/test_extender_parts.py",
    "evalstop dashboard": "tests/cli/test_cli_screen.py::test_the_dashboard_is_served_until_ctrl_c",
    "python -m controller.web.dashboard": "tests/browser/test_browser_cluster.py",
    "kubectl port-forward": "tests/web/test_web_queue.py::test_by_port_forward",
    "kubectl create token": "tests/browser/test_browser_cluster.py",
    "kubectl create token prometheus-k8s -n monitoring": BY_HAND
    + "tests/chart/test_chart_installed.py reads metrics so, by the pods' addresses",
    "evalstop groups": "tests/cli/test_cli_groups.py::test_the_page",
    "evalstop rollouts run": "tests/cli/test_cli_rollouts.py::test_the_page",
    "evalstop queue research": WEB_QUEUE + "test_the_command_prints_the_queue",
    "evalstop queue research --job": WEB_QUEUE + "test_one_job_and_json",
    "evalstop list -n team -w": "tests/cli/test_cli_watch.py::test_list_prints_the_rows_that_change",
    "evalstop list -A -o json": "tests/docs/test_docs_commands.py::test_what_scripts_read_is_there",
    "evalstop why run -o json": "tests/docs/test_docs_commands.py::test_what_scripts_read_is_there",
    "evalstop resume run --from best --wait": "tests/cli/test_cli_cluster.py::"
    "test_wait_ends_when_the_operator_has_done_it",
    # study
    "evalstop rules generate FILE": STUDY,
    "evalstop rules generate plain.csv": HERE,
    "evalstop rules generate pairs.csv": HERE,
    "evalstop rules evaluate plain.csv": HERE,
    "evalstop rules evaluate pairs.csv": HERE,
    "evalstop rules evaluate HISTORY": "tests/sim_rules/test_sim_rules_evidence.py::test_commands_end_to_end",
    "evalstop rules tune": "tests/sim_rules/test_sim_rules_evidence.py::test_commands_end_to_end",
    "evalstop rules flat": "tests/sim_rules/test_sim_rules_evidence.py::test_flat_rates_as_text_and_as_json",
    "evalstop rules fleet": "tests/sim_rules/test_sim_rules_fleet.py::test_as_text_and_as_json",
    "evalstop rules outliers": "tests/sim_rules/test_sim_rules_outliers.py::test_as_text_and_as_json",
    "evalstop rules table": STUDY,
    "kubectl patch rlhfjob run": CHANGE,
    "kubectl patch rlhfjob refused": "tests/cli/test_cli_cluster.py::test_the_printed_cure_can_be_pasted",
    "find . -type f": "tests/checkpoints/test_checkpoints_safety.py::test_coreutils_compute_the_same_digest",
    "python -m examples.trainer": "tests/docs/test_docs_commands.py::test_the_run_of_the_trainer_contract",
    "evalstop sim replay LOG": STUDY,
    "evalstop sim record examples/traces/sixty.jsonl": STUDY,
    "evalstop sim rollout": "tests/sim_cli/test_sim_rollout_cli.py",
    "evalstop sim sharing": "tests/sim_cli/test_sim_sharing_cli.py",
    "evalstop doctor --family": "tests/trainer/test_trainer_conform.py::"
    "test_doctor_shows_it_with_what_to_write_into_the_pool",
    "evalstop parity": "tests/parity/test_parity_cluster.py::test_a_small_trace_on_a_cluster_that_is_named",
    "evalstop what-if decisions.jsonl": STUDY,
    "evalstop what-if examples/histories/demo.jsonl": "tests/what_if/test_what_if_cli.py::"
    "test_the_page_shows_what_the_command_prints",
    "evalstop export decisions.jsonl": STUDY,
    "evalstop export --pool": STUDY,
}

# Within sentences. `evalstop` is not among them: that its commands and flags are known is looked at for each.
WITHIN: dict[str, str] = {
    "python -m controller.actor": "tests/rollouts/test_rollouts_processes.py",
    "python -m controller.group": "tests/group/test_group_turns.py",
    "python -m controller.group --help": "tests/group/test_group_settings.py",
    "python -m controller.group.turn_log FILE": "tests/group/test_group_parts.py",
    "python -m evalstop_client.worker": "tests/group/test_group_worker.py",
    "kubectl delete jobs -n evalstop-workers -l evalstop.dev/group=NAME": (
        "tests/rollouts/test_rollouts_groups.py"
    ),
    "python -m examples.engine": "tests/rollouts/test_rollouts_processes.py",
    "python -m controller.notify": "tests/notify/test_notify_process.py",
    "python -m controller.steps.planner": "tests/rollouts/test_rollouts_steps.py",
    "make demo": SHOWN["make demo"],
    "make demo STORY=elastic": MINUTES,
    "python -m deploy.local.demo.elastic": MINUTES,
    "make demo STORY=shared": MINUTES,
    "make test": SHOWN["make test"],
    "python -m deploy.images.build --twice": DOCKER,
    "python -m deploy.images.sizes": DOCKER,
    "python -m deploy.local.pin": "tests/local/test_local_download.py::"
    "test_digests_are_pinned_by_asking_the_releases_once",
    "kubectl debug": BY_HAND + "it puts a person's tools beside a program of theirs",
    "make kind": DOCKER,
    "make test-kind": DOCKER,
    "make kind-parity": DOCKER,
    "make generate": SHOWN["make generate"],
    "make check": SHOWN["make check"],
    "make bench": MINUTES,
    "make test-pythons": MINUTES,
    "make setup": SHOWN["make setup"],
    "python -m deploy.local tools": BY_HAND
    + "this suite begins with what it calls (tests/support/cluster_report.py)",
    "python -m deploy.helm": "tests/local/test_local_first_job.py::"
    "test_the_time_to_the_first_admitted_job_is_printed",
    "python -m tests.bench": MINUTES,
    "python -m tests.bench.cost_curve": "tests/sim_experiments/test_sim_cost_curve.py",
    "python -m tests.bench tenants": BY_HAND
    + "it takes minutes; tests/bench/test_tenants_bench.py makes a small one",
    "python -m tests.bench faults": BY_HAND
    + "it takes hours; tests/bench/test_faults_bench.py makes twelve of its runs",
    "python -m tests.faults --runs": BY_HAND
    + "it takes a night; `pytest tests/faults` plays what takes a minute",
    "python -m tests.faults --ledger": "tests/faults/test_faults.py",
    "python -m tests.faults --found": "tests/faults/test_faults.py",
    "python -m tests.faults --mutants": BY_HAND + "it takes minutes of both cores",
    "python -m tests.torn": BY_HAND
    + "it installs real training libraries; `pytest tests/torn` plays the scripts",
    "python -m tests.sweep": BY_HAND
    + "it takes minutes; tests/browser/test_browser_sweep.py looks at those pages in which most can go wrong",
    "python -m tests.story.ten_minutes": BY_HAND
    + "it runs the whole demo; the test of the page pastes all blocks but that one and the last",
    "python -m tests.browser.screenshots": BY_HAND + "it draws the pages that tests/browser looks at",
    "python -m controller.operator": "tests/operator/test_operator_process.py",
    "python -m controller.operator --help": "tests/docs/test_docs_study.py::test_help_is_printed",
    "python -m controller.extender": "tests/docs/test_docs_study.py::test_help_is_printed",
    "python -m controller.checkpoints.access": "tests/checkpoints/test_checkpoints_access.py",
    "python -m examples.trainer": SHOWN["python -m examples.trainer"],
    "python -m examples.trainer --group": "tests/group/test_group_example.py",
    "python -m evalstop_client.conform": "tests/trainer/test_trainer_conform.py",
    "python -m sim.compiled": BY_HAND + "it takes a C compiler, and minutes",
    "python -m tests.support.cli_docs": BLOCKS["cli.md"],
    "python tests/trainer/trainer_curves.py": BY_HAND
    + "hundreds of trainings; tests/trainer/test_trainer_curves.py makes twenty of them",
    "kubectl create clusterrolebinding prometheus-evalstop": INSTALLED
    + "test_every_right_that_is_given_is_used_and_every_one_that_is_used_is_given",
    "kubectl auth can-i get /metrics": INSTALLED
    + "test_every_right_that_is_given_is_used_and_every_one_that_is_used_is_given",
    # alerts.md and others: what there is to see
    "kubectl get rlhfjob": LOOK,
    "kubectl get rj": LOOK,
    "kubectl get gp": LOOK,
    "kubectl get wgr": LOOK,
    "kubectl -n evalstop-workers get": LOOK,
    "kubectl get pods -A": LOOK,
    "kubectl get lease": LOOK,
    "kubectl get node": LOOK,
    "kubectl get --raw": LOOK,
    "kubectl -n evalstop-system get": LOOK,
    "kubectl -n evalstop-system get certificate": BY_HAND + "a kind of cert-manager's",
    "kubectl -n evalstop-system logs": LOOK,
    "kubectl -n evalstop-system top": BY_HAND + "it takes a metrics server",
    "kubectl -n NAMESPACE get jobs,pods": LOOK,
    "kubectl -n kube-system get pods": LOOK,
    "kubectl auth can-i patch rlhfjobs": LOOK,
    "kubectl edit rlhfjob NAME": LOOK,
    "kubectl patch rlhfjob NAME": LOOK,
    "kubectl label namespace evalstop-system": LOOK,
    "kubectl label job my-trainer": "tests/cli/test_cli_check.py",
    "kubectl label pods POD": "tests/cli/test_cli_pod_starts.py",
    "kubectl apply": LOOK,
    "kubectl delete -k deploy/manifests": LOOK,
    "helm status evalstop": BY_HAND + "it prints the notes that helm install has printed, which a test reads",
    "helm history evalstop": BY_HAND + "Helm's own list of revisions",
}
# Named, not shown: nobody can type them as they stand.
MENTIONED = {
    "kubectl rlhf",
    "kubectl rlhf …",
    "kubectl get",
    "kubectl port-forward",
    "kubectl describe pod",
    "kubectl patch",
    "kubectl label node",
    "kubectl cp",
    "helm install",
    "helm install --wait",
    "helm test",
    "helm template",
    "helm upgrade",
    "helm rollback",
}
# Words of a command that the test named above does not have, and why it runs the command all the same.
OTHERWISE: dict[str, tuple[set[str], str]] = {
    "helm upgrade evalstop": (
        {"--reset-then-reuse-values", "--set"},
        "the test upgrades with all values anew, since it gives them by a file",
    ),
    "make generate": (
        {"controller.api.generate", "deploy.helm.generate", "deploy.grafana"},
        "the test calls what `--check` of these calls",
    ),
    "evalstop parity": (
        {"--minutes", "--at-once"},
        "the bounds on a run of an hour; the test's trace is short",
    ),
}
