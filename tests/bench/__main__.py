"""`python -m tests.bench [NAME …]`: run the benchmarks, print their table, write build/bench.json.

`python -m tests.bench faults --help`: real runs with faults, judged by what their trainers wrote down.
`python -m tests.bench group-faults --help`: random faults on a worker group of real processes.
`python -m tests.bench tenants --help`: honest jobs beside hostile ones, against the same jobs alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from tests.bench import (
    bench_checkpoints,
    bench_cli,
    bench_dashboard,
    bench_dataclasses,
    bench_extender,
    bench_fleet,
    bench_gangs,
    bench_groups,
    bench_handover,
    bench_pass,
    bench_policies,
    bench_quotas,
    bench_reservations,
    bench_rollout,
    bench_scale,
    bench_scale_groups,
    bench_scrape,
    bench_sharing,
    bench_sim_speed,
    bench_steps,
    bench_top,
    bench_what_if,
)
from tests.bench.rows import Row, show, write

BENCHMARKS: dict[str, Callable[[Callable[[str], None]], Iterator[Row]]] = {
    "checkpoints": bench_checkpoints.run,
    "cli": bench_cli.run,
    "dashboard": bench_dashboard.run,
    "dataclasses": bench_dataclasses.run,
    "scrape": bench_scrape.run,
    "sim": bench_sim_speed.run,
    "handover": bench_handover.run,
    "reservations": bench_reservations.run,
    "pass": bench_pass.run,
    "policies": bench_policies.run,
    "quotas": bench_quotas.run,
    "scale": bench_scale.run,
    "gangs": bench_gangs.run,
    "gangs-extender": bench_gangs.run_with_extender,
    "extender": bench_extender.run,
    "fleet": bench_fleet.run,
    "what-if": bench_what_if.run,
    "rollout": bench_rollout.run,
    "steps": bench_steps.run,
    "top": bench_top.run,
    "sharing": bench_sharing.run,
    "groups": bench_groups.run,
}
PARTS: dict[str, Callable[[Callable[[str], None]], Iterator[Row]]] = {  # of those above, by name only
    "scale-jobs": bench_scale.run_jobs,
    "scale-groups": bench_scale_groups.run,
}


def main() -> int:
    if sys.argv[1:2] == ["faults"]:  # hours, and options of its own: not among those that run by default
        from tests.bench.faults import command

        return command.main(sys.argv[2:])
    if sys.argv[1:2] == ["tenants"]:  # an exit status that says whether its goals were met
        from tests.bench.tenants import command as tenants

        return tenants.main(sys.argv[2:])
    if sys.argv[1:2] == ["group-faults"]:  # hours; its exit status says whether anything was wrong
        from tests.bench import group_faults

        return group_faults.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    known = BENCHMARKS | PARTS
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; none: all")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="default %(default)s")
    given = parser.parse_args()
    unknown = set(given.names) - known.keys()
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    console = Console()
    rows: list[Row] = []
    for name in given.names or BENCHMARKS:
        console.print(f"{name} …", style="dim")
        rows += known[name](lambda line: console.print(f"  {line}", style="dim", markup=False))
    show(rows, console)
    write(rows, given.out)
    console.print(f"written to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
