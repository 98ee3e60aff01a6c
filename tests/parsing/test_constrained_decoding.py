"""t2t_repro.parsing.constrained_decoding: constrained beam search against an enumeration of all allowed outputs."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.reference_decoder import batch, compiled_log_p, hypotheses, penalty
from helpers.tiny_model import shared_model

from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.inference.search.decoding_loop import NEG_INF, Beams, Sentences
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.parsing.linearization import linearize_tree, rebuild
from t2t_repro.parsing.trees import Tree
from t2t_repro.problem import LINEARIZATIONS
from t2t_repro.text.token_ids import EOS

PIECES = ["<pad>", "</s>", "<unk>", "ǀS", "▁ǀS", "▁ǁS", "▁ǀN", "▁ǁN", "▁a", "b", "▁c"]
FIRST, OPEN, CLOSE, OPEN_N, CLOSE_N, A, B, C = range(3, 11)
OPENINGS, INSIDE = {FIRST: CLOSE, OPEN: CLOSE, OPEN_N: CLOSE_N}, {2, B}
GIVEN = [A, B, C]  # "ab c"
SOURCE = [A, B, C, EOS]
CASES = [(GIVEN, 9), ([A], 7), ([C, FIRST, B, A], 9), ([C, C], 8), ([A, FIRST], 8)]
LABELS, W0 = ("S", "N"), 2
either = pytest.mark.parametrize("linearization", LINEARIZATIONS)


def model():
    return shared_model(len(PIECES), seed=8, num_layers=1)


@functools.cache
def compiled(linearization: str):
    @tf.function
    def search(source_BM, required_BG, beam_size, extra_length):
        constraint = ParseConstraint(PIECES, linearization)
        options = {"required_BG": required_BG, "constraint": constraint}
        return beam_search(model(), source_BM, beam_size, 0.6, extra_length, **options)

    return search


def found(required: list[list[int]], beam_size: int, extra_length: int, linearization: str = "top_down"):
    """Returns the hypotheses of each sentence, best first: (ids up to EOS, score)."""
    source_BM, search = batch([SOURCE] * len(required)), compiled(linearization)
    return hypotheses(search(tf.constant(source_BM), tf.constant(batch(required)), beam_size, extra_length))


def read(ids: tuple[int, ...], in_order: bool = False) -> tuple[list[int], list[int], bool]:
    """Returns the required ids among `ids`, the closing ids of open brackets, and true if the newest id is of an
    opening."""
    words, closings, in_opening = [], [], False
    for place, id in enumerate(ids):
        opens = id in OPENINGS and (id != FIRST or (place == 0 and not in_order))
        in_opening = opens or (in_opening and id in INSIDE)
        if opens:
            closings.append(OPENINGS[id])
        elif id in (CLOSE, CLOSE_N):
            assert closings.pop() == id
        elif not in_opening:
            words.append(id)
    return words, closings, in_opening


def may_follow(ids: tuple[int, ...], required: list[int], longest: int) -> tuple[set[int], int | None]:
    """Returns the bracket tokens that may follow `ids`, and the only other token that may."""
    words, closings, in_opening = read(ids)
    left, places = required[len(words) :], longest - len(ids) - 1
    if left[:1] in ([B], [FIRST]):
        return set(), left[0]
    free = INSIDE if in_opening and places > len(left) + len(closings) else set()
    if left and (closings or not ids) and places > len(left) + len(closings) + 1:
        free = free | ({FIRST} if not ids else {OPEN, OPEN_N})
    closes = closings and not in_opening and (len(closings) > 1 or not left)
    if closes:
        free = free | {closings[-1]}
    if free and not ids:
        return free, None
    return free, left[0] if left else None if closes and places else EOS


def may_follow_in_order(ids: tuple[int, ...], required: list[int], longest: int) -> tuple[set[int], int | None]:
    """Returns the same as `may_follow`, in order."""
    words, closings, in_opening = read(ids, in_order=True)
    left, places = required[len(words) :], longest - len(ids) - 1
    if not ids or left[:1] in ([B], [FIRST]):
        return set(), left[0]
    free = INSIDE if in_opening and places > len(left) + len(closings) else set()
    if not in_opening and places > len(left) + len(closings) + 1:
        free = free | {OPEN, OPEN_N}
        if left and not closings:
            return free, None
    if closings and (len(closings) > 1 or not left or places > len(left) + 2):
        free = free | {closings[-1]}
    return free, left[0] if left else None if closings and places else EOS


def everything(required: list[int], longest: int, linearization: str) -> dict[tuple[int, ...], float]:
    """Returns every allowed output of at most `longest` tokens with its score."""
    in_order = linearization == "in_order"
    follow = may_follow_in_order if in_order else may_follow
    scores: dict[tuple[int, ...], float] = {}
    open_now: dict[tuple[int, ...], float] = {(): 0.0}
    while open_now:
        rows = sorted(open_now)
        targets = batch([[*ids, EOS] for ids in rows])
        log_p_RLV = compiled_log_p(model())(batch([SOURCE] * len(rows)), targets).numpy()
        grown = {}
        for ids, log_p_LV in zip(rows, log_p_RLV, strict=True):
            log_p_V = log_p_LV[len(ids)].astype(np.float64)
            free, other = follow(ids, required, longest)
            is_word = {0, 1, A, C} | (INSIDE - free) | ({FIRST} if ids or in_order else set())
            word = sum(math.exp(log_p_V[id]) for id in is_word) if other else 0.0
            for id in free:
                grown[(*ids, id)] = open_now[ids] + log_p_V[id]
            if other is not None:
                log_p = open_now[ids] + math.log(word)
                if other == EOS:
                    scores[(*ids, EOS)] = log_p / penalty(len(ids) + 1, 0.6)
                else:
                    grown[(*ids, other)] = log_p
        open_now = grown
    return scores


@pytest.mark.parametrize(
    ("required", "longest", "linearization"),
    [
        # the first word of an output in order has no space before it
        pytest.param([B, *required[1:]] if order == "in_order" else required, longest, order, marks=marks)
        for order in LINEARIZATIONS
        for marks, cases in (((), CASES[:3]), (pytest.mark.slow, CASES[3:]))
        for required, longest in cases
    ],
)
def test_wide_beam_finds_every_allowed_output(required, longest, linearization):
    expected = everything(required, longest, linearization)
    best = dict(found([required], 500, longest - len(SOURCE), linearization)[0])
    real = {ids: score for ids, score in best.items() if score > -1e20}
    assert real.keys() == expected.keys() and len(expected) > 5
    for ids, score in real.items():
        assert score == pytest.approx(expected[ids], rel=1e-4, abs=1e-5)


@either
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("extra_length", [0, pytest.param(1, marks=pytest.mark.slow), 30])
def test_words_are_complete_at_any_length_limit(beam_size, extra_length, linearization):
    """Batches sentences with other words and other numbers of words."""
    many = [GIVEN, [A], [C] * 9, [A, B, B, B], [A, FIRST, FIRST, B, C, FIRST]]
    in_order = linearization == "in_order"
    many = [[B, *required[1:]] for required in many] if in_order else many
    for required, best in zip(many, found(many, beam_size, extra_length, linearization), strict=True):
        ids, score = best[0]
        assert score > -1e20 and len(ids) <= max(len(SOURCE) + extra_length, len(required) + 1)
        written, closings, _ = read(ids[:-1], in_order)
        assert (written, closings, ids[-1]) == (required, [], EOS)


@pytest.mark.parametrize("beam_size", [1, 4, 50])
def test_output_is_one_tree_if_the_length_permits(beam_size):
    """Holds however unlikely the brackets are."""
    for best in found([GIVEN, [A], [C] * 9, [A, FIRST, C]], beam_size, 30):
        for ids, score in best:
            assert score < -1e20 or (ids[0] == FIRST and ids[-2] == CLOSE and read(ids[:-2])[1] == [CLOSE])


@either
def test_words_are_the_same_in_a_graph(linearization):
    texts = ["We  agree .", " f ( x )\t", "", " ", "a\x0bb\u00a0c", "\0", "a \0 b\0", "ǀo ǁ Nǀuu ǁ\n"]
    constraint = ParseConstraint(PIECES, linearization)
    sources, words = constraint.required_words(texts)
    first = " " * (linearization == "top_down")
    assert sources[1] == "f -LRB- x -RRB-" and words[-1] == f"{first}XX XX Nǀuu XX"
    in_graph = constraint.required_words_tensor(tf.constant(texts))
    assert [[text.decode() for text in side.numpy()] for side in in_graph] == [sources, words]


# The automaton alone, without a model: every label and every word is one subword.


def symbols_of(words: int) -> list[str]:
    """Returns a vocabulary of both labels and `words` words, those that may start a text with and without a space."""
    names = [mark + label for mark in "ǀǁ" for label in LABELS] + [f"w{place}" for place in range(words)]
    return ["<pad>", "</s>", "w0", *(f"ǀ{label}" for label in LABELS), *(f"▁{name}" for name in names)]


def ids_of(symbols: list[str], vocabulary: list[str]) -> list[int]:
    return [vocabulary.index(f"▁{symbol}" if place else symbol) for place, symbol in enumerate(symbols)]


class Automaton:
    """Outputs of equal length over the same number of words, and the ids that may follow each of them."""

    def __init__(self, words: int, vocabulary: list[str], longest: int, linearization: str, outputs: int = 1):
        self._constraint = ParseConstraint(vocabulary, linearization)
        first = "▁" * (linearization == "top_down")
        required = [vocabulary.index(f"{'▁' if place else first}w{place}") for place in range(words)]
        self._longest, self._required, self._size = longest, batch([required], 1), len(vocabulary)
        ids, state = np.zeros([outputs, 1, 0], np.int32), np.zeros([outputs, 1], np.int32)
        self._beams = Beams(None, None, ids, None, state, state.astype(bool), None, None, ())

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        return [tuple(ids) for ids in np.array(self._beams.ids)[:, 0].tolist()]

    def following(self) -> list[set[int]]:
        """Returns the ids that may follow each output, without the one that makes a longer label, "Sw0"."""
        outputs, _, step = self._beams.ids.shape
        longest_B, required_BG = np.full([outputs], self._longest), np.repeat(self._required, outputs, axis=0)
        sentences = Sentences(None, None, longest_B, None, tf.constant(required_BG), None, ())
        logits_BWV = tf.zeros([outputs, 1, self._size])
        arguments = tf.constant(step), self._beams, logits_BWV, sentences, tf.constant(self._size)
        log_p_BC, ids_BC = (np.array(each)[:, 0] for each in self._constraint.candidates(*arguments))
        longer = {W0} if step else set()
        return [set(ids[log_p > NEG_INF / 2].tolist()) - longer for ids, log_p in zip(ids_BC, log_p_BC, strict=True)]

    def extend(self, rows: list[int], tokens: list[int]) -> None:
        """Replaces the outputs by those of `rows`, each with one token more."""
        ids, written, in_opening = (tf.gather(each, rows) for each in self._beams[2:6] if each is not None)
        newest = tf.constant(tokens, tf.int32)[:, None]
        ids = tf.concat([ids, newest[:, :, None]], axis=2)
        beams = self._beams._replace(tokens=newest, ids=ids, written=written, in_opening=in_opening)
        self._beams = self._constraint.advanced(beams, tf.zeros([len(rows), 1], tf.int32))


def trees(first: int, words: int, constituents: int) -> list[tuple[Tree, int]]:
    """Returns every tree over `words` words from `first` on with at most `constituents` brackets, and that number."""
    found = [(Tree("XX", (), f"w{first}"), 0)] if words == 1 else []
    if constituents:
        for children, number in forests(first, words, constituents - 1):
            found += [(Tree(label, tuple(children)), number + 1) for label in LABELS]
    return found


def forests(first: int, words: int, constituents: int) -> list[tuple[list[Tree], int]]:
    """Returns every list of one or more such trees."""
    found = [([tree], number) for tree, number in trees(first, words, constituents)]
    for split in range(1, words):
        for tree, number in trees(first, split, constituents):
            others = forests(first + split, words - split, constituents - number)
            found += [([tree, *rest], number + more) for rest, more in others]
    return found


@either
@pytest.mark.parametrize(("words", "constituents"), [(1, 3), (2, 3), (3, 2), (4, 2)])
def test_automaton_accepts_every_linearization_and_nothing_else(words, constituents, linearization):
    vocabulary, longest = symbols_of(words), words + 2 * constituents + 1
    expected = {
        tuple(ids_of(linearize_tree(tree, linearization).split(" "), vocabulary))
        for tree, number in trees(0, words, constituents)
        if number or linearization == "in_order"  # top down, a root is required
    }
    assert len(expected) > 10
    accepted: set[tuple[int, ...]] = set()
    automaton = Automaton(words, vocabulary, longest, linearization)
    for _ in range(longest):
        follow = list(zip(automaton.outputs, automaton.following(), strict=True))
        accepted |= {ids for ids, free in follow if EOS in free}
        grown = [(row, id) for row, (_, free) in enumerate(follow) for id in sorted(free - {EOS})]
        if not grown:
            break
        automaton.extend([row for row, _ in grown], [id for _, id in grown])
    assert not grown and accepted == expected


@either
@pytest.mark.parametrize(("words", "extra"), [(1, 20), (2, 3), (5, 9), (9, 30)])
def test_random_choices_always_yield_a_tree(words, extra, linearization):
    """Also without room for more than one constituent."""
    rng, vocabulary, texts = np.random.default_rng(words), symbols_of(words), set()
    automaton = Automaton(words, vocabulary, words + extra, linearization, outputs=100)
    for _ in range(words + extra):
        chosen = [int(rng.choice(sorted(free))) for free in automaton.following()]
        texts |= {ids for ids, id in zip(automaton.outputs, chosen, strict=True) if id == EOS}
        rows = [row for row, id in enumerate(chosen) if id != EOS]
        if not rows:
            break
        automaton.extend(rows, [chosen[row] for row in rows])
    assert not rows and len(texts) > 1
    names = [f"w{place}" for place in range(words)]
    for ids in texts:
        symbols = [vocabulary[id].removeprefix("▁") for id in ids]
        tree, repairs = rebuild(symbols, names, None, linearization)
        assert tree.words() == names and not repairs and len(symbols) < words + extra
