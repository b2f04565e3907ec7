"""Real runs on a real control plane, with faults, judged by what the trainers themselves wrote down.

``python -m tests.bench faults --runs 1000``. Each run is an RLHFJob with the example trainer in it. What
goes wrong in it is drawn from its seed (`plan`), carried out by `mischief` and `proxy`, and judged by
`oracle` from files that the product never reads (`truth`).
"""
