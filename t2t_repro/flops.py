"""What a training costs: its floating-point operations, counted from the model, and estimated the paper's way."""

from __future__ import annotations

import re
from typing import Any

from t2t_repro.config import HParams

# Sustained single-precision rates that the paper takes for its estimates, in FLOPS (section 6.1, footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def paper_flops(seconds: float, devices: int, device: str) -> float | None:
    """Training time x devices x sustained rate (section 6.1): the paper's own estimate of its cost, an upper bound.

    `device` is a name such as "Tesla P100-SXM2-16GB"; None for one of which the paper gives no rate, "Quadro P1000".
    """
    rates = [rate for name, rate in SUSTAINED.items() if re.search(rf"\b{name}\b", device)]
    return seconds * devices * rates[0] if rates else None


def training_flops(hparams: HParams, vocab_size: int, batch: Any, source: Any, target: Any, tokens: Any) -> Any:
    """Floating-point operations of all matrix products, forward and backward, for `batch` pairs padded to the lengths
    `source` and `target`, of which `tokens` target positions are real: only those are projected on the vocabulary.

    A product of [m, k] and [k, n] is 2 m k n operations, and its gradient two more products of that size. Everything
    else (softmax, normalisation, dropout, Adam) is left out, as is custom. The four counts are numbers, or tensors of
    any framework's floats.
    """
    h = hparams
    keys, values = h.d_model * h.num_heads * h.d_k, h.d_model * h.num_heads * h.d_v
    scores = h.num_heads * (h.d_k + h.d_v)  # Q K^T, and the weights times V
    feed_forward = 2 * h.d_model * h.d_ff
    encoder_layer = source * (2 * keys + 2 * values + feed_forward) + source * source * scores
    decoder_layer = (
        target * (2 * keys + 2 * values + feed_forward)
        + target * target * scores  # future positions are masked, not left out
        + (source + target) * (keys + values)
        + source * target * scores
    )
    forward = h.num_layers * batch * (encoder_layer + decoder_layer) + tokens * (h.d_model * vocab_size)
    return 3 * 2 * forward
