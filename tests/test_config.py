"""HParams: the paper's sizes, and what each impossible value is answered with."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from t2t_repro.config import HParams
from t2t_repro.describe import PRINTED_MILLIONS
from t2t_repro.registry import HPARAMS

BASE = HParams(name="base", description="the defaults")

# Table 3: name, what changes, the exact count with a vocabulary of 37,000 (worked out by hand in the project's notes).
TABLE_3 = [
    ("base", {}, 63_045_632),
    ("a_h1", {"num_heads": 1, "d_k": 512, "d_v": 512}, 63_045_632),
    ("a_h4", {"num_heads": 4, "d_k": 128, "d_v": 128}, 63_045_632),
    ("a_h16", {"num_heads": 16, "d_k": 32, "d_v": 32}, 63_045_632),
    ("a_h32", {"num_heads": 32, "d_k": 16, "d_v": 16}, 63_045_632),
    ("b_dk16", {"d_k": 16}, 55_967_744),
    ("b_dk32", {"d_k": 32}, 58_327_040),
    ("c_n2", {"num_layers": 2}, 33_644_544),
    ("c_n4", {"num_layers": 4}, 48_345_088),
    ("c_n8", {"num_layers": 8}, 77_746_176),
    ("c_d256", {"d_model": 256, "d_k": 32, "d_v": 32}, 26_816_512),
    ("c_d1024", {"d_model": 1024, "d_k": 128, "d_v": 128}, 163_815_424),
    ("c_ff1024", {"d_ff": 1024}, 50_450_432),
    ("c_ff4096", {"d_ff": 4096}, 88_236_032),
    ("d_drop0", {"dropout": 0.0}, 63_045_632),
    ("d_drop02", {"dropout": 0.2}, 63_045_632),
    ("d_ls0", {"label_smoothing": 0.0}, 63_045_632),
    ("d_ls02", {"label_smoothing": 0.2}, 63_045_632),
    ("big", {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 214_171_648),
]


@pytest.mark.parametrize(("name", "changes", "count"), TABLE_3, ids=[row[0] for row in TABLE_3])
def test_parameter_count_of_every_row_of_table_3(name, changes, count):
    assert replace(BASE, **changes).num_parameters(vocab_size=37_000) == count


def test_learned_positions_add_a_source_and_a_target_table():
    learned = replace(BASE, positions="learned", max_positions=100)
    assert learned.num_parameters(37_000) == 63_045_632 + 2 * 100 * 512


@pytest.mark.parametrize(("vocab_size", "count"), [(16_000, 75_169_792), (32_000, 91_553_792)])
def test_parameter_count_of_parsing(vocab_size, count):
    assert replace(BASE, num_layers=4, d_model=1024).num_parameters(vocab_size) == count


@pytest.mark.parametrize(("big", "lowest", "highest"), [(False, 41_004, 41_208), (True, 35_368, 36_344)])
def test_vocabularies_that_the_printed_sizes_fit(big, lowest, highest):
    """The explanation that t2t-registry prints gives exactly these four numbers."""
    rows = [row for row in TABLE_3 if row[0] in PRINTED_MILLIONS and (row[0] == "big") == big]

    def fits(vocab_size):
        sizes = {name: replace(BASE, **changes).num_parameters(vocab_size) for name, changes, _ in rows}
        return all(round(size / 1e6) == PRINTED_MILLIONS[name] for name, size in sizes.items())

    assert [fits(lowest - 1), fits(lowest), fits(highest), fits(highest + 1)] == [False, True, True, False]


def test_registered_base_and_big_are_the_papers():
    assert replace(HPARAMS["base"], name=BASE.name, description=BASE.description) == BASE
    big = replace(BASE, d_model=1024, d_ff=4096, num_heads=16, dropout=0.3, train_steps=300_000, average_checkpoints=20)
    assert replace(HPARAMS["big"], name=BASE.name, description=BASE.description) == big


def test_every_field_has_its_source_and_meaning():
    for field in dataclasses.fields(HParams)[2:]:
        assert field.metadata["section"] and field.metadata["meaning"], field.name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *[
            (name, 0, f"{name} must be at least 1, got 0")
            for name in "num_layers d_model d_ff num_heads d_k d_v max_positions batch_tokens train_steps".split()
        ],
        ("warmup_steps", 0, "warmup_steps must be at least 1, got 0"),
        ("beam_size", -4, "beam_size must be at least 1, got -4"),
        ("average_checkpoints", 0, "average_checkpoints must be at least 1, got 0"),
        ("d_model", 511, r"d_model must be even \(sines and cosines come in pairs, section 3.5\), got 511"),
        ("dropout", 1.0, "dropout must be at least 0 and below 1, got 1.0"),
        ("attention_dropout", -0.1, "attention_dropout must be at least 0 and below 1, got -0.1"),
        ("label_smoothing", float("nan"), "label_smoothing must be at least 0 and below 1, got nan"),
        ("adam_beta1", 0.0, "adam_beta1 must be between 0 and 1, got 0.0"),
        ("adam_beta2", 1.0, "adam_beta2 must be between 0 and 1, got 1.0"),
        ("adam_epsilon", 0.0, "adam_epsilon must be above 0 and finite, got 0.0"),
        ("learning_rate_scale", float("inf"), "learning_rate_scale must be above 0 and finite, got inf"),
        ("positions", "rotary", "positions must be 'sinusoid' or 'learned', got 'rotary'"),
        ("alpha", -0.1, "alpha must be at least 0 and finite, got -0.1"),
        ("extra_length", -1, "extra_length must be at least 0, got -1"),
    ],
)
def test_impossible_value(field, value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(BASE, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("d_model", 512.0, r"d_model must be of type int, got 512\.0"),
        ("num_layers", True, "num_layers must be of type int, got True"),
        ("dropout", "0.1", r"dropout must be of type float, got '0\.1'"),
        ("positions", None, "positions must be of type str, got None"),
    ],
)
def test_wrong_type(field, value, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        replace(BASE, **{field: value})


def test_misspelt_field_raises():
    with pytest.raises(TypeError, match="unexpected keyword argument 'd_key'"):
        replace(BASE, d_key=16)


def test_whole_number_for_a_fraction_is_taken():
    hparams = replace(BASE, dropout=0)
    assert hparams.dropout == 0.0 and isinstance(hparams.dropout, float)


def test_to_dict_and_back():
    assert HParams(**BASE.to_dict()) == BASE


def test_override():
    changed = BASE.override(["d_k=16", "dropout=0.3", "positions=learned", "adam_epsilon=1e-8"])
    assert changed == replace(BASE, d_k=16, dropout=0.3, positions="learned", adam_epsilon=1e-8)
    assert BASE.override([]) == BASE


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("d_k", "--override takes name=value, got 'd_k'"),
        ("dk=16", "unknown field 'dk' in --override: did you mean 'd_k'[?] known: num_layers, d_model, .*"),
        ("zzz=16", "unknown field 'zzz' in --override: known: num_layers, d_model, .*"),
        ("name=mine", "unknown field 'name' in --override: .*"),
        ("d_k=sixteen", "d_k must be of type int, got 'sixteen' in --override"),
        ("d_k=", "d_k must be of type int, got '' in --override"),
        ("train_steps=1e5", "train_steps must be of type int, got '1e5' in --override"),
        ("dropout=much", "dropout must be of type float, got 'much' in --override"),
        ("dropout=2", r"dropout must be at least 0 and below 1, got 2\.0"),
        ("positions=rotary", "positions must be 'sinusoid' or 'learned', got 'rotary'"),
    ],
)
def test_override_says_what_is_wrong(assignment, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        BASE.override([assignment])
