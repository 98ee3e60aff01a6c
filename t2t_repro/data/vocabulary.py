"""Vocabulary: text to ids and back, for every Unicode string, in Python and in the graph, from one file.

The file is a sentencepiece model. What it does to text is written in it and nowhere else, so sentencepiece (which
prepares) and tensorflow-text (which decodes and is exported) agree by reading the same file.

sentencepiece writes a space as U+2581, and would read a U+2581 of the text back as a space. So the file carries two
rules for each direction, an escape: U+2581 is spelled U+100000 and "1", and U+100000 itself, a private-use character
that text hardly ever has, is spelled U+100000 and "0". No two texts are spelled alike. A character that is no piece of
its own is spelled in the bytes of its UTF-8.

    "a b" -> ["a", "▁b"] -> [262, 305, 1]    the last is END

Both kinds are learnt alike, by joining the most frequent pair of neighbouring pieces until there are as many as were
asked for, and encode alike, by the same joins in the same order; a piece never reaches over a space. Pieces of the kind
"bpe" hold letters of one script, or digits and signs, never both. Those of the kind "word_piece" may hold
anything within a word, a word being what stands between two spaces, as in Wu et al. (2016), section 4.1.

From Wu et al. these word-pieces have: an exact number; pieces within words alone; a mark where a word begins, so that
the words are rebuilt without ambiguity; and the aim in learning, the fewest pieces for the text, of which joining the
most frequent pair is the greedy approximation. They differ in encoding, which repeats the joins and does not look for
the longest piece that fits, in the mark, which is the space itself, so that every text comes back to the character, and
in that a rare character is spelled in bytes and no word is unknown. sentencepiece's other kind (unigram) was not taken:
the ids that its versions in Python and in tensorflow-text give differ on some lines.
"""

from __future__ import annotations

import collections
import ctypes
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from t2t_repro.io import atomic_write
from t2t_repro.processor import usable_cores

if TYPE_CHECKING:
    import tensorflow as tf

PAD = 0
END = 1
_UNKNOWN = 2  # sentencepiece wants such an id; with 256 byte pieces no text is ever given it
BYTES = 256
_FIXED = 3 + BYTES  # pieces that are there before any text is read: the three above and the bytes

_RULES = "t2t_repro"  # the name of the escape below, in the file
_ESCAPE = {"\u2581": "\U001000001", "\U00100000": "\U001000000"}
_KINDS: dict[str, dict[str, bool]] = {  # what sentencepiece is told of each kind
    "bpe": {"split_by_unicode_script": True, "split_by_number": True},
    "word_piece": {"split_by_unicode_script": False, "split_by_number": False},
}
_LEARN_CHARACTERS = 4_096  # longest stretch that the learner is given at once; longer texts are cut
_LEAST_COVERAGE = 0.98  # sentencepiece refuses less
SAMPLE_CHARACTERS = 2_000_000  # a character that is rarer than one in this many is spelled in bytes: see docs/data.md


def learn(
    texts: Iterable[str],
    path: str,
    kind: str,
    size: int,
    num_threads: int | None = None,
    min_character_count: int = 0,
) -> int:
    """Learns a vocabulary of exactly `size` ids from `texts` and writes it to `path`, whole or not at all.

    `texts` is gone through twice, first for its characters. A character becomes a subword of its own if it occurs
    `min_character_count` times (0: once for each SAMPLE_CHARACTERS of the text, at least once), the frequent ones
    first, as long as characters take no more than half of the vocabulary. The rest are spelled in bytes. If the text
    cannot give `size` ids in this way, rarer characters become subwords too. The file depends on the texts and their
    order alone, not on `num_threads` (default: all cores).

    Returns how many texts there were. Raises ValueError for an unknown kind and for a size that the text cannot give.
    """
    if kind not in _KINDS:
        raise ValueError(f"vocab_kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    if iter(texts) is texts:
        raise ValueError("learn goes through its texts twice: give a list, or an object whose iterator starts anew")
    if size <= _FIXED:
        raise ValueError(
            f"vocab_size must be at least {_FIXED + 1}, got {size}: "
            "padding, end, unknown and 256 bytes come before anything learnt"
        )
    number, counts = _characters(texts)
    for coverage in _coverages(counts, size, min_character_count or counts.total() // SAMPLE_CHARACTERS):
        try:
            proto = _train(texts, kind, size, coverage, num_threads or usable_cores())
            break
        except RuntimeError as error:
            failure = error
    else:
        raise _cannot_learn(size, number, failure) from None
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(proto)
    return number


class Vocabulary:
    """The vocabulary in the file `path`: ids 0 to `size` - 1, of which PAD = 0 and END = 1.

    Raises FileNotFoundError where there is no such file, ValueError where it is no vocabulary of this project.
    """

    def __init__(self, path: str):
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor

        self.path = path
        if not os.path.exists(path):
            raise FileNotFoundError(f"no vocabulary {path!r}; t2t-datagen makes one")
        if not os.path.isfile(path):
            raise ValueError(f"{path!r} is not a file; give a vocabulary, the vocabulary.model of prepared data")
        with open(path, "rb") as file:
            self._bytes = file.read()
        self.sha256: str = hashlib.sha256(self._bytes).hexdigest()
        try:
            self._processor = SentencePieceProcessor(model_proto=self._bytes)
            self.kind = _kind(path, _model_proto(self._bytes))
        except (RuntimeError, UnicodeDecodeError, DecodeError) as error:  # sentencepiece reads over some damage
            raise ValueError(f"{path} is no vocabulary, or a damaged one: {_last_part(error)}") from None
        self.size: int = self._processor.get_piece_size()

    @property
    def characters(self) -> int:
        """The number of subwords that are a single character, without the 256 bytes."""
        return sum(len(piece) == 1 for piece in self.pieces[_FIXED:])

    @property
    def pieces(self) -> list[str]:
        """How sentencepiece spells each id, a space as U+2581: no two alike."""
        return [self._processor.id_to_piece(number) for number in range(self.size)]

    def encode(self, texts: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        """The ids of each text, END last. Many texts at once are encoded by `num_threads` (None: on all cores),
        with the same outcome.

        Raises ValueError for a string that is not Unicode text (a lone surrogate).
        """
        must_be_list(texts)
        texts = list(texts)
        try:
            return self._processor.encode(texts, add_eos=True, num_threads=num_threads or _threads(texts))
        except (RuntimeError, TypeError):
            for number, text in enumerate(texts, start=1):
                must_be_unicode(number, text)
            raise

    def decode(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """The text of each sequence of ids up to its first END, PAD left out.

        Any ids below `size` are good: bytes that make no character become U+FFFD. Raises ValueError for other ids.
        """
        cut = [self._until_end(sequence) for sequence in sequences]
        return self._processor.decode(cut, num_threads=_threads(cut)) if cut else []

    def _until_end(self, sequence: Iterable[int]) -> list[int]:
        ids: list[int] = []
        for token in map(int, sequence):
            if token == END:
                break
            if not 0 <= token < self.size:
                raise ValueError(f"id {token} is not in the vocabulary {self.path}, whose ids are 0 to {self.size - 1}")
            if token != PAD:
                ids.append(token)
        return ids

    @cached_property
    def tokenizer(self) -> Any:
        """tensorflow-text's tokenizer from the same file. An exported module must hold it in an attribute."""
        import tensorflow as tf
        import tensorflow_text

        with tf.init_scope():
            return tensorflow_text.SentencepieceTokenizer(self._bytes, add_eos=True)

    def encode_tensor(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """`encode` in the graph: [B] string to [B, (length)] int32, END last. Bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.tokenize(strings)

    def decode_tensor(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """`decode` in the graph: [B, L] or [B, (length)] integers to [B] string. Ids must be below `size`."""
        import tensorflow as tf

        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(default_value=END)
        ids_BL = tf.cast(ids, tf.int32)
        ended_BL = tf.cumsum(tf.cast(tf.equal(ids_BL, END), tf.int32), axis=1) > 0
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(ids_BL, ~ended_BL & tf.not_equal(ids_BL, PAD)))


def _characters(texts: Iterable[str]) -> tuple[int, collections.Counter[str]]:
    """The number of texts and of each character. Raises ValueError for a text that is not Unicode."""
    number, counts = 0, collections.Counter[str]()
    for number, text in enumerate(texts, start=1):  # noqa: B007
        counts.update(text)
    if any("\ud800" <= character <= "\udfff" for character in counts):
        for place, text in enumerate(texts, start=1):
            must_be_unicode(place, text)
    if not counts:
        raise ValueError("there is no text to learn a vocabulary from; give training text that is not empty")
    return number, counts


def _coverages(counts: collections.Counter[str], size: int, least: int) -> Iterable[float]:
    """The coverages to try, each once: of the characters that occur `least` times, then of rarer ones as well."""
    learned = size - _FIXED
    frequent = sum(count >= least for count in counts.values())
    return dict.fromkeys(_coverage(counts, size, most) for most in (min(frequent, learned // 2), learned // 2, learned))


def _coverage(counts: collections.Counter[str], size: int, most: int) -> float:
    """The share of the text to cover by characters of their own, so that they are at most `most`, if that can be.

    Raises ValueError where `size` has no room for the characters that sentencepiece insists on, 98% of the text.
    """
    if len(counts) <= most:
        return 1.0
    total, covered, needed = counts.total(), 0, 0
    coverage = _LEAST_COVERAGE
    for kept, (_, count) in enumerate(counts.most_common(), start=1):
        needed += covered / total < _LEAST_COVERAGE
        covered += count
        if kept == most:  # sentencepiece compares in single precision
            coverage = max(coverage, ctypes.c_float(covered / total).value)
    if needed > size - _FIXED:
        raise ValueError(
            f"vocab_size {size} is too small for this text: its {needed:,} most frequent characters and the "
            f"{_FIXED} fixed ids must fit; ask for {needed + _FIXED} or more"
        )
    return coverage


def _train(texts: Iterable[str], kind: str, size: int, coverage: float, num_threads: int) -> bytes:
    """A sentencepiece model as bytes. Raises sentencepiece's RuntimeError."""
    from sentencepiece import SentencePieceTrainer

    output = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules, inverse = os.path.join(folder, "rules.tsv"), os.path.join(folder, "inverse.tsv")
        _write_rules(rules, _ESCAPE)
        _write_rules(inverse, {escaped: character for character, escaped in _ESCAPE.items()})
        SentencePieceTrainer.train(
            sentence_iterator=_stretches(texts),
            model_writer=output,
            model_type="bpe",
            vocab_size=size,
            pad_id=PAD,
            eos_id=END,
            unk_id=_UNKNOWN,
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
            **cast(Any, _KINDS[kind]),
        )
    model = _model_proto(output.getvalue())
    model.trainer_spec.ClearField("num_threads")  # so that the file is the same on every machine
    for spec in (model.normalizer_spec, model.denormalizer_spec):
        spec.name = _RULES
        spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString(deterministic=True)


def _model_proto(model: bytes) -> Any:
    """The protocol buffer that a sentencepiece model is."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(model)


def _write_rules(path: str, rules: dict[str, str]) -> None:
    """Rules as sentencepiece reads them: code points in hexadecimal, a tab between the two sides."""
    with open(path, "w", encoding="ascii") as file:
        for sides in rules.items():
            file.write("\t".join(" ".join(f"{ord(character):X}" for character in side) for side in sides) + "\n")


def _stretches(texts: Iterable[str]) -> Iterator[str]:
    """Texts as the learner wants them. It skips every text with a U+2585, its own mark, so that one becomes a space."""
    for text in texts:
        for start in range(0, len(text), _LEARN_CHARACTERS):
            yield text[start : start + _LEARN_CHARACTERS].replace("\u2585", " ")


def _cannot_learn(size: int, number: int, failure: RuntimeError) -> ValueError:
    most = re.search(r"value <= (\d+)", str(failure))
    if most is None:
        return ValueError(f"no vocabulary of {size} can be learnt from {number:,} texts: {_last_part(failure)}")
    return ValueError(
        f"vocab_size {size} is more than the text can give: {number:,} sentences give at most {most[1]}; "
        "ask for that or less, or give more text"
    )


def _kind(path: str, proto: Any) -> str:
    """The kind of the vocabulary. Raises ValueError for a file that `learn` did not write."""
    spec = proto.trainer_spec
    ids = (spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id, spec.byte_fallback)
    kinds = [kind for kind, split in _KINDS.items() if all(getattr(spec, name) == on for name, on in split.items())]
    made_here = proto.normalizer_spec.name == _RULES and spec.model_type == spec.BPE and kinds
    of = proto.SentencePiece
    fixed = [("<pad>", of.CONTROL), ("</s>", of.CONTROL), ("<unk>", of.UNKNOWN)]
    fixed += [(f"<0x{byte:02X}>", of.BYTE) for byte in range(256)]
    first = [(piece.piece, piece.type) for piece in proto.pieces[:_FIXED]]
    if not made_here or ids != (PAD, END, _UNKNOWN, -1, True) or first != fixed or len(proto.pieces) == _FIXED:
        raise ValueError(f"{path} is a sentencepiece model of other making; give a vocabulary that t2t-datagen made")
    return kinds[0]


def must_be_list(texts: object, name: str = "texts") -> None:
    """Raises ValueError if `texts`, the argument of that name, is one string: Python would go through its letters."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"{name} must be a list of strings. Received: one string, {texts!r:.60}; give a list of it")


def must_be_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError unless `pairs` is a list of pairs of strings; a string of two letters is no pair."""
    must_be_list(pairs, "pairs")
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str | bytes) or len(pair) != 2:
            raise ValueError(f"pair {number} must be a source and a target. Received: {pair!r:.60}; give [(s, t), ...]")


def must_be_unicode(number: int, text: object) -> None:
    """Raises ValueError where `text`, the one of that number, is no string, or has a lone surrogate."""
    if not isinstance(text, str):
        raise ValueError(f"text {number} is of type {type(text).__name__}, expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text {number} is not Unicode: a lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start + 1}; read it as UTF-8, strictly"
        ) from None


def _threads(items: Sequence[object]) -> int:
    """A few texts are encoded sooner than threads are started."""
    return 1 if len(items) < 64 else usable_cores()


def _last_part(error: Exception) -> str:
    """What a C++ error says, without its place in the source."""
    return str(error).rpartition("]")[2].strip().removeprefix("INTERNAL: ") or "it cannot be read"
