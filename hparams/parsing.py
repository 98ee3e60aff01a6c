"""English constituency parsing (section 6.3, Table 4): four layers, d_model 1024, all else as the base model.

The paper chose dropout, learning rate and beam width on section 22 of the WSJ, but prints only the beam width. Both
dropouts are 0.2 here, as in tensor2tensor's hyperparameter set for parsing. The learning rate is the base model's.
"""

from dataclasses import replace

from t2t_repro.config import Record
from t2t_repro.registry import HPARAMS, RECORDS

from .base import BASE

PARSING = HPARAMS.register(
    replace(
        BASE,
        name="parsing",
        description="parsing, trained on WSJ only; dropout as in tensor2tensor, because the paper prints none",
        num_layers=4,
        d_model=1024,
        dropout=0.2,
        attention_dropout=0.2,
        beam_size=21,
        alpha=0.3,
        extra_length=300,
    )
)
RECORDS.register(Record(name="parsing", place="Table 4", f1=91.3))

PARSING_SEMISUPERVISED = HPARAMS.register(
    replace(
        PARSING,
        name="parsing_semisupervised",
        description="parsing, trained on 17M more sentences; dropout as in tensor2tensor",
    )
)
RECORDS.register(Record(name="parsing_semisupervised", place="Table 4", f1=92.7))
