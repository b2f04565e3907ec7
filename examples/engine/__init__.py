"""``python -m examples.engine``: a small rollout engine with continuous batching, slots and prefills.

It stands for vLLM or SGLang where there is no GPU: it really generates, by a NumPy model, and takes the time
that it is told to. Its control routes ask nobody who they are, so it listens on a Unix socket only.
"""
