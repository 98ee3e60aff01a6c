"""The rows of Table 3 as printed: differences from the base model, perplexity, BLEU, millions of parameters.

Perplexity and BLEU are on newstest2013, with one checkpoint, not averaged.
"""

from dataclasses import replace
from typing import Any

from t2t_repro.config import Record
from t2t_repro.registry import HPARAMS, RECORDS

from .base import BASE

# fmt: off
ROWS: dict[str, tuple[dict[str, Any], float, float, int | None]] = {
    # name       changes                                 PPL   BLEU  params
    "a_h1":     (dict(num_heads=1,  d_k=512, d_v=512),   5.29, 24.9, None),
    "a_h4":     (dict(num_heads=4,  d_k=128, d_v=128),   5.00, 25.5, None),
    "a_h16":    (dict(num_heads=16, d_k=32,  d_v=32),    4.91, 25.8, None),
    "a_h32":    (dict(num_heads=32, d_k=16,  d_v=16),    5.01, 25.4, None),
    "b_dk16":   (dict(d_k=16),                           5.16, 25.1, 58),
    "b_dk32":   (dict(d_k=32),                           5.01, 25.4, 60),
    "c_n2":     (dict(num_layers=2),                     6.11, 23.7, 36),
    "c_n4":     (dict(num_layers=4),                     5.19, 25.3, 50),
    "c_n8":     (dict(num_layers=8),                     4.88, 25.5, 80),
    "c_d256":   (dict(d_model=256,  d_k=32,  d_v=32),    5.75, 24.5, 28),
    "c_d1024":  (dict(d_model=1024, d_k=128, d_v=128),   4.66, 26.0, 168),
    "c_ff1024": (dict(d_ff=1024),                        5.12, 25.4, 53),
    "c_ff4096": (dict(d_ff=4096),                        4.75, 26.2, 90),
    "d_drop0":  (dict(dropout=0.0),                      5.77, 24.6, None),
    "d_drop02": (dict(dropout=0.2),                      4.95, 25.5, None),
    "d_ls0":    (dict(label_smoothing=0.0),              4.67, 25.3, None),
    "d_ls02":   (dict(label_smoothing=0.2),              5.47, 25.7, None),
    "e_learned": (dict(positions="learned"),             4.92, 25.7, None),
}
# fmt: on

for _name, (_changes, _perplexity, _bleu, _millions) in ROWS.items():
    _place = f"Table 3 ({_name[0].upper()})"
    _row = replace(BASE, name=_name, **_changes)
    _change = ", ".join(f"{symbol} {value}" for symbol, value in _row.changes(BASE).items())
    HPARAMS.register(replace(_row, description=f"{_place}: {_change}"))
    RECORDS.register(Record(_name, _place, perplexity=_perplexity, bleu_dev=_bleu, millions=_millions))
