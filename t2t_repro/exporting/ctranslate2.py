"""Export to CTranslate2, an inference engine in C++: the same weights in its format, float32 or int8.

Argos Translate installs packages of such a model and its tokenizer: see `write_argos`.

Shapes: D d_model, H heads, K d_k, E d_v, P the wider of both, V vocabulary.

CTranslate2's Transformer differs from this one in three points, and all of them are expressed by weights:

- Its sinusoids are tensor2tensor's (halves, other rates), so the paper's positions are exported as a table.
- Its queries, keys and values have one width, so the narrower of d_k and d_v is padded with zeros. Scores keep the
  scale 1 / sqrt(d_k).
- Its attention supports biases; there are none here.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
from babel import Locale

from t2t_repro.exporting import engines
from t2t_repro.text.token_ids import PAD

if TYPE_CHECKING:
    from t2t_repro.alignment.head import AlignmentHead
    from t2t_repro.data.shortlist import Shortlist
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.model.attention import MultiHeadAttention
    from t2t_repro.model.layers import AddNorm, FeedForward
    from t2t_repro.model.transformer import Transformer
    from t2t_repro.problem import Problem

VOCABULARY = "vocabulary.model"
VOCABULARY_MAP = "vmap.txt"  # CTranslate2 expects this name
SPACE = "<0x20>"  # the byte token of a space
LONGEST = 1_024  # tokens of a source, the default limit of CTranslate2, which Argos Translate does not change
LONGEST_TRANSLATION = 256  # tokens, the same
_LANGUAGE = re.compile(r"[\w-]+")  # a part of the name of a folder
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "silu": "SWISH", "tanh": "Tanh"}  # CTranslate2's names

_README = """This folder contains a model for CTranslate2 and its tokenizer, {vocabulary}, a sentencepiece model.

    import ctranslate2, sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file="FOLDER/{vocabulary}")
    translator = ctranslate2.Translator("FOLDER")
    tokens = tokenizer.encode(["a text", "another"], out_type=str)
    longest = min(max(map(len, tokens)) + {extra_length}, {positions})
    options = {{"beam_size": {beam_size}, "length_penalty": {alpha}, "max_input_length": {max_positions}}}
    options |= {{"min_decoding_length": 0, "max_decoding_length": longest, "suppress_sequences": [["<pad>"]]}}
    results = translator.translate_batch(tokens, **options)
    print([tokenizer.decode(result.hypotheses[0]) for result in results])

CTranslate2 appends the end-of-sentence token to the source. Its decoding differs from the run's in three points. It
divides scores by length^length_penalty instead of ((5 + length) / 6)^alpha; with the run's alpha of {alpha} the two are
close. It stops after max_decoding_length tokens, with or without an end-of-sentence token; in the run, each text of a
batch has its own maximum, {extra_length} more than its tokens. It translates white space, and the run does not.

As in the run, a source of more than max_input_length tokens is truncated, and still ends in the end-of-sentence token.
A translation may have at most {positions:,} tokens.
"""
_ALIGNMENT_NOTE = """
With return_attention=True and return_end_token=True, translate_batch returns the attention of the head that aligns
words: result.attention[0][i] has a weight for each source token at target token i. What they lack to 1 is the weight of
the end-of-sentence token. Link the target token to the source token with the highest weight, unless that is more.
"""
_VOCABULARY_MAP_NOTE = f"""
{VOCABULARY_MAP} is a shortlist: the likely target subwords of each source subword. With the option use_vmap=True,
translate_batch computes the probabilities of these subwords alone.
"""

_PACKAGE_README = """# {source} to {target}

A package for [Argos Translate](https://github.com/argosopentech/argos-translate) and LibreTranslate.

    import argostranslate.package, argostranslate.translate

    argostranslate.package.install_from_path("{file}")
    print(argostranslate.translate.translate("a text", "{from_code}", "{to_code}"))

Argos Translate decodes with its own beam size and length penalty, and stops after 256 tokens. The first time, it
downloads a model that splits texts into sentences.
"""


def write(
    model: Transformer,
    vocabulary: Vocabulary,
    directory: str,
    quantization: str = "none",
    note: str = "",
    shortlist: Shortlist | None = None,
    head: AlignmentHead | None = None,
) -> None:
    """Writes `model` to the new folder `directory`: weights, vocabulary, tokenizer, and a README on their use.

    `quantization` is "none" (float32) or "int8" (matrices and embeddings in 8 bits with a scale per row, the rest in
    float32). `note` is appended to the README. `shortlist` becomes the vocabulary map, for `use_vmap`.
    `return_attention` returns the attention of `head`. Raises ValueError if CTranslate2 is not installed.
    """
    engines.FORMATS["ctranslate2"].must_be_installed()
    save(specification(model, head), vocabulary, directory, quantization)
    shutil.copyfile(vocabulary.path, os.path.join(directory, VOCABULARY))
    if shortlist is not None:
        shortlist.save(os.path.join(directory, VOCABULARY_MAP), vocabulary)
        note = _VOCABULARY_MAP_NOTE + note
    if head is not None:
        note = _ALIGNMENT_NOTE + note
    h = model.hparams
    values = {name: getattr(h, name) for name in ("beam_size", "alpha", "extra_length", "max_positions")}
    with open(os.path.join(directory, "README.txt"), "w", encoding="utf-8") as file:
        file.write(_README.format(vocabulary=VOCABULARY, positions=engines.num_positions(model), **values) + note)


def must_fit(model: Transformer) -> None:
    """Raises ValueError, with the reason, if the code of the model was changed to one that CTranslate2 lacks."""
    engines.activation(model, "CTranslate2")
    engines.must_be_the_papers(model, "CTranslate2")


def save(spec: Any, vocabulary: Vocabulary, directory: str, quantization: str) -> None:
    """Writes the files that CTranslate2 reads to the folder `directory`."""
    spec.register_source_vocabulary(vocabulary.subwords)
    spec.register_target_vocabulary(vocabulary.subwords)
    spec.validate()
    spec.optimize(quantization="float32" if quantization == "none" else quantization)
    os.makedirs(directory, exist_ok=True)
    spec.save(directory)


def must_fit_argos(problem: Problem) -> None:
    """Raises ValueError if the languages of the problem are unknown, or if it is not one of translation."""
    if problem.task.name != "translation":
        raise ValueError(f"Argos Translate is for translation, and {problem.name} is for {problem.task.name}")
    languages = problem.source_language, problem.target_language
    if not all(map(_LANGUAGE.fullmatch, languages)) or languages[0] == languages[1]:
        raise ValueError(
            "a package of Argos Translate needs the codes of two languages. Received: "
            f"source_language={languages[0]!r}, target_language={languages[1]!r}; train with both"
        )


def write_argos(
    model: Transformer, vocabulary: Vocabulary, problem: Problem, directory: str, quantization: str = "none"
) -> None:
    """Writes the package `SOURCE_TARGET.argosmodel` to the new folder `directory`, and a README on its use.

    Argos Translate splits a line into sentences, and decodes the tokens of all their translations as one list. This
    vocabulary writes no space at the start of a text, so nothing would separate them. The package therefore has a
    `target_prefix`, the token that each translation starts with: the byte token of a space, which no text has. As an
    input of the decoder, it is the start token again, at the position of the start token.

    `quantization` is that of `write`. Raises ValueError if CTranslate2 is not installed.
    """
    engines.FORMATS["argos"].must_be_installed()
    spec = specification(model)
    embedding_VD = spec.decoder.embeddings.weight.copy()
    embedding_VD[vocabulary.subwords.index(SPACE)] = embedding_VD[PAD]  # padding is the start token
    spec.decoder.embeddings.weight = embedding_VD
    spec.encoder.position_encodings.encodings = engines.positions(model, "source", LONGEST + 1)
    target_PD = engines.positions(model, "target", LONGEST_TRANSLATION)
    spec.decoder.position_encodings.encodings = np.concatenate([target_PD[:1], target_PD])
    codes = problem.source_language, problem.target_language
    names = Locale("en").languages
    source, target = (str(names.get(code, code)) for code in codes)
    folder = "_".join(codes)
    metadata = {"type": "translate", "package_version": "1.0", "argos_version": "1.9", "target_prefix": SPACE}
    metadata |= {"from_code": codes[0], "from_name": source, "to_code": codes[1], "to_name": target}
    values = {"source": source, "target": target, "from_code": codes[0], "to_code": codes[1]}
    readme = _PACKAGE_README.format(**values, file=f"{folder}.argosmodel")
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"{folder}.argosmodel")
    with (
        tempfile.TemporaryDirectory(dir=directory) as temporary,
        zipfile.ZipFile(path, "w", strict_timestamps=False) as package,
    ):
        save(spec, vocabulary, temporary, quantization)
        package.writestr(f"{folder}/metadata.json", json.dumps(metadata, indent=2, ensure_ascii=True))
        package.writestr(f"{folder}/README.md", readme)
        package.write(vocabulary.path, f"{folder}/sentencepiece.model")
        for name in sorted(os.listdir(temporary)):
            package.write(os.path.join(temporary, name), f"{folder}/model/{name}")
    with open(os.path.join(directory, "README.md"), "w", encoding="utf-8") as file:
        file.write(readme)


def specification(model: Transformer, head: AlignmentHead | None = None) -> Any:
    """Returns CTranslate2's description of the model, with all weights set.

    CTranslate2 returns the mean attention of the first heads of one layer, so the heads of that layer are exported in
    an order that starts with `head`. Raises ValueError for a model that does not fit, see `must_fit`.
    """
    must_fit(model)
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    from t2t_repro.model.kernels import EPSILON

    h = model.hparams
    activation = Activation[_ACTIVATIONS[engines.activation(model, "CTranslate2")]]
    sizes = {"num_heads": h.num_heads, "pre_norm": False, "head_dim": max(h.d_k, h.d_v), "activation": activation}
    aligning = {}
    if head is not None:
        aligning = {"alignment_layer": head.layer - 1, "alignment_heads": 1 if head.head else h.num_heads}
    spec = TransformerSpec(
        TransformerEncoderSpec(h.encoder_depth, **sizes), TransformerDecoderSpec(h.decoder_depth, **sizes, **aligning)
    )
    embedding_VD = _numpy(model.embedding)
    spec.encoder.embeddings[0].weight = embedding_VD
    spec.decoder.embeddings.weight = embedding_VD
    spec.decoder.projection.weight = embedding_VD
    spec.encoder.position_encodings.encodings = engines.positions(model, "source")
    spec.decoder.position_encodings.encodings = engines.positions(model, "target")
    for theirs, ours in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        _self_attention(theirs.self_attention, ours.self_attention, ours.self_attention_norm)
        _feed_forward(theirs.ffn, ours.feed_forward, ours.feed_forward_norm)
    for number, (theirs, ours) in enumerate(zip(spec.decoder.layer, model.decoder_layers, strict=True), start=1):
        first = head.head - 1 if head is not None and head.head and head.layer == number else 0
        _self_attention(theirs.self_attention, ours.self_attention, ours.self_attention_norm)
        _memory_attention(theirs.attention, ours.memory_attention, ours.memory_attention_norm, first)
        _feed_forward(theirs.ffn, ours.feed_forward, ours.feed_forward_norm)
    config = spec.config
    config.bos_token = config.decoder_start_token = "<pad>"  # the decoder's input starts with padding (section 3.1)
    config.eos_token, config.unk_token = "</s>", "<unk>"
    config.add_source_eos = True
    config.layer_norm_epsilon = EPSILON
    return spec


def _self_attention(theirs: Any, ours: MultiHeadAttention, norm: AddNorm) -> None:
    """Sets one projection for queries, keys and values. CTranslate2's weights are [output, input]."""
    theirs.linear[0].weight = _heads(ours, ours.w_q, ours.w_k, ours.w_v)
    _output_and_norm(theirs, ours, norm)


def _memory_attention(theirs: Any, ours: MultiHeadAttention, norm: AddNorm, first: int) -> None:
    """Sets the projections with head number `first`, from 0, before the others."""
    theirs.linear[0].weight = _heads(ours, ours.w_q, first=first)
    theirs.linear[1].weight = _heads(ours, ours.w_k, ours.w_v, first=first)
    _output_and_norm(theirs, ours, norm, first)


def _output_and_norm(theirs: Any, ours: MultiHeadAttention, norm: AddNorm, first: int = 0) -> None:
    theirs.linear[-1].weight = _padded_heads(ours, _numpy(ours.w_o).T, first).T.copy()
    theirs.queries_scale = np.float32(1 / math.sqrt(ours.d_k))
    _layer_norm(theirs.layer_norm, norm)


def _feed_forward(theirs: Any, ours: FeedForward, norm: AddNorm) -> None:
    for linear, weight, bias in ((theirs.linear_0, ours.w_1, ours.b_1), (theirs.linear_1, ours.w_2, ours.b_2)):
        linear.weight = _numpy(weight).T.copy()
        linear.bias = _numpy(bias)
    _layer_norm(theirs.layer_norm, norm)


def _layer_norm(theirs: Any, ours: AddNorm) -> None:
    theirs.gamma = _numpy(ours.norm.gain)
    theirs.beta = _numpy(ours.norm.bias)


def _heads(attention: MultiHeadAttention, *weights: Any, first: int = 0) -> np.ndarray:
    return np.concatenate([_padded_heads(attention, _numpy(weight), first) for weight in weights])


def _padded_heads(attention: MultiHeadAttention, weight: np.ndarray, first: int) -> np.ndarray:
    """Returns a matrix [D, H K] or [D, H E] as [H P, D], each head's rows padded with zeros, head `first` first."""
    order_H = [first, *(number for number in range(attention.num_heads) if number != first)]
    weight_DHK = weight.reshape(weight.shape[0], attention.num_heads, -1)[:, order_H]
    missing = max(attention.d_k, attention.d_v) - weight_DHK.shape[2]
    padded_DHP = np.pad(weight_DHK, ((0, 0), (0, 0), (0, missing)))
    return padded_DHP.reshape(weight.shape[0], -1).T.copy()


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(variable.value.numpy(), np.float32)
