"""Hyperparameter sets for two CPU cores."""

from dataclasses import replace

from t2t_repro.registry import HPARAMS

from .base import BASE
from .parsing import PARSING

TINY = HPARAMS.register(
    replace(
        BASE,
        name="tiny",
        description="for the built-in problems; trains in minutes on two cores",
        num_layers=2,
        d_model=128,
        d_ff=512,
        num_heads=4,
        d_k=32,
        d_v=32,
        batch_tokens=4_096,
        train_steps=1_500,
        warmup_steps=500,
        average_checkpoints=1,
        checkpoint_steps=500,
    )
)

# Compared with the small Transformer of Wu et al. (ACL 2021: N 4, d_model 128, d_ff 256): a step costs 1.9 times as
# much, and validation perplexity on Multi30k after 1,350 steps is 10.8 instead of 24.5.
MULTI30K = HPARAMS.register(
    replace(
        BASE,
        name="multi30k",
        description="for tens of thousands of pairs; trains in an hour on two cores",
        num_layers=3,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        dropout=0.3,
        batch_tokens=4_096,
        train_steps=8_500,
        warmup_steps=1_500,
        learning_rate_scale=1.5,  # peak learning rate 0.0024
        average_checkpoints=10,
        checkpoint_steps=150,
    )
)

# Results are in README. The model first learns, abruptly, to copy the words: after 1,500 steps on the 3,401 trees of
# the WSJ sample, after 2,000 on the 23,657 of CRAFT.
TREEBANK = HPARAMS.register(
    replace(
        PARSING,
        name="treebank",
        description="parsing with far fewer weights, for treebanks of thousands to tens of thousands of trees",
        num_layers=3,
        d_model=256,
        d_ff=512,
        num_heads=4,
        dropout=0.2,
        attention_dropout=0.1,
        batch_tokens=2_048,
        train_steps=8_000,
        warmup_steps=1_000,
        learning_rate_scale=0.75,  # peak learning rate 0.0015
        beam_size=4,  # a fifth of the paper's width and time
        average_checkpoints=10,
        checkpoint_steps=250,
    )
)
