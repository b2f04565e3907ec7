"""Which setting of a trainer keeps its rotation from removing the best checkpoint before it is secured.

Told where the checkpoint of the best eval is gone. Sources: the trainers' own configuration, in the versions
that docs/use/trainers.md names.
"""

from __future__ import annotations

from collections.abc import Mapping

# By the layout of the checkpoint folder.
SETTINGS: Mapping[str, str] = {
    "HuggingFace": "set metric_for_best_model to the metric of the evals, with load_best_model_at_end or "
    'save_strategy="best": rotation then never removes the best; or raise save_total_limit',
    "Verl": "raise trainer.max_actor_ckpt_to_keep and trainer.max_critic_ckpt_to_keep, or leave them unset: "
    "then none is removed",
    "OpenRLHF": "raise --ckpt.max_num; with --ckpt.save_steps -1 only one best checkpoint is there at a "
    "time: set it",
    "NeMoRL": "set checkpointing.metric_name to the metric of the evals and checkpointing.keep_top_k to "
    "more than one: then the best are kept",
}
ANY_TRAINER = "have the trainer's rotation keep the best checkpoint, or more of the newest ones"
NOT_SAVED = "if it evaluates more often than it saves, raise spec.checkpoints.maxStepLag"


def remedy(layout: str) -> str:
    """Return what keeps the best checkpoint until it is secured.

    Args:
        layout: of the checkpoint folder, by name, as the spec or the status says; "" or one without an entry:
            the setting is not known by name.
    """
    return f"{SETTINGS.get(layout, ANY_TRAINER)}; {NOT_SAVED}"
