"""Settings of trainers that keep their rotation from removing the best checkpoint before it is secured.

Told where the checkpoint of the best eval is gone. Each name was read in the trainer's own source, which is
cited where it stands: the release of docs/use/trainers.md, or repository and commit.
"""

from __future__ import annotations

from collections.abc import Mapping

# By the layout of the checkpoint folder.
SETTINGS: Mapping[str, str] = {
    # transformers 5.23.0. trainer.py 3433-3458: each eval is compared with the best one, in the strategies
    # steps, epoch and best, whatever load_best_model_at_end says; 3371-3388, 3417-3421: the folder of the
    # best one goes to `rotate_checkpoints`, which never removes it (trainer_utils.py 342-387).
    # training_args.py 1591: larger is better unless the name ends with "loss". trainer.py 3443: an eval
    # without it ends the run.
    "HuggingFace": "set metric_for_best_model to the metric of the evals (load_best_model_at_end and "
    'save_strategy="best" ask for it too): rotation then never removes the best; or raise save_total_limit',
    # verl 0.9.1. trainer/config/ppo_trainer.yaml 220, 223: null, which is none removed;
    # trainer/ppo/v1/trainer_base.py 958-969 (remove_previous_ckpt_in_save: 1 of each);
    # utils/checkpoint/checkpoint_manager.py 166-195: by number alone, no metric; so too in verl-project/verl,
    # verl/utils/checkpoint/checkpoint_manager.py at 30af6d4bfffdb0a54c8825a75da9129802fc8986.
    "Verl": "raise trainer.max_actor_ckpt_to_keep and trainer.max_critic_ckpt_to_keep, or leave them unset: "
    "then none is removed",
    # openrlhf 0.11.2. cli/train_ppo_ray.py 306-320; trainer/ppo_trainer.py 321-372: each new best eval is
    # saved as best_global_step<N>, by this metric (default: one that ends with _pass1; "none": never);
    # utils/deepspeed/deepspeed.py 697-758: a best one stays until a better one is saved and does not count as
    # one of max_num; of the others the worst go first, by the metric of the eval before their save.
    "OpenRLHF": "set --ckpt.best_metric_key to the metric of the evals: its best checkpoint then stays until "
    "there is a better one; or raise --ckpt.max_num and set --ckpt.save_steps",
    # NVIDIA-NeMo/RL. nemo_rl/utils/checkpoint.py at 01e9028b7fd77ef5aca3e970cac250dea0bb6f2c,
    # `CheckpointingConfig`, `remove_old_checkpoints`: the best keep_top_k and the newest one stay, one
    # without the metric counts as worst; without keep_top_k every multiple of save_period stays.
    # nemo_rl/algorithms/grpo.py at 002cdc27b8019eafc470f0aab22d4a7206d0de81, `grpo_train`: metric_name begins
    # with val: or train:, and is taken from the validation of the very step that is saved.
    "NeMoRL": 'set checkpointing.metric_name to "val:" and the metric\'s name (val:accuracy for '
    "validation/accuracy), checkpointing.keep_top_k to more than one, and validate at each save: then the "
    "best are kept; or leave keep_top_k unset",
}
ANY_TRAINER = "have the trainer's rotation keep the best checkpoint, or more of the newest ones"
LEAVE_ALONE = (
    "have the trainer's rotation, and whatever clears the folder at its start, leave the folder .evalstop "
    "alone: remove folders of checkpoints by their names (checkpoint-*, step-*), never all that lies there"
)
NOT_SAVED = "if it evaluates more often than it saves, raise spec.checkpoints.maxStepLag"


def remedy(layout: str) -> str:
    """Return what keeps the best checkpoint until it is secured.

    Args:
        layout: of the checkpoint folder, by name, as the spec or the status says; "" or one without an entry:
            the setting is not known by name.
    """
    return f"{SETTINGS.get(layout, ANY_TRAINER)}; {NOT_SAVED}"
