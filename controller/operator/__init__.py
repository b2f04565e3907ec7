"""The operator: watches the cluster, scrapes trainers, and carries out the plans of `controller.policy`.

It decides nothing itself.
"""
