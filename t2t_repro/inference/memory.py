"""How much memory decoding needs, and how many batches this machine has the memory for."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.training.hardware import total_bytes

SEARCH_BYTES = 1 << 30  # that one search plans with; its peak is up to twice that, while caches grow
_LOGIT_BYTES = 12  # of a logit, the probability made of it and the padded copy that `top_k` groups


def search_bytes(ensemble: Ensemble, vocab_size: int, beam_size: Any, positions: Any) -> Any:
    """The bytes that the search for one sentence needs if it runs to its maximum length.

    `positions` counts the tokens of the source and those that a translation may add to that length. Both arguments are
    numbers, or int64 tensors of one shape. The terms are the logits of each beam, the keys and values of source and
    beams, and the attention of each beam over the keys of all beams.
    """
    cached = sum(
        model.hparams.num_layers
        * model.hparams.num_heads
        * (model.hparams.d_k + model.hparams.d_v)
        * tf.as_dtype(model.compute_dtype).size
        for model in ensemble.models
    )
    heads = max(model.hparams.num_heads for model in ensemble.models)
    attended = beam_size * beam_size * positions * (2 * 4 * heads + 5)  # scores and weights of a layer; mask and bias
    return beam_size * _LOGIT_BYTES * vocab_size + (beam_size + 1) * positions * cached + attended


def batch_bytes(batches: int) -> int:
    """Returns the bytes that each of `batches` may plan with when they run in parallel: together half of the memory."""
    memory = total_bytes()
    return SEARCH_BYTES if memory is None else min(SEARCH_BYTES, memory // 2 // batches)


def batches_in_memory(tokens: int, vocab_size: int) -> int:
    """How many batches, each with the logits of `tokens` target tokens, half of the memory holds; at least one."""
    memory = total_bytes()
    return 1 if memory is None else max(1, memory // 2 // (tokens * vocab_size * _LOGIT_BYTES))
