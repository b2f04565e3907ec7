"""What a condition's message proposes: the value that was meant, where the job or its page shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health
from controller.policy.job.types import AccessView, ScrapeOutcome, ScrapeView
from controller.policy.wording import other_way
from tests.support.policy_world import PolicyWorld


def running(**wishes: object) -> tuple[PolicyWorld, object]:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2, **wishes)
    world.settle()
    return world, job


def told(world: PolicyWorld, type_: str) -> str:
    found = world.jobs["ns/a"].record.condition(type_)
    assert found is not None
    return str(found.message)


def test_a_plan_of_nodes_is_one_until_the_gang_is_there() -> None:
    """On main "planned on node-3, node-3" stood for as long as it ran."""
    world, _ = running()
    assert world.jobs["ns/a"].record.condition(c.RUNNING).status
    assert told(world, c.ADMITTED) == "GPUs granted, on n1"


def test_a_metric_that_is_spelt_alike_is_proposed() -> None:
    world, job = running()
    page = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold_reward", "response_length"))
    job.observed = replace(job.observed, scrape=page)
    job.wish(metric="gold_rewards", metric_index=1)
    world.step("ns/a")
    message = told(world, c.METRICS)
    assert message.startswith("spec.metrics[1]: no eval of 'gold_rewards' is exported")
    assert message.endswith("did you mean 'gold_reward'?")
    (mark,) = [one for one in health(job.record, world.now) if one.mark is Mark.UNWATCHED]
    cure = mark.cure().filled("a", "ns", "p", "", mark.message)
    assert '"path":"/spec/metrics/1/name","value":"gold_reward"' in cure.command


@pytest.mark.parametrize(
    ("metric", "higher", "told"),
    [
        ("eval_loss", True, "Minimize"),
        ("evalLoss", True, "Minimize"),
        ("val/perplexity@8", True, "Minimize"),
        ("WER", True, "Minimize"),
        ("toxicity_score", True, "Minimize"),
        ("KL", True, "Minimize"),
        ("eval_loss", False, ""),
        ("negative_loss", True, ""),
        ("gold_reward", True, ""),
        ("gold_reward", False, "Maximize"),
        ("val-core/gsm8k/acc/mean@8", False, "Maximize"),
        ("loss_of_reward", True, ""),  # it says both
        ("glossary", True, ""),
        ("helpfulness", False, ""),
    ],
)
def test_a_direction_that_is_against_the_metrics_name_is_told(metric: str, higher: bool, told: str) -> None:
    said = other_way(metric, higher)
    assert bool(said) is bool(told)
    assert not told or said.endswith(f"its direction is {told}")


def test_what_the_template_says_of_port_and_address_stands_beside_what_was_seen() -> None:
    hint = "the template has port 9400 by the name metrics: did you mean '9400'?"
    world, job = running(address_hint=hint)
    for outcome, said in ((ScrapeOutcome.UNREACHABLE, True), (ScrapeOutcome.NO_PODS, False)):
        job.observed = replace(job.observed, scrape=ScrapeView(outcome, "not reachable"))
        world.step("ns/a")
        assert (hint in told(world, c.METRICS)) is said


def test_a_folder_that_the_template_names_stands_beside_one_that_is_empty() -> None:
    world, job = running(folder_hint="/run")
    world.scores("ns/a", 0.1)
    world.step("ns/a")
    waited = job.record.access
    assert waited is not None
    empty = (
        "no checkpoint of steps 0 to 1 in /x (layout Plain); complete ones there: none; "
        "no checkpoint of any known layout lies there"
    )
    answer = AccessView(
        waited.request_id,
        waited.operation,
        finished=True,
        ok=False,
        reason="CheckpointMissing",
        message=empty,
    )
    job.observed = replace(job.observed, access=(answer,))
    world.step("ns/a")
    message = told(world, c.SECURED)
    assert "the template names /run: did you mean '/run'?" in message
    assert "maxStepLag" not in message, "that would cure nothing"
    (mark,) = [one for one in health(job.record, world.now) if one.reason == "CheckpointMissing"]
    assert '"value":"/run"' in mark.cure().filled("a", "ns", "p", "", mark.message).patch
