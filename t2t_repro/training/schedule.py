"""The learning rate (section 5.3, eq. 3)."""

from __future__ import annotations

from t2t_repro.config import HParams


def learning_rate(step: int, hparams: HParams) -> float:
    """d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5), for step = 1, 2, ...; times `learning_rate_scale`, 1 there.

    Raises ValueError for a step below 1.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    rate: float = hparams.d_model**-0.5 * min(step**-0.5, step * hparams.warmup_steps**-1.5)
    return hparams.learning_rate_scale * rate
