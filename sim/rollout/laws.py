"""Laws of a GPU's times, from published figures of models and GPUs.

A decode iteration reads all weights once and the KV cache of every live sequence, and computes one token
for each:

    seconds = a + f b + k X        b: live sequences, X: tokens of context of all of them

    a = weights / (bandwidth x .8) + 3 ms + 2 all-reduces a layer x 33 us      (one GPU: no all-reduce)
    f = 2 parameters / (peak x .4)
    k = KV bytes a token / (bandwidth x .8)

and the prefill of a token costs as much compute as its decode, f. So a planner's c of ``a + c b`` is f + k
times the mean context. The efficiencies (.8 of the bandwidth, .4 of the peak), the 3 ms of an iteration's
scheduling and the 33 us of an all-reduce over PCIe are assumptions, the same for all models; they give 9.9
ms and .035 ms for Qwen2.5-3B on two L40S. Sources of the rest: the NVIDIA L40S data sheet (864 GB/s, 362
TFLOPS dense bfloat16, 48 GB); `config.json` and model card of Qwen2.5-3B and -7B (layers, key-value heads,
head dimension, parameters).
"""

from __future__ import annotations

from controller.frozen import dataclass

BANDWIDTH_SHARE = 0.8  # of the peak that a decode iteration reaches
COMPUTE_SHARE = 0.4  # of the peak
LEARNER_SHARE = 0.25  # of the peak, of a learner whose GPUs talk over PCIe: an assumption
HOST_SECONDS = 0.003  # an iteration's scheduling
ALL_REDUCE_SECONDS = 33e-6  # over PCIe, of one token's activations
BYTES = 2  # of a bfloat16
TRAINING_FLOPS = (
    10.0  # a token and parameter: 2 forward passes (old and reference policy) of 2, training of 6
)
SYNC_BANDWIDTH = 5e9  # bytes/s at which weights reach the actors


@dataclass(frozen=True, slots=True)
class Gpu:
    """Published figures of one GPU: bytes/s, bfloat16 operations/s without sparsity."""

    name: str
    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True)
class Model:
    """Published figures of one model: parameters, and what its key-value cache is made of."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_dimension: int

    @property
    def kv_bytes(self) -> int:
        """Bytes that a token of context takes in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dimension * BYTES


L40S = Gpu("L40S", 864e9, 362.05e12)
QWEN_3B = Model("Qwen2.5-3B", 3.09e9, 36, 2, 128)
QWEN_7B = Model("Qwen2.5-7B", 7.61e9, 28, 4, 128)


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds of an actor's work.

    Args:
        iteration: of a decode iteration, whatever is live.
        sequence: on top of it for each live sequence.
        context: on top of it for each token of context of all live sequences.
        prefill: for each token of a prompt, or of a prefix that is computed again.
    """

    iteration: float
    sequence: float
    context: float
    prefill: float


def actor_law(model: Model, gpu: Gpu, gpus: int) -> Law:
    """Return the law of an actor of this model on ``gpus`` GPUs."""
    bandwidth, flops = gpus * gpu.bandwidth * BANDWIDTH_SHARE, gpus * gpu.flops * COMPUTE_SHARE
    reduces = 2 * model.layers * ALL_REDUCE_SECONDS if gpus > 1 else 0.0
    token = 2.0 * model.parameters / flops
    return Law(
        iteration=model.parameters * BYTES / bandwidth + HOST_SECONDS + reduces,
        sequence=token,
        context=model.kv_bytes / bandwidth,
        prefill=token,
    )


def learner_seconds(model: Model, gpu: Gpu, gpus: int, tokens: float) -> float:
    """Return seconds of preparation and training of one step with ``tokens`` tokens, prompts included."""
    return TRAINING_FLOPS * model.parameters * tokens / (gpus * gpu.flops * LEARNER_SHARE)


def sync_seconds(model: Model) -> float:
    """Return seconds until new weights are in the actors."""
    return model.parameters * BYTES / SYNC_BANDWIDTH
