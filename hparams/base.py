"""The paper's two models for English-German (Table 3, first and last line)."""

from dataclasses import replace

from t2t_repro.config import HParams
from t2t_repro.registry import HPARAMS

BASE = HPARAMS.register(
    HParams(
        name="base",
        description="Table 3, base: 100K steps; paper: newstest2013 PPL 4.92, BLEU 25.8; newstest2014 BLEU 27.3",
    )
)

BIG = HPARAMS.register(
    replace(
        BASE,
        name="big",
        description="Table 3, big: 300K steps; paper: newstest2013 PPL 4.33, BLEU 26.4; newstest2014 BLEU 28.4",
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        dropout=0.3,
        train_steps=300_000,
        average_checkpoints=20,
    )
)
