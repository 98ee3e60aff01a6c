"""Hyperparameter sets at another scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

import t2t_repro
from t2t_repro import scale
from t2t_repro.registry import HPARAMS, RECORDS

ROWS = [record.name for record in RECORDS.in_order() if record.bleu_dev is not None]


def test_tiny_base():
    base = scale.scaled("base@tiny")
    assert (base.num_layers, base.d_model, base.d_ff, base.num_heads, base.d_k, base.d_v) == (3, 128, 512, 8, 16, 16)
    assert (base.dropout, base.label_smoothing, base.name) == (0.1, 0.1, "base@tiny")


def test_both_depths_are_divided():
    base = HPARAMS["base"]
    student = replace(base, num_encoder_layers=12, num_decoder_layers=1)
    tiny = scale.SCALES["tiny"](student, "student@tiny")
    assert (tiny.encoder_depth, tiny.decoder_depth) == (6, 1)
    tiny = scale.SCALES["tiny"](base, "base@tiny")
    assert (tiny.num_encoder_layers, tiny.num_decoder_layers) == (0, 0)


def test_the_decay_takes_the_same_share_of_training():
    decays = replace(HPARAMS["base"], train_steps=100_000, decay_steps=25_000)
    tiny = scale.SCALES["tiny"](decays, "decays@tiny")
    assert (tiny.train_steps, tiny.decay_steps) == (1_200, 300)


@pytest.mark.parametrize("row", [row for row in ROWS if row != "base"])
def test_a_row_changes_the_same_fields_at_every_scale(row):
    full, tiny = HPARAMS[row], scale.scaled(f"{row}@tiny")
    changed = set(full.changes(HPARAMS["base"])) - {
        "train_steps",
        "checkpoint_steps",
    }  # at a given scale, all rows train for the same number of steps
    assert set(tiny.changes(scale.scaled("base@tiny"))) == changed


def test_names():
    assert scale.scaled("big") is HPARAMS["big"]
    assert t2t_repro.get_hparams("a_h1@tiny").d_k == 128
    with pytest.raises(KeyError, match=r"unknown scale 'tini' in 'base@tini': did you mean 'tiny'"):
        scale.scaled("base@tini")
    with pytest.raises(KeyError, match=r"unknown hyperparameter set 'bsae': did you mean 'base'"):
        scale.scaled("bsae@tiny")
