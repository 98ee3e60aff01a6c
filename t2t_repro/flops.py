"""Training cost: floating-point operations counted from the model, and the paper's own estimate."""

from __future__ import annotations

import re
from typing import Any

from t2t_repro.config import HParams

# Sustained single-precision rates that the paper uses for its estimates, in FLOPS (section 6.1, footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def paper_flops(seconds: float, devices: int, device: str) -> float | None:
    """Returns the paper's estimate of training cost, an upper bound: time x devices x sustained rate (section 6.1).

    `device` is a name such as "Tesla P100-SXM2-16GB". Returns None for a device without a rate in the paper, such as
    "Quadro P1000".
    """
    rates = [rate for name, rate in SUSTAINED.items() if re.search(rf"\b{name}\b", device)]
    return seconds * devices * rates[0] if rates else None


def training_flops(hparams: HParams, vocab_size: int, batch: Any, source: Any, target: Any, tokens: Any) -> Any:
    """Returns the floating-point operations of all matrix products of a batch, forward and backward.

    The batch has `batch` pairs, padded to the lengths `source` and `target`, with `tokens` real target positions. Only
    real positions are projected to the vocabulary. A product of [m, k] and [k, n] counts as 2 m k n operations, and its
    gradient as two more products of that size. Everything else (softmax, normalization, dropout, Adam) is left out, as
    is common. The four counts are numbers or float tensors of any framework. R-Drop computes every pair twice.
    """
    h = hparams
    keys, values = h.d_model * h.num_heads * h.d_k, h.d_model * h.num_heads * h.d_v
    scores = h.num_heads * (h.d_k + h.d_v)  # Q K^T, and the weights times V
    feed_forward = 2 * h.d_model * h.d_ff
    encoder_layer = source * (2 * keys + 2 * values + feed_forward) + source * source * scores
    decoder_layer = (
        target * (2 * keys + 2 * values + feed_forward)
        + target * target * scores  # future positions are masked, but computed
        + (source + target) * (keys + values)
        + source * target * scores
    )
    layers = h.encoder_depth * encoder_layer + h.decoder_depth * decoder_layer
    passes = 2 if h.r_drop else 1
    return passes * 3 * 2 * (batch * layers + tokens * (h.d_model * vocab_size))
