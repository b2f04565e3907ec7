"""EvalStop's client for trainers. `EvalStopClient` is the trainer contract itself."""

from evalstop_client.client import (
    Differences,
    EvalStopClient,
    Requests,
    Resume,
    Saved,
    speaks_for_the_job,
)
from evalstop_client.prompts import gathered

__all__ = ["Differences", "EvalStopClient", "Requests", "Resume", "Saved", "gathered", "speaks_for_the_job"]
