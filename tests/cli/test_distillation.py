"""A shallow student learns from the translations of a teacher: the commands of docs/fine_tuning.md, in a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CHECKOUT

import t2t_repro
from t2t_repro.run import Run

TEACHER = f"{CHECKOUT}/tests/fixtures/run"
SIZES = "num_encoder_layers=3 num_decoder_layers=1 d_model=16 d_ff=16 num_heads=1 d_k=8 d_v=8 batch_tokens=1024".split()
SIZES += ["beam_size=2", "extra_length=5"]  # an untrained student would write as much as it may


@pytest.fixture
def texts(tmp_path, monkeypatch) -> list[str]:
    """English text as that of the teacher in train.en, and pairs in dev.en and dev.de."""
    monkeypatch.chdir(tmp_path)
    sources = [f"{number} hours, {number % 7} minutes, and {number % 9} seconds" for number in range(60)]
    Path("train.en").write_text("".join(f"{source}\n" for source in sources), "utf-8")
    Path("dev.en").write_text("".join(f"in {number} days\n" for number in range(10)), "utf-8")
    Path("dev.de").write_text("".join(f"in {number} Tagen\n" for number in range(10)), "utf-8")
    return sources


@pytest.mark.slow
def test_student_with_a_shallow_decoder_learns_from_a_teacher(program, one_replica, texts):
    teach = ["--decode_from_file=train.en", "--decode_to_file=distilled.de", "--beam_size=1"]
    assert program("t2t-decoder", f"--output_dir={TEACHER}", *teach).code == 0
    files = ["--train_source=train.en", "--train_target=distilled.de"]
    files += ["--validation_source=dev.en", "--validation_target=dev.de"]
    data = ["--problem=translate_files", "--data_dir=data"]
    code, _, err = program("t2t-datagen", *data, *files, f"--vocabulary_from={TEACHER}")
    assert code == 0 and f"vocabulary: 400 subwords (bpe) of the run {TEACHER}" in err
    train = ["--hparams=tiny", "--output_dir=student", *(f"--override={size}" for size in SIZES), "--precision=float32"]
    code, out, _ = program("t2t-trainer", *data, *train, "--train_steps=2")
    assert code == 0 and "BLEU" in out
    student = Run.open("student")
    assert (student.hparams.encoder_depth, student.hparams.decoder_depth) == (3, 1)
    # both share the vocabulary, so they can decode together
    both = t2t_repro.load([TEACHER, "student"])(texts[:2])
    assert len(both) == 2
