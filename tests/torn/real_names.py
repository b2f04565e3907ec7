"""Ways of writing that are killed in the libraries themselves: by `tests.torn.real`, which needs them."""

REAL = (
    "HuggingFace/plain",
    "HuggingFace/sharded",
    "HuggingFace/peft",
    "HuggingFace/ddp",
    "HuggingFace/fsdp",
    "HuggingFace/zero2",
    "HuggingFace/zero3",
    "OpenRLHF/actor-critic",
    "NeMoRL/dcp",
)
