"""Vocabulary: converts any Unicode text to ids and back, in Python and in the graph, from one file.

The file is a sentencepiece model, written by `preparation.learning.vocabulary`. It contains all rules that change text,
so sentencepiece (in preparation) and tensorflow-text (in the graph and in exports) agree.

sentencepiece writes a space as U+2581, and would decode a U+2581 of the text as a space. So the file has an escape, two
rewriting rules in each direction: U+2581 becomes U+100000 and "1", and U+100000, a private-use character that is rare
in text, becomes U+100000 and "0". Every text has exactly one spelling. A character that is not a subword is spelled in
its UTF-8 bytes.

    "a b" -> ["a", "▁b"] -> [262, 305, 1]    EOS is last

The kinds "bpe" and "word_piece" encode in the same way, by the learned merges in the order of learning. A subword never
crosses a space.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence, Sized
from functools import cached_property
from typing import TYPE_CHECKING, Any

from t2t_repro.system.processor import usable_cores
from t2t_repro.text.token_ids import EOS, NUM_BYTES, NUM_FIXED, PAD, UNKNOWN

if TYPE_CHECKING:
    import tensorflow as tf

ESCAPE_RULES = "t2t_repro"  # the name of the escape in the file
SPLITTING: dict[str, dict[str, bool]] = {  # sentencepiece's options for each kind
    "bpe": {"split_by_unicode_script": True, "split_by_number": True},
    "word_piece": {"split_by_unicode_script": False, "split_by_number": False},
}


class Vocabulary:
    """The vocabulary in the file `path`: ids 0 to `size` - 1, of which PAD = 0 and EOS = 1.

    Raises FileNotFoundError if there is no such file, and ValueError if it is not a vocabulary of this project.
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
            self.kind = _kind(path, model_proto(self._bytes))
        except (RuntimeError, UnicodeDecodeError, DecodeError) as error:  # sentencepiece does not detect all damage
            raise ValueError(f"{path} is not a vocabulary, or is damaged: {cpp_message(error)}") from None
        self.size: int = self._processor.get_piece_size()

    @property
    def characters(self) -> int:
        """The number of subwords that are a single character, without the 256 bytes."""
        return sum(len(subword) == 1 for subword in self.subwords[NUM_FIXED:])

    @property
    def subwords(self) -> list[str]:
        """The subword of each id as sentencepiece spells it, a space as U+2581: all different."""
        return [self._processor.id_to_piece(number) for number in range(self.size)]

    def encode(self, texts: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        """Returns the ids of each text, EOS last. `num_threads` (None: one per core) only affects speed.

        Raises ValueError for a string that is not Unicode text (a lone surrogate).
        """
        must_be_list(texts)
        texts = list(texts)
        try:
            return self._processor.encode(texts, add_eos=True, num_threads=num_threads or _threads(texts))
        except (RuntimeError, TypeError):
            as_texts(texts)
            raise

    def decode(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """Returns the text of each sequence of ids up to its first EOS, without PAD.

        All ids below `size` are valid: bytes that form no character become U+FFFD. Raises ValueError for other ids.
        """
        cut = [self._until_end(sequence) for sequence in sequences]
        return self._processor.decode(cut, num_threads=_threads(cut)) if cut else []

    def _until_end(self, sequence: Iterable[int]) -> list[int]:
        ids: list[int] = []
        for token in map(int, sequence):
            if token == EOS:
                break
            if not 0 <= token < self.size:
                raise ValueError(f"id {token} is not in the vocabulary {self.path}, whose ids are 0 to {self.size - 1}")
            if token != PAD:
                ids.append(token)
        return ids

    @cached_property
    def tokenizer(self) -> Any:
        """tensorflow-text's tokenizer of the same file. An exported module must hold it in an attribute."""
        import tensorflow as tf
        import tensorflow_text

        with tf.init_scope():
            return tensorflow_text.SentencepieceTokenizer(self._bytes, add_eos=True)

    def encode_tensor(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Runs `encode` in the graph: [B] string to [B, (length)] int32, EOS last. Invalid UTF-8 becomes U+FFFD."""
        return self.tokenizer.tokenize(strings)

    def decode_tensor(self, ids_BL: tf.Tensor) -> tf.Tensor:
        """Runs `decode` in the graph: [B, L] integers to [B] string. Ids must be below `size`."""
        import tensorflow as tf

        ids_BL = tf.cast(ids_BL, tf.int32)
        ended_BL = tf.cumsum(tf.cast(tf.equal(ids_BL, EOS), tf.int32), axis=1) > 0
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(ids_BL, ~ended_BL & tf.not_equal(ids_BL, PAD)))


def model_proto(model: bytes) -> Any:
    """Parses a sentencepiece model into its protocol buffer."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(model)


def _kind(path: str, proto: Any) -> str:
    """Returns the kind of the vocabulary. Raises ValueError for a sentencepiece model that was not made here."""
    spec = proto.trainer_spec
    ids = (spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id, spec.byte_fallback)
    kinds = [kind for kind, on in SPLITTING.items() if all(getattr(spec, name) == value for name, value in on.items())]
    made_here = proto.normalizer_spec.name == ESCAPE_RULES and spec.model_type == spec.BPE and kinds
    of = proto.SentencePiece
    fixed = [("<pad>", of.CONTROL), ("</s>", of.CONTROL), ("<unk>", of.UNKNOWN)]
    fixed += [(f"<0x{byte:02X}>", of.BYTE) for byte in range(NUM_BYTES)]
    first = [(piece.piece, piece.type) for piece in proto.pieces[:NUM_FIXED]]
    if not made_here or ids != (PAD, EOS, UNKNOWN, -1, True) or first != fixed or len(proto.pieces) == NUM_FIXED:
        raise ValueError(f"{path} is a sentencepiece model that t2t-datagen did not create; give one that it created")
    return kinds[0]


def must_be_list(texts: object, name: str = "texts") -> None:
    """Raises ValueError if `texts`, the argument `name`, is one string: Python would iterate over its characters.

    Raises TypeError if Python cannot iterate over it.
    """
    if isinstance(texts, str | bytes):
        raise ValueError(f"{name} must be a list of strings. Received: one string, {texts!r:.60}; wrap it in a list")
    if not isinstance(texts, Iterable):
        raise TypeError(f"{name} must be a list of strings. Received: {texts!r:.60}; give a list")


def as_texts(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list. Raises ValueError unless all are Unicode texts."""
    must_be_list(texts)
    found = list(texts)
    for number, text in enumerate(found, start=1):
        must_be_unicode(number, text)
    return found


def as_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pairs of strings as a list. Raises ValueError for another item, such as a string of two characters."""
    must_be_list(pairs, "pairs")
    pairs = list(pairs)
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str | bytes) or not isinstance(pair, Sized) or len(pair) != 2:
            raise ValueError(f"pair {number} must be a source and a target. Received: {pair!r:.60}; give [(s, t), ...]")
    return pairs


def must_be_unicode(number: int, text: object) -> None:
    """Raises ValueError if text `number` is not a string, or contains a lone surrogate."""
    if not isinstance(text, str):
        raise ValueError(f"text {number} is of type {type(text).__name__}, expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text {number} is not Unicode: a lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start + 1}; decode it as UTF-8 with errors='strict'"
        ) from None


def _threads(items: Sequence[object]) -> int:
    """Returns the number of threads: 1 for a few texts, because starting threads takes longer."""
    return 1 if len(items) < 64 else usable_cores()


def cpp_message(error: Exception) -> str:
    """Returns the message of a C++ error without its source location."""
    return str(error).rpartition("]")[2].strip().removeprefix("INTERNAL: ") or "it cannot be read"
