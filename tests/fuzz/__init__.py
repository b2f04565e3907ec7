"""Fuzzing of everything that reads what tenants write (tests/fuzz/README.md)."""
