"""``python -m examples.trainer``: exit code 0 when the run is done, 143 when told to leave, 75 when
starved."""

from __future__ import annotations

import logging
import os
import sys

# A run's matrices are tiny: a pool of BLAS threads per pod only takes cores from the other pods.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from evalstop_client.client import EvalStopClient
from evalstop_client.group import GroupError
from evalstop_client.rollouts import EXIT_STARVED, RolloutStarved
from examples.trainer.checkpoints import CheckpointError
from examples.trainer.process import TrainerProcess
from examples.trainer.settings import parse
from examples.trainer.termination import Termination

EXIT_FAILED = 1


def main() -> int:
    settings = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    termination = Termination()
    termination.install()
    client = EvalStopClient(host=settings.host, port=settings.port, speaks=settings.index == 0)
    try:
        return TrainerProcess(settings, client, termination).run()
    except RolloutStarved as fault:
        logging.error("RolloutStarved: %s", fault)
        return EXIT_STARVED
    except GroupError as fault:
        logging.error("%s: %s", type(fault).__name__, fault)
        return EXIT_STARVED
    except (CheckpointError, OSError) as fault:
        logging.error("%s", fault)
        return EXIT_FAILED
    finally:
        client.close()


if __name__ == "__main__":
    sys.exit(main())
