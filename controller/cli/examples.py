"""Examples in the help of each command, as kubectl has them. A test has each command parse its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# (what it is for, the command)
EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "list": (
        ("All jobs that need somebody are in a state of their own", "evalstop list -A"),
        ("What changes in one namespace, with labels", "evalstop list -n team -l team=x --watch"),
    ),
    "get": (("One job on a page, or as it can be applied again", "evalstop get run -o yaml"),),
    "why": (
        ("Why a run was stopped, waits or is refused", "evalstop why run -n team"),
        ("Its marks with their cures, for a script", "evalstop why run -o json"),
    ),
    "history": (("What happened to a job, in its order", "evalstop history run"),),
    "pools": (("Which pools there are; one with its handovers", "evalstop pools research"),),
    "queue": (("Who waits in a pool, and why", "evalstop queue research --watch"),),
    "top": (
        ("All jobs, followed; ? lists the keys", "evalstop top -A"),
        ("The same where nothing may be changed", "evalstop top --readonly"),
    ),
    "dashboard": (("The dashboard on this machine, with your rights", "evalstop dashboard -n team"),),
    "mode": (("Have the operator record only, and touch nothing", "evalstop mode run Shadow"),),
    "stop": (("Keep the best checkpoint and free the GPUs", "evalstop stop run --wait"),),
    "resume": (
        ("Go on from the best kept checkpoint", "evalstop resume run"),
        (
            "Go on from another step, unstopped for eight evals",
            "evalstop resume run --step 300 --for-evals 8",
        ),
    ),
    "pin": (("Keep the checkpoint of a step", "evalstop pin run 300"),),
    "groups": (("Whose turn it is on shared worker groups, and who waits", "evalstop groups --help"),),
    "rollouts": (("What a job's rollout actors do", "evalstop rollouts --help"),),
    "report": (("What was stopped in a pool, as one file to pass on", "evalstop report --help"),),
    "simulate": (("What another rule would have done", "evalstop simulate run --rule glr"),),
    "export": (("A run's evals as a file", "evalstop export --evals --help"),),
    "what-if": (("What other rules would have done to all runs", "evalstop what-if --help"),),
    "replay": (("Whether an operator decided as this version would", "evalstop replay --help"),),
    "parity": (("One trace on a cluster and in the simulator", "evalstop parity --help"),),
    "rules": (("What rules would have done to a history of scores", "evalstop rules evaluate --help"),),
    "sim": (("The paper's comparison, on fewer seeds", "evalstop sim headline --seeds 4"),),
    "extender": (("What the extender does", "evalstop extender --help"),),
    "check": (("Look at a manifest before it is applied", "evalstop check -f run.yaml"),),
    "checkpoints": (("Which checkpoints a folder has, and which are whole", "evalstop checkpoints --help"),),
    "doctor": (
        ("The whole installation, and your own rights", "evalstop doctor"),
        ("One job: its pods, metrics and checkpoints", "evalstop doctor run -n team"),
    ),
    "version": (("Versions of all that decides", "evalstop version"),),
}


def epilog(name: str) -> str:
    """Return the examples of a command as its help's last part."""
    lines = [f"{what}:  {command}" for what, command in EXAMPLES.get(name, ())]
    return "\n\n".join(["Examples:", *lines]) if lines else ""
