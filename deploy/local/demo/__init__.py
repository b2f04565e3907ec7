"""`make demo`: the main job, end to end, on a real control plane of its own."""
