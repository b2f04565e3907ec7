"""versitygw: an S3 gateway over a folder, for tests of object stores with a server that others wrote.

May import: of `deploy.local` recipes and errors.
Tests: tests/checkpoints.
"""
