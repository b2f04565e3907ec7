"""Experiments: many paired runs, what they say, and how sure that is."""
