"""The vocabulary as `tokenizer.json`, which Hugging Face's tokenizers reads: the same ids and the same text.

The escape of `data.vocabulary` is written as replacements, before and after the subwords. sentencepiece merges the two
neighbors whose subword has the lowest id; tokenizers has a list of pairs, of which it merges the first, so the list has
every pair that forms a subword, in the order of that subword's id.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from t2t_repro.io import write_json
from t2t_repro.text.token_ids import EOS, NUM_FIXED, PAD, UNKNOWN

if TYPE_CHECKING:
    from t2t_repro.data.vocabulary import Vocabulary

_SPACE, _ESCAPE = "\u2581", "\U00100000"
_ESCAPED_SPACE, _ESCAPED_ESCAPE = _ESCAPE + "1", _ESCAPE + "0"


def write(vocabulary: Vocabulary, directory: str, max_positions: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json to `directory`. `max_positions` is the tokens of a source."""
    subwords = vocabulary.subwords
    pad, eos, unknown = (subwords[token] for token in (PAD, EOS, UNKNOWN))
    write_json(os.path.join(directory, "tokenizer.json"), _tokenizer(subwords))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "pad_token": pad,
        "eos_token": eos,
        "unk_token": unknown,
        "split_special_tokens": True,  # "</s>" in a text is text
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],  # by default also token_type_ids, which Marian rejects
    }
    write_json(os.path.join(directory, "tokenizer_config.json"), config)


def _tokenizer(subwords: list[str]) -> dict[str, Any]:
    eos = subwords[EOS]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    sequence, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": eos, "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": subwords[token], **flags} for token in (PAD, EOS, UNKNOWN)],
        "normalizer": _sequence(
            "normalizers",
            _replace(_ESCAPE, _ESCAPED_ESCAPE),
            _replace(_SPACE, _ESCAPED_SPACE),
            _replace(" ", _SPACE),
        ),
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": _SPACE},
            "behavior": "MergedWithNext",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sequence, end],
            "pair": [sequence, end, {"Sequence": {"id": "B", "type_id": 0}}, end],
            "special_tokens": {eos: {"id": eos, "ids": [EOS], "tokens": [eos]}},
        },
        "decoder": _sequence(
            "decoders",
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            _replace(_SPACE, " "),
            _replace(_ESCAPED_SPACE, _SPACE),
            _replace(_ESCAPED_ESCAPE, _ESCAPE),
        ),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": subwords[UNKNOWN],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {subword: number for number, subword in enumerate(subwords)},
            "merges": _merges(subwords[NUM_FIXED:]),
        },
    }


def _merges(learned: list[str]) -> list[list[str]]:
    """Returns every pair of learned subwords that forms another one, in the order of that one's id."""
    known = set(learned)
    return [
        [subword[:place], subword[place:]]
        for subword in learned
        for place in range(1, len(subword))
        if subword[:place] in known and subword[place:] in known
    ]


def _sequence(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}


def _replace(found: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": found}, "content": content}
