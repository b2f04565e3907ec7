"""The step API: what trainers with rollout actors ask at each step, over HTTPS, in the operator that leads.

`announce`, `begin`, `watch`, `done` and `end` of a step, and the registration of actors' sidecars. Plans are
made by `controller.policy.rollout` in a process of its own. Which jobs, trainers and actors there are is
written into `Directory` by whoever reconciles them, and what a step wants of actors is read there.
May import: controller.web and what is below it; never the operator.
Tests: tests/rollouts.
"""
