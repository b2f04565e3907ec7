"""The story of elastic rollouts, `make demo STORY=elastic`: actors as real pods on the local plane.

Three acts: elastic actors against three that are held; two jobs that share four actors; a gang that comes
while spare actors hold all free GPUs.
May import: `controller` for names and certificates, `deploy.local`.
Tests: tests/demo.
"""
