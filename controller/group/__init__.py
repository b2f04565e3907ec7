"""Worker groups carried out, `python -m controller.group`: a supervisor on each member, one worker process
per resident, and on member 0 the coordinator of turns (docs/understand/groups-wire.md).

What is decided is decided in `controller.policy.sharing`: coordinator and member there are pure state
machines, searched in every interleaving. Here is what they have no part in: processes, devices, memory, disk,
time and the network.
May import: `controller.web` and what is below it, and `controller.policy.sharing`, but no API client and
nothing else that decides (contract "A worker group asks no API server, and knows no room that decides but
sharing's").
Tests: tests/group.
"""
