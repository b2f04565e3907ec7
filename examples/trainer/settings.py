"""Command line and environment of the trainer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalstop_client.client import DEFAULT_PORT
from examples.rollouts.learner import SequenceRecipe
from examples.trainer.training import Recipe

ROLLOUTS = ("off", "local", "pods")
GROUP_AUTO = "auto"
RESUME_AUTO = "auto"
RESUME_FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Settings:
    """One trainer process. Steps count policy-gradient steps; seconds are wall-clock."""

    recipe: Recipe
    steps: int
    eval_every: int
    checkpoint_every: int
    keep: int
    seed: int
    checkpoints: Path | None
    resume: str
    metric: str
    host: str
    port: int
    record: Path | None
    step_seconds: float
    rollout_seconds: float
    train_seconds: float
    linger_seconds: float
    stop_grace_seconds: float
    checkpoint_on_term: bool
    rollouts: str  # who generates, of ROLLOUTS
    sequences: SequenceRecipe  # of a run whose rollouts are not off
    rollouts_record: Path | None
    rollout_weights: Path | None  # folder that actors share; None: weights are pushed
    starve_seconds: float
    group: str | None  # who makes the updates: None: this process; GROUP_AUTO; else a file with a ticket
    index: int  # completion index in an Indexed Job; only 0 speaks for the job


def parse(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from the command line; exit with code 2 and a message on a bad one."""
    parser = _parser(environment)
    args = parser.parse_args(arguments)
    recipe_default = Recipe()
    recipe, sequences = Recipe(), SequenceRecipe()
    try:
        recipe = Recipe(args.preferences, args.kl, args.lr, args.batch, args.eval_samples)
        if args.rollouts != "off":
            # Rates of its own, unless they are given: responses are longer, and batches smaller.
            lr = args.lr if args.lr != recipe_default.lr else sequences.lr
            kl = args.kl if args.kl != recipe_default.kl else sequences.kl
            sequences = SequenceRecipe(args.rollout_prompts, args.rollout_copies, args.rollout_most, kl, lr)
    except ValueError as fault:
        parser.error(f"--{str(fault).replace('_', '-')}")
    if args.rollouts == "off" and args.group is None and args.train_seconds:
        parser.error(
            "--train-seconds: expected --rollouts local or pods, whose steps generate and then train, "
            "or --group"
        )
    if args.rollouts != "off" and args.group is not None:
        parser.error("--group: expected --rollouts off, whose policy the group's family has")
    if args.rollouts != "off" and args.rollout_seconds:
        parser.error("--rollout-seconds: expected --rollouts off; others take as long as they take")
    if args.group is not None and environment.get("JOB_COMPLETION_INDEX", "0") != "0":
        parser.error("--group: expected a gang of one pod; one process of a job takes turns")
    if args.rollouts == "pods" and environment.get("JOB_COMPLETION_INDEX", "0") != "0":
        parser.error("--rollouts pods: expected a gang of one pod; only member 0 of a job may ask for actors")
    if args.rollout_weights is not None and args.rollouts != "pods":
        parser.error("--rollout-weights: expected --rollouts pods, whose actors load weights")
    if args.rollout_weights is not None and not args.rollout_weights.is_dir():
        parser.error(f"--rollout-weights: {str(args.rollout_weights)!r} is no folder, expected one that is")
    index = environment.get("JOB_COMPLETION_INDEX", "0")
    if not (index.isascii() and index.isdigit()):
        parser.error(f"JOB_COMPLETION_INDEX: expected an integer >= 0, got {index!r}")
    return Settings(
        recipe=recipe,
        steps=args.steps,
        eval_every=args.eval_every,
        checkpoint_every=args.checkpoint_every or args.eval_every,
        keep=args.keep,
        seed=args.seed,
        checkpoints=args.checkpoints,
        resume=args.resume,
        metric=args.metric,
        host=args.host,
        port=args.port,
        record=args.record,
        step_seconds=args.step_seconds,
        rollout_seconds=args.rollout_seconds,
        train_seconds=args.train_seconds,
        linger_seconds=args.linger_seconds,
        stop_grace_seconds=args.stop_grace_seconds,
        checkpoint_on_term=args.checkpoint_on_term,
        rollouts=args.rollouts,
        sequences=sequences,
        rollouts_record=args.rollouts_record,
        rollout_weights=args.rollout_weights,
        starve_seconds=args.starve_seconds,
        group=args.group,
        index=int(index),
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    default = Recipe()
    parser = argparse.ArgumentParser(
        prog="python -m examples.trainer",
        description="A small, real RLHF run. Few --preferences and --kl 0 over-optimise the reward model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--steps", type=_count, default=400, help="policy-gradient steps")
    run.add_argument("--eval-every", type=_positive, default=10, help="steps between held-out evals")
    run.add_argument("--eval-samples", type=_count, default=default.eval_samples, help="responses per eval")
    run.add_argument("--seed", type=_count, default=0, help="of comparisons, rollouts and evals")
    run.add_argument(
        "--preferences", type=_count, default=default.preferences, help="labelled comparisons for the proxy"
    )
    run.add_argument("--kl", type=float, default=default.kl, help="KL penalty, proxy reward per nat; 0: none")
    run.add_argument("--lr", type=float, default=default.lr, help="learning rate")
    run.add_argument("--batch", type=_count, default=default.batch, help="responses per step")
    run.add_argument(
        "--step-seconds", type=_seconds, default=0.0, help="a step takes at least this long (for demos)"
    )
    rollouts = parser.add_argument_group("rollouts")
    rollouts.add_argument(
        "--rollouts",
        choices=ROLLOUTS,
        default="off",
        help="responses of any length, by this process or by actor pods; off: ten tokens each, as ever",
    )
    of = SequenceRecipe()
    rollouts.add_argument("--rollout-prompts", type=_positive, default=of.prompts, help="prompts of a step")
    rollouts.add_argument("--rollout-copies", type=_positive, default=of.copies, help="responses to each")
    rollouts.add_argument("--rollout-most", type=_positive, default=of.most, help="tokens of a response")
    rollouts.add_argument(
        "--rollouts-record", type=Path, metavar="FILE", help="append what each step took as a JSON line"
    )
    rollouts.add_argument(
        "--rollout-weights",
        type=Path,
        metavar="DIR",
        help="folder that actors share, for each step's weights; without it they are pushed",
    )
    rollouts.add_argument(
        "--train-seconds",
        type=_seconds,
        default=0.0,
        help="the rest of a step, after its responses, takes at least this long (for demos)",
    )
    rollouts.add_argument(
        "--rollout-seconds",
        type=_seconds,
        default=0.0,
        help="a step's responses take at least this long (for demos)",
    )
    rollouts.add_argument(
        "--starve-seconds", type=_seconds, default=60.0, help="without any actor before the run gives up"
    )
    shared = parser.add_argument_group("shared worker group")
    shared.add_argument(
        "--group",
        nargs="?",
        const=GROUP_AUTO,
        default=None,
        metavar="auto|FILE",
        help="a worker group makes the updates: the one that run.json names, or that a file has a ticket for",
    )
    kept = parser.add_argument_group("checkpoints")
    kept.add_argument("--checkpoints", type=Path, metavar="DIR", help="folder; without it none are written")
    kept.add_argument(
        "--checkpoint-every",
        type=_positive,
        metavar="N",
        help="steps between checkpoints; unset: --eval-every",
    )
    kept.add_argument("--keep", type=_positive, default=5, help="checkpoints that rotation leaves")
    kept.add_argument(
        "--resume",
        default=RESUME_AUTO,
        metavar="auto|fresh|PATH",
        help="auto: what run.json names, else the latest checkpoint, else a fresh start",
    )
    kept.add_argument(
        "--checkpoint-on-term", action="store_true", help="on SIGTERM, save a checkpoint before leaving"
    )
    out = parser.add_argument_group("reports")
    out.add_argument("--metric", type=_name, default="gold_reward", help="name of the eval metric")
    out.add_argument("--port", type=_port, default=DEFAULT_PORT, help="of /metrics; 0: any free one")
    out.add_argument(
        "--host",
        default=environment.get("POD_IP") or "127.0.0.1",
        help="address to serve on; default $POD_IP",
    )
    out.add_argument("--record", type=Path, metavar="FILE", help="append every eval as a JSON line")
    out.add_argument(
        "--linger-seconds",
        type=_seconds,
        default=0.0,
        help="after the last step, stay up so that the last evals can be scraped",
    )
    out.add_argument(
        "--stop-grace-seconds",
        type=_seconds,
        default=300.0,
        help="after a stop request, wait this long for SIGTERM before leaving by itself",
    )
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected an integer >= 0, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    value = _count(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return value


def _port(text: str) -> int:
    value = _count(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e7:
        raise argparse.ArgumentTypeError(f"expected seconds >= 0, got {text!r}")
    return value


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got ''")
    return text
