"""What the client costs a step: two gloo ranks, steps with it and without it in turn. Under torchrun."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from evalstop_client.client import EvalStopClient
from evalstop_client.run import Run

ROUNDS, STEPS = 10, 100


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = Run(
        "gold", EvalStopClient(f"{os.environ['RUN_DIRS']}-{os.environ['RANK']}", port=0, host="127.0.0.1")
    )
    run.begin(0, 10**6, "/tmp/none")
    weights = torch.randn(400, 400)
    done = 0

    def step(watched: bool) -> float:
        nonlocal done
        began, found = time.perf_counter(), weights
        for _ in range(6):
            found = torch.tanh(found @ weights)
        dist.all_reduce(torch.ones(100_000))
        if watched:
            done += 1
            run.step(done)
        return 1e3 * (time.perf_counter() - began)

    spent: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for watched in spent:
            spent[watched] += [step(watched) for _ in range(STEPS)]
    without, with_it = (sorted(times)[len(times) // 2] for times in spent.values())
    if dist.get_rank() == 0:
        print(f"STEP without {without:.3f} ms, with {with_it:.3f} ms: {with_it - without:.3f} ms", flush=True)
    run.finish()


main()
