"""Graphs traced for GPUs: each operation has a GPU kernel, and only named values pass through host memory.

No GPU is needed: see `helpers.gpu_graph`. Results and speed on a GPU are not tested.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.gpu_graph import Audit, Copy, audit, kernels_of, pretended_gpus
from helpers.tiny_model import SMALL

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting.signatures import ExportedTranslator
from t2t_repro.inference.ensemble import FixedEnsemble
from t2t_repro.inference.search.search_graph import SearchGraph
from t2t_repro.inference.translator import Translator
from t2t_repro.model import random_masks
from t2t_repro.model.transformer import Transformer
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.training.optimizer import Adam
from t2t_repro.training.precision import POLICIES
from t2t_repro.training.train_step import TrainStep, make_evaluator

IDS = tf.TensorSpec([None, None], tf.int32)
PRECISIONS = [precision for precision in POLICIES if precision != "tf32"]  # its graphs are those of float32
LAYERS = 1  # more layers add nothing new
STEP = replace(SMALL, num_layers=LAYERS, dropout=0.1, attention_dropout=0.1, label_smoothing=0.1)
MASKS = 2 + LAYERS * (2 + 1) + LAYERS * (3 + 2)  # embeddings, sub-layers and attention weights
CASES = [  # precision, replicas, positions, micro-batches of a replica
    ("float32", 1, "sinusoid", 8),
    ("bfloat16", 1, "learned", 1),
    ("float16", 1, "sinusoid", 8),
    ("float32", 2, "sinusoid", 1),
    ("bfloat16", 2, "sinusoid", 4),
    ("float16", 2, "learned", 1),
]

IDS_COUNTED = "TensorFlow takes the size of int32 ids in host memory"
TO_HOST_OF_A_STEP = {  # per micro-batch, step or replica
    Copy("SelectV2", "Size", "input", "int32"): IDS_COUNTED,
    Copy("GatherV2", "NotEqual", "x", "int32"): "target ids: TensorFlow compares int32 in host memory",
    Copy("IsFinite", "If", "cond", "bool"): "metric: the host decides whether to apply the gradient",
    Copy("Cast", "AddN", "inputs", "float32"): "metric: a replica's number of target tokens",
    Copy("While", "AddN", "inputs", "float32"): "metric: a replica's sums over its micro-batches",
    Copy("Pack", "AddN", "inputs", "float32"): "metric: a replica's sums, of one micro-batch",
    Copy("ReadVariableOp", "AddV2", "x", "int32"): "counter: finite steps so far, for the loss scale",
    Copy("SelectV2", "Equal", "x", "int32"): "counter: finite steps so far, for the loss scale",
}
FLOATS_TO_DEVICE_OF_A_STEP = {
    Copy("Placeholder", "If", "input", "float32"): "the learning rate",
    Copy("Identity", "RealDiv", "x", "float32"): "the number of target tokens, summed over replicas",
    Copy("Identity", "Unpack", "value", "float32"): "metrics, summed over replicas",
}
FLOATS_TO_HOST_OF_DECODING = {
    Copy("Const", "PadV2", "constant_values", "float32"): "a constant: what the vocabulary is padded with",
    Copy("Const", "SentencepieceTokenizeOp", "alpha", "float32"): "a constant",
    Copy("Fill", "AsString", "input", "float32"): "the texts of no sentences, before the first are joined to them",
    Copy("argument", "Assert", "data", "float32"): "an option of the request, for an error message",
}
ON_CPU = {  # operations of exported signatures that run on the CPU
    "SentencepieceTokenizeOp": "tokenizer",
    "SentencepieceDetokenizeOp": "tokenizer",
    "SentencepieceIdToStringOp": "tokenizer",
    "RaggedGather": "ids before they are padded to a batch",
    "RaggedRange": "ids before they are padded to a batch",
    "RaggedTensorToTensor": "ids before they are padded to a batch",
    "DenseBincount": "strings",  # of the words that a split gives
    "StaticRegexReplace": "strings",
    "StaticRegexFullMatch": "strings",
    "StringSplitV2": "strings",
    "UnsortedSegmentJoin": "strings",
    "AsString": "strings",
    "StringJoin": "strings",
    "StridedSlice of strings": "strings",
    "Const of strings": "strings",
    "Size of strings": "strings",
    "SelectV2 of strings": "strings",
    "GatherV2 of strings": "strings",
    "ConcatV2 of strings": "strings",
    "Reshape of strings": "strings",
}
NARROW = (tf.int32.name, tf.int64.name, tf.bool.name)  # shapes, ids, and what is compared of them


@pytest.fixture(scope="module", autouse=True)
def gpus():
    with pretended_gpus(2):
        yield


def floats(copies: Counter[Copy]) -> set[Copy]:
    return {copy for copy in copies if copy.dtype not in NARROW}


def test_operations_without_gpu_kernel_are_found_in_any_function():
    @tf.function(autograph=False)
    def as_text(x):
        return tf.strings.length(tf.as_string(2 * x))

    def body(number, x):
        return number + tf.reduce_sum(as_text(x)), tf.cond(number > 3, lambda: x, lambda: x + 1)

    def looped(x):
        return tf.while_loop(lambda number, _: number < 9, body, (0, x))

    found = audit(tf.function(looped, autograph=False).get_concrete_function(tf.TensorSpec([3])))
    assert set(found.missing) == {"AsString", "StringLength"}
    assert set(found.copies("to_host")) == {Copy("Mul", "AsString", "input", "float32")}
    assert found.operations["Mul"] == 1


# The step.


def traced_step(precision: str, replicas: int, positions: str, micro_batches: int, jit_compile: bool = False) -> Audit:
    hparams = replace(STEP, positions=positions, batch_tokens=3_000 * replicas * micro_batches)
    strategy = tf.distribute.MirroredStrategy([f"GPU:{number}" for number in range(replicas)])
    with strategy.scope():
        model = Transformer(50, hparams, dtype=POLICIES[precision])
        variables = [weight.value for weight in model.trainable_weights]
        train_step = TrainStep(
            model, Adam(variables, hparams, precision == "float16"), hparams, seed=1, jit_compile=jit_compile
        )
    assert train_step.microbatches == micro_batches
    ids = tf.TensorSpec([micro_batches, None, None], tf.int32)
    element = {"inputs": ids, "targets": ids, "sizes": tf.TensorSpec([micro_batches, 3], tf.int32)}
    element |= {"position": tf.TensorSpec([3], tf.int64)}
    return audit(train_step.build(element).get_concrete_function())


step = functools.cache(traced_step)


@pytest.mark.parametrize(("precision", "replicas", "positions", "micro_batches"), CASES)
def test_step_runs_on_gpus(precision, replicas, positions, micro_batches):
    found = step(precision, replicas, positions, micro_batches)
    assert not found.missing
    assert found.operations["StatelessRandomUniformFullInt"] == MASKS * replicas
    assert found.operations["ResourceApplyAdam"] > 20 * replicas
    assert set(found.copies("to_host")) <= set(TO_HOST_OF_A_STEP)
    assert floats(found.copies("to_device")) <= set(FLOATS_TO_DEVICE_OF_A_STEP)


def test_each_allowed_copy_of_a_step_is_made():
    found = [step(*case) for case in CASES]
    assert {copy for each in found for copy in each.copies("to_host")} == set(TO_HOST_OF_A_STEP)
    assert {copy for each in found for copy in floats(each.copies("to_device"))} == set(FLOATS_TO_DEVICE_OF_A_STEP)


def test_few_copies_wait_for_a_micro_batch():
    """Only ids, for any number of masks."""
    copies = step("bfloat16", 2, "sinusoid", 4).copies("to_host", function="while_body")
    assert {copy.dtype for copy in copies} == {"int32"} and copies.total() == 2 * 3


def test_a_seed_mixed_on_the_device_is_found(monkeypatch):
    """Exclusive or of int32 only has a GPU kernel: each mask would wait for a copy of its seed."""
    monkeypatch.setattr(random_masks.ops, "add", random_masks.ops.bitwise_xor)
    copies = traced_step("bfloat16", 1, "sinusoid", 1).copies("to_host")
    assert copies[Copy("BitwiseXor", "StatelessRandomUniformFullInt", "seed", "int32")] == MASKS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_compiled_by_xla_runs_on_gpus(precision):
    assert any(kernel.device_type == "XLA_GPU_JIT" for kernel in kernels_of("MatMul"))
    found = step(precision, 1, "sinusoid", 8, jit_compile=True)
    assert not found.missing and found.operations["StatelessRandomUniformFullInt"] == MASKS
    assert all(copy.dtype in NARROW for copy in found.copies("to_host"))


# Evaluation and decoding.


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(str(CHECKOUT / "tests/fixtures/run/vocabulary.model"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_evaluation_runs_on_gpus(precision):
    model = Transformer(50, SMALL, dtype=POLICIES[precision])
    found = audit(make_evaluator(model, 0.1).get_concrete_function(IDS, IDS))
    assert not found.missing and found.operations["MatMul"] > 10
    assert set(found.copies("to_host")) == {Copy("GatherNd", "Size", "input", "int32")}, IDS_COUNTED
    assert not floats(found.copies("to_device"))


def made_translator(vocabulary: Vocabulary, precision: str, parses: bool) -> Translator:
    model = Transformer(vocabulary.size, replace(SMALL, positions="learned"), dtype=POLICIES[precision])
    constraint = ParseConstraint(vocabulary.subwords) if parses else None
    with pytest.MonkeyPatch.context() as patch:  # as if there were a GPU
        patch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
        ensemble = FixedEnsemble([model])
    return Translator(ensemble, vocabulary, SMALL, constraint)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", ["_search", "_sample", "_constrained_search", "token_log_probabilities"])
def test_decoding_runs_on_gpus(vocabulary, function, precision):
    """Beam search, sampling, parsing and scoring send only ids to the host in each step."""
    translator = made_translator(vocabulary, precision, parses=function == "_constrained_search")
    searched = getattr(translator, function)
    found = audit(searched.concrete() if isinstance(searched, SearchGraph) else searched.get_concrete_function())
    assert not found.missing
    assert floats(found.copies("to_host")) <= set(FLOATS_TO_HOST_OF_DECODING)
    dtypes = {"float32", "float64"}  # arguments: a temperature is float64
    assert {copy.dtype for copy in floats(found.copies("to_device"))} <= dtypes
    assert all(copy.producer in ("Placeholder", "argument") for copy in floats(found.copies("to_device")))


@pytest.fixture(scope="module")
def exported(vocabulary) -> dict[str, Audit]:
    parser, translator = (made_translator(vocabulary, "bfloat16", parses) for parses in (True, False))
    signatures = ExportedTranslator(parser, "parse").signatures()
    signatures |= {"translations": ExportedTranslator(translator).signatures()["translate"]}
    return {name: audit(function.get_concrete_function()) for name, function in signatures.items()}


def test_exported_signatures_run_on_gpus_except_text_operations(exported):
    assert set(exported) == {"parse", "serving_default", "translate", "score", "attention", "translations"}
    assert {operation for found in exported.values() for operation in found.missing} == set(ON_CPU)


def test_exported_signatures_copy_ids(exported):
    copies = {copy for found in exported.values() for copy in floats(found.copies("to_host"))}
    assert copies == set(FLOATS_TO_HOST_OF_DECODING)


def test_no_signature_copies_a_list_of_texts(exported):
    """A GPU cannot hold strings: TensorFlow fails when it copies a list of them there."""
    for found in exported.values():
        copies: Any = (*found.copies("to_host"), *found.copies("to_device"))
        assert not [copy for copy in copies if copy.dtype == "variant"]
