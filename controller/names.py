"""Every name that two parts of the system must agree on, in one place.

Standard library only, no logic: any part may import it.
"""

GROUP = "evalstop.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

GPU_RESOURCE = "nvidia.com/gpu"
DEVICES = "nvidia.com/"  # before all that its driver counts: slices of a GPU among them, nvidia.com/mig-…
DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"  # before a DeviceClass: a pod's count of its devices
GPU_DRIVER = "gpu.nvidia.com"  # of GPUs that are given out by dynamic resource allocation

# Taint on the nodes of a GPUPool; its value is the pool.
POOL_TAINT = f"{GROUP}/pool"
# Label of a node that names its rack.
RACK_LABEL = "topology.kubernetes.io/rack"
# `schedulerName` of RLHF pods: a kube-scheduler process of their own, the one that asks the extender.
SCHEDULER_NAME = "evalstop-scheduler"
# Of the installation, by default.
NAMESPACE = "evalstop-system"
OPERATOR = "evalstop-operator"  # its Deployment, ServiceAccount and Lease
# Port of the operator's queue API, by default (docs/operate/queueing.md).
QUEUE_API_PORT = 8081
# The CSIStorageCapacity that the extender touches, so that kube-scheduler tries parked pods again.
WAKE_OBJECT = "evalstop-wake"
# PriorityClass of the pods of RLHF runs (deploy/manifests/priorityclass.yaml): they evict nobody.
PRIORITY_CLASS = "evalstop-rlhf"
# Condition of a GPUPool: its limits hold stops back, or would. True is bad; of its other conditions False is.
HELD_BACK = "StopsHeldBack"
# Kueue's label that names the queue of a workload.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# In the audience of tokens that API servers take, unless they are told another.
API_AUDIENCE = "kubernetes.default.svc"
# `spec.controllerName` of the AdmissionChecks that this operator answers.
CHECK_CONTROLLER = f"{GROUP}/gang"

# Labels on everything the operator creates for an RLHFJob (child workload, its pods, ConfigMap, access Jobs).
LABEL_JOB = f"{GROUP}/job"
LABEL_COMPONENT = f"{GROUP}/component"  # workload | run | access | actor
LABEL_ACTOR = f"{GROUP}/actor"  # rollout actors: the number of the start
LABEL_OPERATION = f"{GROUP}/operation"  # access Jobs: secure | retain | restore | pin
LABEL_POOL = POOL_TAINT  # on pods: the pool whose GPUs they were admitted to
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "evalstop"

ANNOTATION_JOB_UID = f"{GROUP}/job-uid"
ANNOTATION_REQUEST = f"{GROUP}/request"  # access Jobs: hash of the request they carry out
ANNOTATION_ATTEMPT = f"{GROUP}/attempt"
ANNOTATION_ADMISSION = f"{GROUP}/admission"
ANNOTATION_REFUSED = f"{GROUP}/refused"  # on the operator's Lease: rights that it lacks, and since when
ANNOTATION_UNWRITTEN = f"{GROUP}/unwritten"  # on the operator's Lease: statuses that the API server refuses
ANNOTATION_NAMESPACES = f"{GROUP}/namespaces"  # on the operator's Lease: those that it serves, if not all
ANNOTATION_TEMPLATE = f"{GROUP}/template"  # of a worker group's Job: digest of the family's template
ANNOTATION_SWITCHED_OFF = f"{GROUP}/switched-off"  # on a Kueue Workload: by this operator, and why

FINALIZER = f"{GROUP}/stop"
FIELD_MANAGER = "evalstop"

# The way back to the trainer: ConfigMap `<rlhfjob>-run`, mounted read-only in every container.
RUN_CONFIGMAP_SUFFIX = "-run"
RUN_KEY = "run.json"
EXIT_STARVED = 75  # of a trainer that had no rollout actor left (EX_TEMPFAIL); its client has it, too
STEPS_CA_KEY = "steps-ca.crt"  # of jobs with rollout actors: the authority of the step API's certificate
RUN_VOLUME = "evalstop-run"
RUN_DIR = "/etc/evalstop/run"
RUN_DIR_ENV = "EVALSTOP_RUN_DIR"

# Of 15 digits: exact as a float, too. The API, the page, requests to the store and names on disk go as far.
UID_MAX = 2**31 - 1  # of a user or a group, as Kubernetes takes it
STEP_MAX = 10**15 - 1

# Metric names of the trainer contract (docs/use/trainer-contract.md).
METRIC_EVAL_SCORE = "rlhf_eval_score"  # {metric, step, attempt, evaluator}
METRIC_EVAL_STDERR = "rlhf_eval_score_stderr"  # {metric, step, attempt}
METRIC_EVAL_SAMPLES = "rlhf_eval_samples"  # {metric, step, attempt}
METRIC_EVAL_PROMPTS = "rlhf_eval_prompts"  # {metric, step, attempt, prompt_set}
METRIC_EVAL_PROXY = "rlhf_eval_proxy_reward"  # {metric, step, attempt}: of that eval's policy
# The policy of that eval less that of step `reference`, prompt by prompt, on the same fresh prompts.
METRIC_PAIRED_PROMPTS = "rlhf_paired_prompts"  # {metric, step, attempt, reference}
METRIC_PAIRED_MEAN = "rlhf_paired_mean"  # {metric, step, attempt, reference}
METRIC_PAIRED_VARIANCE = "rlhf_paired_variance"  # {metric, step, attempt, reference}: of one difference
# That eval less the one of step `reference` on the same prompts, from the results of both as they were.
METRIC_PROMPT_PAIR_PROMPTS = "rlhf_prompt_pair_prompts"  # {metric, step, attempt, reference, prompt_set}
METRIC_PROMPT_PAIR_MEAN = "rlhf_prompt_pair_mean"  # {metric, step, attempt, reference}
METRIC_PROMPT_PAIR_VARIANCE = "rlhf_prompt_pair_variance"  # {metric, step, attempt, reference}
METRIC_PROMPT_PAIRS_DROPPED = "rlhf_prompt_pairs_dropped"  # {metric, step, attempt, reason}
PROMPT_PAIRS_MAX = 3  # of one eval: with the best so far, with the last, with the step that run.json names
METRIC_EVALS_TOTAL = "rlhf_evals_total"  # {metric, attempt}
METRIC_PROXY_REWARD = "rlhf_proxy_reward"
METRIC_KL = "rlhf_kl"
METRIC_LOSS = "rlhf_loss"
METRIC_STEP = "rlhf_step"
METRIC_TOTAL_STEPS = "rlhf_total_steps"
METRIC_PHASE_SECONDS = "rlhf_phase_seconds_total"  # {phase, gpus}
METRIC_STEP_SECONDS = "rlhf_step_seconds"  # {step, gpus}: of the newest steps
METRIC_CHECKPOINT_STEP = "rlhf_checkpoint_step"
METRIC_RESUMED_STEP = "rlhf_resumed_step"
METRIC_REQUEST_SERVED = "rlhf_request_served"
METRIC_EVALUATOR_INFO = "rlhf_evaluator_info"  # {version}
METRIC_RUN_INFO = "rlhf_run_info"  # {uid, attempt}: whose page it is
METRIC_PREFIX = "rlhf_"

EVALS_KEPT = 32  # evals a trainer keeps exposed, and evals an RLHFJob's status keeps
# metrics with evals that a trainer keeps exposed, and that are read of a page: the first ones
METRICS_KEPT = 32

METRICS_PORT_NAME = "metrics"
DEFAULT_METRICS_PORT = 9400

# Where access Jobs say how far they have come (controller/checkpoints/progress.py).
PROGRESS_PORT = 9401
PROGRESS_PORT_NAME = "progress"
PROGRESS_PREFIX = "evalstop_access_"

AUTO_LAYOUT = "Auto"  # of checkpoints: found by what lies in their location
# The folder, inside a job's checkpoint location, in which the operator's hard links live.
PINS_FOLDER = ".evalstop"

# The step API of rollouts: whom its tokens are for, and where pods find theirs.
STEPS_AUDIENCE = f"{GROUP}/steps"
STEPS_TOKEN_DIR, STEPS_TOKEN_VOLUME = f"/var/run/secrets/{GROUP}", "evalstop-steps"
STEPS_TOKEN_SECONDS = 3600
ACTOR_PORT = 8700  # of the sidecar in an actor's pod
GROUP_PORT = 8710  # of the supervisor in a worker group's pod

# Image names of the shipped manifests; deploy/local maps them to local environments.
OPERATOR_IMAGE = "evalstop/operator"
ACCESS_IMAGE = "evalstop/access"
DASHBOARD_IMAGE = "evalstop/dashboard"
ACTOR_IMAGE = "evalstop/actor"  # the sidecar of rollout actors
TRAINER_IMAGE = "evalstop/example-trainer"
WORKERS_IMAGE = "evalstop/example-workers"  # a worker group of the example family
