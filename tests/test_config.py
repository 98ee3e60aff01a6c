"""HParams: the paper's sizes, and the error for each impossible value."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from pathlib import Path

import pytest

from t2t_repro.cli.describe import describe_hparams
from t2t_repro.config import LATER, HParams, Record, TrainingOptions
from t2t_repro.registry import HPARAMS, RECORDS

BASE = HParams(name="base", description="the defaults")

# Table 3: name, what changes, the exact count with a vocabulary of 37,000 (calculated manually in the project's notes),
# then as printed: perplexity, BLEU on newstest2013, millions of parameters.
BIG_CHANGES = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
BIG_CHANGES |= {"train_steps": 300_000, "average_checkpoints": 20, "checkpoint_steps": 600}
TABLE_3 = [
    ("base", {}, 63_045_632, 4.92, 25.8, 65),
    ("a_h1", {"num_heads": 1, "d_k": 512, "d_v": 512}, 63_045_632, 5.29, 24.9, None),
    ("a_h4", {"num_heads": 4, "d_k": 128, "d_v": 128}, 63_045_632, 5.00, 25.5, None),
    ("a_h16", {"num_heads": 16, "d_k": 32, "d_v": 32}, 63_045_632, 4.91, 25.8, None),
    ("a_h32", {"num_heads": 32, "d_k": 16, "d_v": 16}, 63_045_632, 5.01, 25.4, None),
    ("b_dk16", {"d_k": 16}, 55_967_744, 5.16, 25.1, 58),
    ("b_dk32", {"d_k": 32}, 58_327_040, 5.01, 25.4, 60),
    ("c_n2", {"num_layers": 2}, 33_644_544, 6.11, 23.7, 36),
    ("c_n4", {"num_layers": 4}, 48_345_088, 5.19, 25.3, 50),
    ("c_n8", {"num_layers": 8}, 77_746_176, 4.88, 25.5, 80),
    ("c_d256", {"d_model": 256, "d_k": 32, "d_v": 32}, 26_816_512, 5.75, 24.5, 28),
    ("c_d1024", {"d_model": 1024, "d_k": 128, "d_v": 128}, 163_815_424, 4.66, 26.0, 168),
    ("c_ff1024", {"d_ff": 1024}, 50_450_432, 5.12, 25.4, 53),
    ("c_ff4096", {"d_ff": 4096}, 88_236_032, 4.75, 26.2, 90),
    ("d_drop0", {"dropout": 0.0}, 63_045_632, 5.77, 24.6, None),
    ("d_drop02", {"dropout": 0.2}, 63_045_632, 4.95, 25.5, None),
    ("d_ls0", {"label_smoothing": 0.0}, 63_045_632, 4.67, 25.3, None),
    ("d_ls02", {"label_smoothing": 0.2}, 63_045_632, 5.47, 25.7, None),
    ("e_learned", {"positions": "learned"}, 63_045_632 + 2 * 1024 * 512, 4.92, 25.7, None),
    ("big", BIG_CHANGES, 214_171_648, 4.33, 26.4, 213),
]
PARSING_CHANGES = {"num_layers": 4, "d_model": 1024, "dropout": 0.2, "attention_dropout": 0.2}
PARSING_CHANGES |= {"beam_size": 21, "alpha": 0.3, "extra_length": 300}
OTHERS = [
    ("big_enfr", {**BIG_CHANGES, "dropout": 0.1}),
    ("parsing", PARSING_CHANGES),
    ("parsing_semisupervised", PARSING_CHANGES),
]


OWN = {"tiny", "multi30k", "news", "treebank"}


@pytest.mark.parametrize("row", TABLE_3, ids=[row[0] for row in TABLE_3])
def test_row_of_table_3(row):
    name, changes, count, perplexity, bleu, millions = row
    assert HPARAMS[name].num_parameters(vocab_size=37_000) == count
    record = RECORDS[name]
    assert (record.perplexity, record.bleu_dev, record.millions) == (perplexity, bleu, millions)
    assert record.place == ("Tables 2 and 3" if name in ("base", "big") else f"Table 3 ({name[0].upper()})")


@pytest.mark.parametrize(("name", "changes"), [row[:2] for row in TABLE_3] + OTHERS)
def test_set_differs_from_base_in_exactly_these_fields(name, changes):
    assert replace(HPARAMS[name], name="base", description="the defaults") == replace(BASE, **changes)


def test_every_row_of_table_3_is_a_set_and_every_record_has_its_set():
    in_table_3 = {name for name in RECORDS if "3" in RECORDS[name].place}
    assert in_table_3 == {row[0] for row in TABLE_3}
    assert set(RECORDS) == in_table_3 | {name for name, _ in OTHERS} | OWN <= set(HPARAMS)


def test_sets_that_are_not_of_the_paper_have_measured_results():
    assert {record.name for record in RECORDS.in_order() if not record.place} == OWN
    for name in OWN:
        text = " ".join(describe_hparams(HPARAMS[name], 37_000).split())
        assert text.endswith(f"Measured here: {'; '.join(RECORDS[name].measured)}") and "Paper," not in text
        assert any(score in text for score in (" BLEU on ", " F1 on "))


def test_scores_that_tables_2_and_4_print():
    scores = {name: (record.bleu_ende, record.bleu_enfr, record.f1, record.flops) for name, record in RECORDS.items()}
    assert {name: printed for name, printed in scores.items() if any(printed)} == {
        "base": (27.3, 38.1, None, 3.3e18),
        "big": (28.4, None, None, 2.3e19),
        "big_enfr": (None, 41.8, None, 2.3e19),
        "parsing": (None, None, 91.3, None),
        "parsing_semisupervised": (None, None, 92.7, None),
    }


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("base", "none"),
        ("a_h1", "h 1, d_k 512, d_v 512"),
        ("c_n2", "N 2"),
        ("d_drop0", "P_drop 0.0"),
        ("d_ls02", "eps_ls 0.2"),
        ("e_learned", "positions learned"),
        (
            "big",
            "d_model 1024, d_ff 4096, h 16, P_drop 0.3, train_steps 300000, average_checkpoints 20, "
            "checkpoint_steps 600",
        ),
    ],
)
def test_description_shows_the_change_in_the_papers_symbols(name, changes):
    assert f" Changes of base: {changes}. " in " ".join(describe_hparams(HPARAMS[name], 37_000).split())


def test_checkpoints_are_the_papers_ten_minutes_apart():
    """A step took 0.4 s with base and 1.0 s with big (section 5.2)."""
    assert HPARAMS["base"].checkpoint_steps * 0.4 == HPARAMS["big"].checkpoint_steps * 1.0 == 600


def test_description_shows_printed_and_measured_results(monkeypatch):
    text = describe_hparams(HPARAMS["a_h1"], 37_000)
    assert text.endswith("Paper, Table 3 (A): PPL 5.29, BLEU 24.9 on newstest2013.\nMeasured here: -")
    measured = Record("a_h1", "Table 3 (A)", flops=2.3e19, measured=("BLEU 1.0 on x with y on z",))
    monkeypatch.setitem(RECORDS._items, "a_h1", measured)
    text = describe_hparams(HPARAMS["a_h1"], 37_000)
    assert text.endswith("Paper, Table 3 (A): 2.3e19 FLOPs.\nMeasured here: BLEU 1.0 on x with y on z")
    altered = describe_hparams(replace(HPARAMS["a_h1"], d_k=16), 37_000)
    assert "Paper," not in altered and "Measured" not in altered


def test_learned_positions_add_a_source_and_a_target_table():
    learned = replace(BASE, positions="learned", max_positions=100)
    assert learned.num_parameters(37_000) == 63_045_632 + 2 * 100 * 512


@pytest.mark.parametrize(("name", "count"), [("parsing", 75_169_792), ("parsing_semisupervised", 91_553_792)])
def test_parameter_count_of_parsing(name, count):
    vocab_size = {"parsing": 16_000, "parsing_semisupervised": 32_000}[name]
    assert HPARAMS[name].num_parameters(vocab_size) == count


@pytest.mark.parametrize(("big", "lowest", "highest"), [(False, 41_004, 41_208), (True, 35_368, 36_344)])
def test_vocabularies_that_the_printed_sizes_fit(big, lowest, highest):
    """The explanation that t2t-registry prints gives exactly these four numbers."""
    rows = [(row[0], row[-1]) for row in TABLE_3 if row[-1] and (row[0] == "big") == big]

    def fits(vocab_size):
        return all(round(HPARAMS[name].num_parameters(vocab_size) / 1e6) == printed for name, printed in rows)

    assert [fits(lowest - 1), fits(lowest), fits(highest), fits(highest + 1)] == [False, True, True, False]


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
        ("bpe_dropout", 1.0, "bpe_dropout must be at least 0 and below 1, got 1.0"),
        ("label_smoothing", float("nan"), "label_smoothing must be at least 0 and below 1, got nan"),
        ("adam_beta1", 0.0, "adam_beta1 must be between 0 and 1, got 0.0"),
        ("adam_beta2", 1.0, "adam_beta2 must be between 0 and 1, got 1.0"),
        ("adam_epsilon", 0.0, "adam_epsilon must be at least 1e-30 and finite, got 0.0"),
        ("initializer_gain", 0.0, "initializer_gain must be above 0 and finite, got 0.0"),
        ("learning_rate_scale", float("inf"), "learning_rate_scale must be above 0 and finite, got inf"),
        ("positions", "rotary", "positions must be 'sinusoid' or 'learned', got 'rotary'"),
        ("alpha", -0.1, "alpha must be at least 0 and finite, got -0.1"),
        ("extra_length", -1, "extra_length must be at least 0, got -1"),
        ("num_encoder_layers", -1, "num_encoder_layers must be at least 0, got -1"),
        ("r_drop", -1.0, "r_drop must be at least 0 and finite, got -1.0"),
        ("ema_decay", 1.0, "ema_decay must be at least 0 and below 1, got 1.0"),
        ("adam_epsilon", 1e-46, "adam_epsilon must be at least 1e-30 and finite, got 1e-46"),
        ("decay_steps", -1, "decay_steps must be at least 0, got -1"),
        ("decay_steps", 100_001, "decay_steps must be at most train_steps = 100,000, got 100,001"),
        ("num_decoder_layers", -1, "num_decoder_layers must be at least 0, got -1"),
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 1.5),
        ("checkpoint_steps", 2.5),
        ("jit_compile", "no"),
        ("deterministic", 0),
        ("also_validate", "data"),
        ("also_validate", Path("data")),
        ("validate_metrics", "bleu"),
        ("validate_metrics", None),
    ],
)
def test_wrong_type_of_an_option(field, value):
    with pytest.raises(TypeError, match=f"^{field} must be "):
        TrainingOptions(**{field: value})


def test_override_refuses_a_text_for_a_list():
    with pytest.raises(TypeError, match=r"^override: expected a list such as .* Received: 'd_k=16'$"):
        BASE.override("d_k=16")


def test_misspelled_field_raises():
    with pytest.raises(TypeError, match="unexpected keyword argument 'd_key'"):
        replace(BASE, d_key=16)


def test_integer_is_accepted_for_a_float():
    hparams = replace(BASE, dropout=0)
    assert hparams.dropout == 0.0 and isinstance(hparams.dropout, float)


def test_to_dict_and_back():
    assert HParams(**BASE.to_dict()) == BASE
    small_data = replace(BASE, initializer_gain=0.5, bpe_dropout=0.1, r_drop=5.0, ema_decay=0.999, decay_steps=2_000)
    assert HParams(**small_data.to_dict()) == small_data


@pytest.mark.parametrize("name", [record.name for record in RECORDS.in_order() if record.place])
def test_no_set_of_the_paper_uses_a_technique_of_later_years(name):
    assert {each: getattr(HPARAMS[name], each) for each in LATER} == LATER


def test_override_sets_everything_that_small_data_may_need():
    settings = ["bpe_dropout=0.1", "r_drop=5", "ema_decay=0.999", "decay_steps=2000", "label_smoothing=0.2"]
    settings += ["dropout=0.4", "attention_dropout=0.1", "initializer_gain=0.5"]
    settings += ["num_layers=2", "num_encoder_layers=3", "num_decoder_layers=1"]
    changed = BASE.override(settings)
    found = [f"{name}={getattr(changed, name):g}" for name, _, _ in (each.partition("=") for each in settings)]
    assert found == settings


def test_override():
    changed = BASE.override(["d_k=16", "dropout=0.3", "positions=learned", "adam_epsilon=1e-8"])
    assert changed == replace(BASE, d_k=16, dropout=0.3, positions="learned", adam_epsilon=1e-8)
    assert BASE.override([]) == BASE


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (5, "override: expected a text such as 'd_k=16'. Received: 5"),
        ("d_k", "override: expected a text such as 'd_k=16'. Received: 'd_k'"),
        (
            "dk=16",
            "override: unknown field 'dk': did you mean 'd_k'[?] known: adam_beta1, adam_beta2, .*",
        ),
        (
            "zzz=16",
            "override: unknown field 'zzz'; known: adam_beta1, adam_beta2, .*",
        ),
        ("name=mine", "override: unknown field 'name'; known: .*"),
        ("d_k=sixteen", "override: d_k must be of type int, got 'sixteen'"),
        ("d_k=", "override: d_k must be of type int, got ''"),
        ("train_steps=1e5", "override: train_steps must be of type int, got '1e5'"),
        ("dropout=much", "override: dropout must be of type float, got 'much'"),
        ("dropout=2", r"dropout must be at least 0 and below 1, got 2\.0"),
        ("positions=rotary", "positions must be 'sinusoid' or 'learned', got 'rotary'"),
    ],
)
def test_override_error_names_the_field(assignment, message):
    with pytest.raises((KeyError, ValueError)) as raised:
        BASE.override([assignment])
    assert re.fullmatch(message, raised.value.args[0])
