"""Sets for two CPU cores."""

from dataclasses import replace

from t2t_repro.hparams.base import BASE
from t2t_repro.registry import HPARAMS

TINY = HPARAMS.register(
    replace(
        BASE,
        name="tiny",
        description="for the built-in problems: minutes on two cores",
        num_layers=2,
        d_model=128,
        d_ff=512,
        num_heads=4,
        d_k=32,
        d_v=32,
        batch_tokens=4_096,
        train_steps=1_500,
        warmup_steps=600,
        average_checkpoints=1,
    )
)
