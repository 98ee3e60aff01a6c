"""Words of subwords, and the links between them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, train_pairs

from t2t_repro.alignment.head import READING, WRITING, AlignmentHead
from t2t_repro.alignment.words import Words, pharaoh, probabilities
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.text.token_ids import EOS, PAD
from t2t_repro.text.translations import AlignedText
from t2t_repro.text.words import split_words

CHARACTERS = list("ab3 \t\n\r\v\f,é日\u00a0\u2003\u2581\U00100000▁#\x00\x1c")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    return Vocabulary(path)


def spelled(vocabulary: Vocabulary, text: str) -> tuple[np.ndarray, list[int]]:
    (ids,) = vocabulary.encode([text])
    return np.array([ids], np.int32), Words(vocabulary).of(tf.constant([ids])).numpy()[0].tolist()


def test_words_of_any_text_are_those_between_spaces(vocabulary):
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(CHARACTERS, rng.integers(0, 12))) for _ in range(400)]
    texts += [source for source, _ in train_pairs()][:20]
    for text in texts:
        ids, words = spelled(vocabulary, text)
        expected = split_words(text)
        assert sorted({word for word in words if word >= 0}) == list(range(len(expected))), repr(text)
        for number, word in enumerate(expected):
            tokens = [id for id, its_word in zip(ids[0].tolist(), words, strict=True) if its_word == number]
            assert vocabulary.decode([tokens])[0].strip(" ") == word
        assert words[-1] == -1 and ids[0, -1] == EOS


def test_no_break_space_is_inside_a_word(vocabulary):
    assert split_words("10\u00a0000 \tcats\n") == ["10\u00a0000", "cats"]
    _, words = spelled(vocabulary, "10\u00a0000 cats")
    assert words[-2] == 1


def links_of(vocabulary, source, target, attended, position):
    source_ids, _ = spelled(vocabulary, source)
    target_ids, _ = spelled(vocabulary, target)
    row = tf.constant([[attended]], tf.int32)
    found = Words(vocabulary).links(
        tf.constant(source_ids), tf.constant(target_ids[:, None]), row, AlignmentHead(1, 1, position)
    )
    return pharaoh(found).numpy()[0, 0].decode()


def test_links_follow_the_position_of_the_head(vocabulary):
    """The first token is of the first word, the last one before EOS of the second."""
    ids, words = spelled(vocabulary, "7 8")
    assert words[0] == 0 and words[-2] == 1
    last, eos = ids.shape[1] - 2, ids.shape[1] - 1
    rows = [last, *[0] * (last), eos]
    assert links_of(vocabulary, "7 8", "7 8", rows, WRITING) == "1-0 0-1"
    rows = [eos, last, *[0] * last]
    assert links_of(vocabulary, "7 8", "7 8", rows, READING) == "1-0 0-1"


def test_the_end_of_the_source_is_no_word_and_links_are_not_repeated(vocabulary):
    ids, words = spelled(vocabulary, "abcdef 7")
    assert words.count(0) > 2
    end = len(words) - 1
    assert links_of(vocabulary, "abcdef 7", "abcdef 7", [0] * len(words), WRITING) == "0-0 0-1"
    assert links_of(vocabulary, "abcdef 7", "abcdef 7", [end] * len(words), WRITING) == ""


def test_probabilities_of_words_multiply_those_of_their_tokens():
    words_L, log_p_L = [0, 0, -1, 1], np.log([0.5, 0.5, 0.9, 0.2]).tolist()
    found = AlignedText.of("ab c", -1.0, "x\ty", [(1, 0)], words_L, log_p_L)
    assert found == ("ab c", -1.0) and found.text == "ab c" and found.score == -1.0
    assert found.probabilities == pytest.approx([0.25, 0.2])
    assert found.confidence == pytest.approx((0.5 * 0.5 * 0.9 * 0.2) ** (1 / 4))
    assert (found.source_words, found.words, found.pharaoh) == (["x", "y"], ["ab", "c"], "1-0")
    assert found.to_json()["alignment"] == [[1, 0]]


def test_probabilities_in_a_graph_are_those_of_the_text():
    words_BNL = tf.constant([[[0, 0, -1, 1], [0, 1, 2, -1]], [[-1, -1, -1, -1], [-1, 0, -1, -1]]])
    log_p_BNL = tf.math.log([[[0.5, 0.5, 0.9, 0.2], [1.0, 0.00001, 0.3, 0.9]], [[0.1] * 4, [0.1, 0.8, 0.1, 0.1]]])
    found = probabilities(words_BNL, log_p_BNL).numpy().tolist()
    assert found == [[b"0.2500 0.2000", b"1.0000 0.0000 0.3000"], [b"", b"0.8000"]]


def test_padding_has_no_word(vocabulary):
    ids = tf.constant([[5, EOS, PAD, PAD]])
    assert Words(vocabulary).of(ids).numpy().tolist() == [[0, -1, -1, -1]]


@pytest.mark.parametrize("values", [(0, 1, READING), (1, -1, WRITING), (1, 1, "before")])
def test_impossible_heads(values):
    with pytest.raises(ValueError, match="^expected a layer from 1, a head from 0 and the position"):
        AlignmentHead(*values)
