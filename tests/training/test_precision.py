"""Precision: the meaning of "auto" on each kind of device, TF32 on GPUs, and the precision of decoding, scoring and
exports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.tiny_model import PROBLEM, TINY
from tensorflow.core.protobuf import saved_model_pb2

import t2t_repro
from t2t_repro.config import TrainingOptions
from t2t_repro.evaluation.evaluator import evaluate
from t2t_repro.exporting.exporter import export
from t2t_repro.serving.model import ServedModel
from t2t_repro.system import processor
from t2t_repro.training import hardware, precision
from t2t_repro.training.trainer import train

PAIRS = [("3 red cats and 4 old dogs", "3 rote Katzen und 4 alte Hunde"), ("12 big cows", "12")]


@pytest.fixture
def gpus(monkeypatch):
    """Returns `gpus((8, 0), (7, 5))`, which makes TensorFlow report GPUs of these compute capabilities."""

    def present(*capabilities: tuple[int, int]) -> None:
        found = dict(enumerate(capabilities))
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: list(found))
        details = lambda gpu: {"compute_capability": found[gpu]}  # noqa: E731
        monkeypatch.setattr(tf.config.experimental, "get_device_details", details)

    return present


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [([(9, 0)], "bfloat16"), ([(8, 0), (7, 5)], "float16"), ([(7, 0)], "float16"), ([(6, 1), (9, 0)], "float32")],
)
def test_auto_is_the_fastest_precision_of_the_oldest_gpu(gpus, capabilities, expected):
    gpus(*capabilities)
    assert precision.resolve("auto") == expected


def test_tf32_needs_gpus_that_support_it(gpus):
    gpus((8, 0))
    assert precision.resolve("tf32") == "tf32"
    gpus((7, 5))
    with pytest.raises(ValueError, match=r"compute capability 8.0 or later. Received: \(7, 5\); take 'float32'"):
        precision.resolve("tf32")


def test_auto_keeps_the_precision_of_a_run(trained, data, tmp_path, monkeypatch):
    """The fastest precision of this machine does not matter."""
    run = shutil.copytree(trained.directory, str(tmp_path / "RUN"))
    for other in ("bfloat16", "float16"):
        monkeypatch.setattr(hardware, "native_precision", lambda other=other: (other, ""))
        assert precision.resolve_for_run("auto", run) == trained.precision == "float32"
        assert precision.resolve_for_run("auto", str(tmp_path / "NEW")) == other
    with pytest.raises(ValueError, match="its precision is 'float32', not 'float16'"):
        train(PROBLEM, TINY, data, run, TrainingOptions(precision="float16"))


def test_float32_disables_tf32(trained):
    """By default TensorFlow multiplies float32 in TF32 on GPUs of compute capability 8.0 and later."""
    tf.config.experimental.enable_tensor_float_32_execution(True)
    t2t_repro.load(trained.directory)
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    precision.allow_tf32(True)
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    precision.allow_tf32(False)


def test_a_gpu_that_tensorflow_does_not_see_is_reported(gpus, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "NVIDIA", str(tmp_path / "nvidia0"))
    assert hardware.unused_gpu() == ""
    (tmp_path / "nvidia0").touch()
    assert hardware.unused_gpu().startswith(f"warning: there is an NVIDIA GPU ({tmp_path / 'nvidia0'}), but TensorFlow")
    gpus((8, 0))
    assert hardware.unused_gpu() == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, "precision must be one of auto, float32, tf32, bfloat16, float16, got 'half'"),
        ({"seed": 2**18}, "seed must be at least 0 and below 262144, got 262144"),
        ({"microbatch_tokens": -1}, "microbatch_tokens must be at least 0, got -1"),
        ({"checkpoint_minutes": float("nan")}, "checkpoint_minutes must be at least 0, got nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**options)


# Decoding, scoring and exports.


@pytest.fixture(scope="module")
def narrow(trained, tmp_path_factory):
    """Returns `trained` as a run in bfloat16 with the same weights."""
    folder = tmp_path_factory.mktemp("narrow")
    run = replace(trained, directory=str(folder / "RUN"), precision="bfloat16").start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, run.checkpoints, dirs_exist_ok=True)
    return run.directory


@pytest.fixture(scope="module")
def narrow_export(narrow, tmp_path_factory) -> str:
    """The path of an export of that run. Do not change it."""
    return export(narrow, str(tmp_path_factory.mktemp("narrow_export") / "E"))


@pytest.mark.numeric
def test_runs_are_scored_in_bfloat16_or_float32(trained, narrow):
    wide, narrow_scores = (t2t_repro.load(run).score(PAIRS) for run in (trained.directory, narrow))
    assert wide != narrow_scores
    assert t2t_repro.load(narrow, precision="float32").score(PAIRS) == wide
    assert t2t_repro.load(trained.directory, precision="bfloat16").score(PAIRS) == narrow_scores
    both = t2t_repro.load([trained.directory, narrow], precision="float32").score(PAIRS)
    assert both == pytest.approx(wide, rel=1e-6)


def test_scores_name_the_precision_that_they_were_computed_in(trained, narrow):
    wide, other = evaluate(trained.directory), evaluate(narrow, precision="float32")
    assert wide["precision"] == other["precision"] == "float32"
    assert {name: wide[name] for name in ("bleu", "loss")} == {name: other[name] for name in ("bleu", "loss")}


def products(path: str) -> set[str]:
    """Returns the data types of all matrix products in a SavedModel, including int8, except those of gradients."""
    saved = saved_model_pb2.SavedModel.FromString(Path(path, "saved_model.pb").read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    nodes = [node for each in functions if "_grad_fn_" not in each.signature.name for node in each.node_def]
    types = [node.attr["T"].type for node in nodes if node.op in ("MatMul", "BatchMatMulV2")]
    return {tf.as_dtype(each).name for each in types} | {"int8" for node in nodes if node.op == "_QuantizedMatMul"}


@pytest.mark.parametrize(
    ("options", "computed_in", "expected"),
    [
        ({}, "bfloat16", {"bfloat16"}),
        pytest.param({"precision": "float32"}, "float32", {"float32"}, marks=pytest.mark.slow),
        ({"precision": "float32", "quantization": "int8"}, "float32", {"float32", "int8"}),
        pytest.param({"quantization": "int8"}, "bfloat16", {"bfloat16", "int8"}, marks=pytest.mark.slow),
    ],
)
def test_the_card_names_the_precision_of_the_graph(narrow, narrow_export, tmp_path, options, computed_in, expected):
    path = narrow_export if not options else export(narrow, str(tmp_path / "E"), **options)
    card = json.loads(Path(path, "model_card.json").read_text("utf-8"))
    assert (card["precision"], card["trained_in"]) == (computed_in, "bfloat16")
    assert card["quantization"] == options.get("quantization", "none")
    assert products(path) == expected


def test_ctranslate2_takes_float32_weights(narrow, tmp_path):
    message = "CTranslate2 takes float32 weights. Received: precision='bfloat16'; leave it out"
    with pytest.raises(ValueError, match=message):
        export(narrow, str(tmp_path / "E"), format="ctranslate2", precision="bfloat16")


@pytest.mark.parametrize("open_export", [t2t_repro.load, ServedModel], ids=["load", "serve"])
def test_an_export_allows_tf32_only_if_its_card_does(exported, tmp_path, open_export):
    path = shutil.copytree(os.path.dirname(exported), tmp_path / "E") / "1" / "model_card.json"
    card = json.loads(path.read_text("utf-8"))
    for computed_in, allowed in (("tf32", True), ("float32", False)):
        path.write_text(json.dumps(card | {"precision": computed_in}), "utf-8")
        open_export(str(tmp_path / "E"))
        assert tf.config.experimental.tensor_float_32_execution_enabled() is allowed


# A precision that this processor cannot compute.

LIMITED = {"ONEDNN_MAX_CPU_ISA": "AVX2", "TF_ENABLE_ONEDNN_OPTS": "1"}
FAULT = "precision 'bfloat16' cannot be computed here: oneDNN has no products in it under ONEDNN_MAX_CPU_ISA=AVX2"


@pytest.fixture
def limited(monkeypatch):
    monkeypatch.setattr(processor, "features", lambda: ("avx2", "avx512f", "avx512_bf16"))
    for name, value in LIMITED.items():
        monkeypatch.setenv(name, value)


def test_bfloat16_is_rejected_before_anything_is_computed(limited, trained, narrow, data, tmp_path):
    assert precision.resolve("auto") == precision.resolve("float32") == "float32"
    asked = TrainingOptions(precision="bfloat16")
    for refused in (
        lambda: train(PROBLEM, TINY, str(tmp_path / "unprepared"), str(tmp_path / "NEW"), asked),
        lambda: train(PROBLEM, TINY, data, narrow),
        lambda: t2t_repro.load(narrow),
        lambda: t2t_repro.load(trained.directory, precision="bfloat16"),
        lambda: evaluate(narrow),
        lambda: export(narrow, str(tmp_path / "E")),
    ):
        with pytest.raises(ValueError, match=f"^{FAULT}; take 'float32', or lift that limit$"):
            refused()
    assert os.listdir(tmp_path) == []
    assert t2t_repro.load(narrow, precision="float32").score(PAIRS)


@pytest.mark.parametrize("open_export", [t2t_repro.load, ServedModel], ids=["load", "serve"])
def test_an_export_in_bfloat16_is_rejected(narrow_export, request, open_export):
    request.getfixturevalue("limited")
    with pytest.raises(ValueError, match="computes in bfloat16, and oneDNN has no .*; export the run in float32"):
        open_export(os.path.dirname(narrow_export))


@pytest.mark.skipif("avx512f" not in processor.features(), reason="needs a processor with AVX-512")
def test_programs_reject_bfloat16_in_one_line(narrow, data, tmp_path):
    """Otherwise TensorFlow would abort the process."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **LIMITED}
    environment.pop("TF_CPP_MIN_LOG_LEVEL")  # so that the program hides what TensorFlow prints

    def run(program, *arguments):
        command = [sys.executable, "-m", f"t2t_repro.bin.{program}", *arguments]
        return subprocess.run(command, env=environment, input="3 cats\n", capture_output=True, text=True, cwd=tmp_path)

    new = ("--problem=translate_ende_cldr", "--hparams=tiny", "--data_dir=D", "--output_dir=NEW")
    decode = ("t2t_decoder", f"--output_dir={narrow}")
    for done in (run("t2t_trainer", *new, "--precision=bfloat16"), run(*decode)):
        assert (done.returncode, done.stdout) == (1, "") and FAULT in done.stderr and done.stderr.count("\n") == 1
    done = run(*decode, "--precision=float32")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 1
    assert os.listdir(tmp_path) == []
