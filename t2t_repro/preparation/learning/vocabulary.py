"""Learns a vocabulary of exactly the requested size, as a sentencepiece model.

Both kinds merge the most frequent pair of neighboring subwords until the vocabulary has the requested size. A subword
never crosses a space. Subwords of the kind "bpe" hold letters of one script, or digits and signs, never both. Subwords
of the kind "word_piece" may hold anything between two spaces, as in Wu et al. (2016), section 4.1.

Like the word-pieces of Wu et al., these vocabularies have an exact size, lie within words, mark the start of a word, so
that words can be restored, and aim at the fewest subwords for the text, which merging the most frequent pair
approximates greedily. Three things differ. Encoding repeats the merges instead of searching for the longest subword
that fits. The mark is the space itself, so every text is restored exactly. A rare character is spelled in bytes, so no
word is unknown. sentencepiece's unigram kind is not used: its Python version and tensorflow-text give different ids on
some lines.
"""

from __future__ import annotations

import collections
import ctypes
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, cast

from t2t_repro.data.vocabulary import ESCAPE_RULES, SPLITTING, cpp_message, model_proto, must_be_unicode
from t2t_repro.io import atomic_write
from t2t_repro.system.heap import return_freed_memory
from t2t_repro.system.processor import usable_cores
from t2t_repro.text.token_ids import EOS, NUM_FIXED, PAD, UNKNOWN

SAMPLE_CHARACTERS = 2_000_000  # a character rarer than one in this many is spelled in bytes: see docs/data.md
_ESCAPE = {"\u2581": "\U001000001", "\U00100000": "\U001000000"}
_LEARN_CHARACTERS = 4_096  # sentencepiece is given texts of at most this length; longer ones are cut
_MIN_COVERAGE = 0.98  # sentencepiece rejects less


def learn_vocabulary(
    texts: Iterable[str],
    path: str,
    kind: str,
    size: int,
    num_threads: int | None = None,
    min_character_count: int = 0,
) -> int:
    """Learns a vocabulary of exactly `size` ids and writes it to `path` atomically.

    The file depends on the texts and their order alone. A character becomes a subword if it occurs
    `min_character_count` times, the most frequent first, until characters take half of the vocabulary and are 98% of
    the text; the others are spelled in bytes. If the text cannot give `size` ids in this way, rarer characters become
    subwords too.

    Args:
      texts: iterated over twice, first to count characters.
      path: the file to write.
      kind: "bpe" or "word_piece".
      size: number of ids, with padding, EOS, unknown and the 256 bytes.
      num_threads: None stands for all cores.
      min_character_count: 0 stands for one in SAMPLE_CHARACTERS of the text, at least one.

    Returns the number of texts. Raises ValueError for an unknown kind and for a size that the text cannot give.
    """
    if kind not in SPLITTING:
        raise ValueError(f"vocab_kind must be one of {', '.join(SPLITTING)}, got {kind!r}")
    if iter(texts) is texts:
        raise ValueError("texts are read twice; give a list, or an object whose iterator starts again")
    if size <= NUM_FIXED:
        raise ValueError(
            f"vocab_size must be at least {NUM_FIXED + 1}, got {size}: "
            "padding, EOS, unknown and 256 bytes come before learned subwords"
        )
    number, counts = _count_characters(texts)
    for coverage in _coverages(counts, size, min_character_count or counts.total() // SAMPLE_CHARACTERS):
        try:
            proto = _train(texts, kind, size, coverage, num_threads or usable_cores())
            break
        except RuntimeError as error:
            failure = error
    else:
        raise _too_large(size, number, failure) from None
    return_freed_memory()
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(proto)
    return number


def _count_characters(texts: Iterable[str]) -> tuple[int, collections.Counter[str]]:
    """Returns the number of texts and of each character. Raises ValueError for a text that is not Unicode."""
    number, counts = 0, collections.Counter[str]()
    for number, text in enumerate(texts, start=1):  # noqa: B007
        counts.update(text)
    if any("\ud800" <= character <= "\udfff" for character in counts):
        for place, text in enumerate(texts, start=1):
            must_be_unicode(place, text)
    if not counts:
        raise ValueError("there is no text to learn a vocabulary from; give training text that is not empty")
    return number, counts


def _coverages(counts: collections.Counter[str], size: int, min_count: int) -> Iterable[float]:
    """Returns the coverages to try: of the characters that occur `min_count` times, then of rarer ones as well."""
    learned = size - NUM_FIXED
    frequent = sum(count >= min_count for count in counts.values())
    return dict.fromkeys(
        _coverage(counts, size, number) for number in (min(frequent, learned // 2), learned // 2, learned)
    )


def _coverage(counts: collections.Counter[str], size: int, max_characters: int) -> float:
    """Returns the share of the text that at most `max_characters` different characters cover, and at least 98%.

    Raises ValueError if `size` has no room for the characters that cover 98%, which sentencepiece requires.
    """
    if len(counts) <= max_characters:
        return 1.0
    total, covered, needed = counts.total(), 0, 0
    coverage = _MIN_COVERAGE
    for kept, (_, count) in enumerate(counts.most_common(), start=1):
        needed += covered / total < _MIN_COVERAGE
        covered += count
        if kept == max_characters:  # sentencepiece compares in single precision
            coverage = max(coverage, ctypes.c_float(covered / total).value)
    if needed > size - NUM_FIXED:
        raise ValueError(
            f"vocab_size {size} is too small for this text: its {needed:,} most frequent characters and the "
            f"{NUM_FIXED} fixed ids must fit; ask for {needed + NUM_FIXED} or more"
        )
    return coverage


def _train(texts: Iterable[str], kind: str, size: int, coverage: float, num_threads: int) -> bytes:
    """Returns a sentencepiece model as bytes. Raises sentencepiece's RuntimeError."""
    from sentencepiece import SentencePieceTrainer

    output = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules, inverse = os.path.join(folder, "rules.tsv"), os.path.join(folder, "inverse.tsv")
        _write_rules(rules, _ESCAPE)
        _write_rules(inverse, {escaped: character for character, escaped in _ESCAPE.items()})
        SentencePieceTrainer.train(
            sentence_iterator=_cut_texts(texts),
            model_writer=output,
            model_type="bpe",
            vocab_size=size,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNKNOWN,
            bos_id=-1,
            unk_surface="\ufffd",
            normalization_rule_tsv=rules,
            denormalization_rule_tsv=inverse,
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            byte_fallback=True,
            character_coverage=coverage,
            max_sentence_length=16 * _LEARN_CHARACTERS,  # bytes, escapes included: nothing is skipped
            num_threads=num_threads,
            minloglevel=4,
            **cast(Any, SPLITTING[kind]),
        )
    model = model_proto(output.getvalue())
    model.trainer_spec.ClearField("num_threads")  # so that the file is the same on every machine
    for spec in (model.normalizer_spec, model.denormalizer_spec):
        spec.name = ESCAPE_RULES
        spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString(deterministic=True)


def _write_rules(path: str, rules: dict[str, str]) -> None:
    """Writes rules as sentencepiece reads them: code points in hexadecimal, a tab between the two sides."""
    with open(path, "w", encoding="ascii") as file:
        for sides in rules.items():
            file.write("\t".join(" ".join(f"{ord(character):X}" for character in side) for side in sides) + "\n")


def _cut_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts as sentencepiece requires them. It skips texts with U+2585, its own mark, which becomes a space."""
    for text in texts:
        for start in range(0, len(text), _LEARN_CHARACTERS):
            yield text[start : start + _LEARN_CHARACTERS].replace("\u2585", " ")


def _too_large(size: int, number: int, failure: RuntimeError) -> ValueError:
    limit = re.search(r"value <= (\d+)", str(failure))
    if limit is None:
        return ValueError(f"no vocabulary of {size} can be learned from {number:,} texts: {cpp_message(failure)}")
    return ValueError(
        f"vocab_size {size} is more than the text can give: {number:,} sentences give at most {limit[1]}; "
        "ask for that or less, or give more text"
    )
