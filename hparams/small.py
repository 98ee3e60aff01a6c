"""Hyperparameter sets for two CPU cores."""

from dataclasses import replace

from t2t_repro.config import Record
from t2t_repro.registry import HPARAMS, RECORDS

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
        initializer_gain=0.5,
        batch_tokens=4_096,
        train_steps=1_500,
        warmup_steps=500,
        average_checkpoints=1,
        checkpoint_steps=500,
    )
)
RECORDS.register(
    Record(
        name="tiny",
        measured=(
            "95.74 BLEU on the test set of translate_ende_cldr after 1,500 steps in float32, 4 minutes of training on "
            "two cores; 91.07 to 93.56 with initializer_gain=1",
        ),
    )
)

# Compared with the small Transformer of Wu et al. (ACL 2021: N 4, d_model 128, d_ff 256), both with initializer_gain=1,
# no R-Drop and 4,096 tokens: a step costs 1.9 times as much, and validation perplexity on Multi30k after 1,350 steps is
# 10.8 instead of 24.5. docs/small_data.md has what else was compared.
MULTI30K = HPARAMS.register(
    replace(
        BASE,
        name="multi30k",
        description="for tens of thousands of pairs, with R-Drop; trains in two hours on one core",
        num_layers=3,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        initializer_gain=0.5,
        dropout=0.3,
        r_drop=5.0,
        batch_tokens=2_048,
        train_steps=11_000,
        warmup_steps=1_500,
        learning_rate_scale=0.7,  # peak learning rate 0.0011
        average_checkpoints=10,
        checkpoint_steps=150,
    )
)
RECORDS.register(
    Record(
        name="multi30k",
        measured=(
            "with decay_steps=2000: 41.06, 41.20 and 41.58 BLEU on test_2016_flickr of Multi30k English-German, "
            "three seeds, beam 5 and alpha 1.4; two hours each on one core with AVX512-BF16",
            "command and conditions: docs/results.md",
        ),
    )
)

NEWS = HPARAMS.register(
    replace(
        MULTI30K,
        name="news",
        description="for 100,000 to 500,000 pairs; trains in half a day on one core",
        dropout=0.2,
        r_drop=0.0,
        batch_tokens=4_096,
        train_steps=12_000,
        learning_rate_scale=1.5,  # peak learning rate 0.0024
        checkpoint_steps=300,
    )
)
RECORDS.register(
    Record(
        name="news",
        measured=(
            "13.31 BLEU on newstest2014 from 207,144 English-German pairs with alpha 1.4, 8.8 hours on one core "
            "without AMX; command and conditions: docs/results.md",
        ),
    )
)

# With initializer_gain=1 the model learned to copy the words only after 1,500 steps on the 3,401 trees of the WSJ
# sample, after 2,000 on the 23,656 of CRAFT, and later with more dropout. With 0.5 it has learned it after 500 steps on
# the sample.
TREEBANK = HPARAMS.register(
    replace(
        PARSING,
        name="treebank",
        description="parsing with far fewer weights, for treebanks of thousands to tens of thousands of trees",
        num_layers=3,
        d_model=256,
        d_ff=512,
        num_heads=4,
        initializer_gain=0.5,
        dropout=0.05,
        attention_dropout=0.0,
        bpe_dropout=0.1,
        batch_tokens=2_048,
        train_steps=24_000,
        warmup_steps=1_000,
        learning_rate_scale=0.75,  # peak learning rate 0.0015
        beam_size=4,  # a fifth of the paper's width and time
        average_checkpoints=5,
        checkpoint_steps=500,
    )
)
RECORDS.register(
    Record(
        name="treebank",
        measured=(
            "83.51 F1 on the dev set of CRAFT, in order, after 16,500 of 24,000 steps, with the five best checkpoints, "
            "1.6 core hours with AVX512-BF16",
            "80.63, 81.44 and 80.88 F1 on the dev set of the WSJ sample, in order, after 7,500 steps, three seeds; "
            "half an hour each on one core with AVX512-BF16",
            "83.35 F1 on the dev set of the WSJ sample after 3,000 steps from the parser of CRAFT, with dropout 0.2, "
            "0.4 core hours",
            "commands and conditions: docs/results.md, docs/fine_tuning.md",
        ),
    )
)
