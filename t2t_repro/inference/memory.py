"""Estimates of the memory that decoding needs, and of the batches that fit into this machine's memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.training.hardware import total_bytes

SEARCH_BYTES = 1 << 30  # planned for one search; its peak is up to twice that while caches grow
_LOGIT_BYTES = 12  # a logit, its probability, and the padded copy that `top_k` groups


def search_bytes(ensemble: Ensemble, vocab_size: int, beam_size: Any, positions: Any) -> Any:
    """Returns the bytes that the search for one sentence needs if it runs to its maximum length.

    `positions` is the number of tokens of the source plus those that a translation may add to it. `beam_size` and
    `positions` are numbers, or int64 tensors of one shape. The terms are the logits of each beam, the keys and values
    of source and beams, and the attention of each beam over the keys of all beams.
    """
    cached = sum(
        model.hparams.decoder_depth
        * model.hparams.num_heads
        * (model.hparams.d_k + model.hparams.d_v)
        * tf.as_dtype(model.compute_dtype).size
        for model in ensemble.models
    )
    heads = max(model.hparams.num_heads for model in ensemble.models)
    attended = beam_size * beam_size * positions * (2 * 4 * heads + 5)  # scores and weights of a layer; mask and bias
    return beam_size * _LOGIT_BYTES * vocab_size + (beam_size + 1) * positions * cached + attended


def must_fit(ensemble: Ensemble, vocab_size: int, beam_size: int, positions: int) -> None:
    """Raises ValueError if one search takes more than the memory of this machine."""
    needed, memory = search_bytes(ensemble, vocab_size, beam_size, positions), total_bytes()
    if memory is not None and needed > memory:
        raise ValueError(
            f"a beam of {beam_size:,} needs {needed / 2**30:,.1f} GiB for a text of one token. Received: a machine of "
            f"{memory / 2**30:,.1f} GiB; lower the beam size or the number of translations"
        )


def batch_bytes(batches: int) -> int:
    """Returns the bytes planned for each of `batches` that run in parallel. Together they use half of the memory."""
    memory = total_bytes()
    return SEARCH_BYTES if memory is None else min(SEARCH_BYTES, memory // 2 // batches)


def batches_in_memory(tokens: int, vocab_size: int) -> int:
    """Returns how many batches with the logits of `tokens` tokens fit into half of the memory; at least 1."""
    memory = total_bytes()
    return 1 if memory is None else max(1, memory // 2 // (tokens * vocab_size * _LOGIT_BYTES))
