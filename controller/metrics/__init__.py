"""Trainer endpoint -> ScrapeView: which pod, which addresses, a guarded GET, a capped parse, one shared loop.

``loop.ScrapeLoop`` calls ``scrape.Scraper`` for every registered ``scrape.Target`` and delivers a
`policy.job.types.ScrapeView`. Whatever a trainer answers ends as an outcome with a message, never as
an exception.

May import: `controller.api`, `controller.policy`; nothing of kube, checkpoints or workloads (contract "Arrows
run one way").
Tests: tests/metrics.
"""

from controller.metrics.address import AddressPolicy
from controller.metrics.loop import LoopStats, ScrapeLoop
from controller.metrics.parse import Limits, MetricsError, parse
from controller.metrics.pods import metrics_port, pick_pod
from controller.metrics.scrape import Scraper, Target

__all__ = [
    "AddressPolicy",
    "Limits",
    "LoopStats",
    "MetricsError",
    "ScrapeLoop",
    "Scraper",
    "Target",
    "metrics_port",
    "parse",
    "pick_pod",
]
