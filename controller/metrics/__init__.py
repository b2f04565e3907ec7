"""Trainer endpoint -> ScrapeView: which pod, which addresses, a guarded GET, a capped parse, one shared loop.

``loop.ScrapeLoop`` calls ``gang.GangScraper`` for every registered ``scrape.Target``; that has
``scrape.Scraper`` read one pod, or those of a gang until it is known who speaks, and a
`policy.job.types.ScrapeView` is delivered. Whatever a trainer answers ends as an outcome with a message,
never as an exception.

May import: `controller.api`, `controller.policy`; nothing of kube, checkpoints or workloads (contract "Arrows
run one way").
Tests: tests/metrics.
"""

from controller.metrics.address import AddressPolicy
from controller.metrics.gang import GangScraper, GangTarget
from controller.metrics.loop import LoopStats, ScrapeLoop
from controller.metrics.parse import Limits, MetricsError, parse
from controller.metrics.pods import member, members, metrics_port
from controller.metrics.scrape import Scraper, Target

__all__ = [
    "AddressPolicy",
    "GangScraper",
    "GangTarget",
    "Limits",
    "LoopStats",
    "MetricsError",
    "ScrapeLoop",
    "Scraper",
    "Target",
    "member",
    "members",
    "metrics_port",
    "parse",
]
