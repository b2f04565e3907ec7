"""The example trainer with responses of any length (``--rollouts``): its task, its learner, and who
generates.

Lengths vary by prompt and drift as the policy learns; a response ends with an end token. The same tokens
come from this process (``local``) and from actor pods (``pods``), since random numbers depend on the
response alone.
"""
