"""The sidecar of a rollout actor: `python -m controller.actor`. It alone faces the network.

It passes prompts on to the engine on its Unix socket, returns new token ids of all responses in one frame
every 100 ms, aborts, loads weights (pushed, or from a shared volume), and reports. It serves with a
certificate that it makes itself, registers its fingerprint with the step API, and lets in whoever shows that
API's ticket for it.
May import: `controller.web` and what is below it, but no API client and nothing that decides (contract "The
sidecar of an actor asks no API server").
Tests: tests/rollouts.
"""
