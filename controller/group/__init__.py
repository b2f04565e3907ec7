"""Worker groups carried out: a supervisor on each member, one worker process per resident, and on member 0
the coordinator of turns (docs/understand/groups-wire.md).

What is decided is decided in `controller.policy.sharing`: coordinator and member there are pure state
machines, searched in every interleaving. Here is what they have no part in: processes, devices, memory, disk,
time and the network. Nothing here asks an API server.
"""
