"""Hyperparameter sets at another scale: `a_h32@tiny` is a row of Table 3 with all widths and depths divided.

Every row is divided by the same numbers, so the differences between rows can be compared with the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from t2t_repro.config import HParams, nearest
from t2t_repro.registry import HPARAMS


@dataclass(frozen=True)
class Scale:
    """Divisors of widths and depths, and the training that fits the smaller models."""

    width: int
    depth: int
    batch_tokens: int
    train_steps: int
    warmup_steps: int
    checkpoint_steps: int

    def __call__(self, hparams: HParams, name: str) -> HParams:
        h = hparams
        return replace(
            h,
            name=name,
            description=f"{h.name} with widths / {self.width} and depth / {self.depth}",
            num_layers=max(h.num_layers // self.depth, 1),
            num_encoder_layers=h.num_encoder_layers and max(h.num_encoder_layers // self.depth, 1),
            num_decoder_layers=h.num_decoder_layers and max(h.num_decoder_layers // self.depth, 1),
            d_model=max(h.d_model // self.width, 2),
            d_ff=max(h.d_ff // self.width, 1),
            d_k=max(h.d_k // self.width, 1),
            d_v=max(h.d_v // self.width, 1),
            batch_tokens=self.batch_tokens,
            train_steps=self.train_steps,
            decay_steps=h.decay_steps * self.train_steps // h.train_steps,
            warmup_steps=self.warmup_steps,
            checkpoint_steps=self.checkpoint_steps,
        )


SCALES = {
    # minutes on a CPU core; base is then N 3, d_model 128, d_ff 512, h 8, d_k 16
    "tiny": Scale(width=4, depth=2, batch_tokens=2_048, train_steps=1_200, warmup_steps=600, checkpoint_steps=200),
}


def scaled(name: str) -> HParams:
    """Returns the hyperparameter set `big`, or `big@tiny` at one of the `SCALES`.

    Raises KeyError, with the nearest known name, for an unknown one.
    """
    registered, at, scale = name.partition("@")
    if not at:
        return HPARAMS[name]
    if scale not in SCALES:
        raise KeyError(f"unknown scale {scale!r} in {name!r}{nearest(scale, SCALES)}")
    return SCALES[scale](HPARAMS[registered], name)
