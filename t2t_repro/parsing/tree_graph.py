"""`rebuild` of `t2t_repro.parsing.linearization` as a graph: an exported parser gives trees and needs none of our code.

A constituent that is open has a label and a text, that of its children so far: "(NP (DT the)" waits for its end as the
label "NP" and the text " (DT the)". Closing it puts the whole into the text of the one around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from t2t_repro.parsing.linearization import CLOSE, OPEN, PUNCTUATION, UNTOLD
from t2t_repro.parsing.trees import ROOT

_ALL = 1 << 30  # bytes: as many as there are
_LABEL = r"[^ \t\n\r\f\v()]+"


class _State(NamedTuple):
    """S symbols are being read; D constituents are open."""

    labels: tf.Tensor  # [D] string, the root first
    texts: tf.Tensor  # [D + 1] string: what stands before the root, then the children of each open one
    root: tf.Tensor  # [2] string, label and children, once the root is closed; [0] before
    used: tf.Tensor  # words so far
    repairs: tf.Tensor


def split_words(inputs: tf.Tensor) -> tf.RaggedTensor:
    """The words of tokenised sentences, as `linearise.split_words` gives them: [B] string to [B, (words)]."""
    inputs = tf.strings.regex_replace(tf.strings.regex_replace(inputs, r"\(", "-LRB-"), r"\)", "-RRB-")
    return tf.strings.split(inputs)


def symbols_of(words: tf.Tensor) -> tf.Tensor:
    """`linearise.symbol_of` of each word."""
    return tf.where(_begins_with_mark(words), UNTOLD, words)


def rebuild(symbols: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A well-formed tree in brackets over exactly `words` [W], whatever the one string `symbols` holds, and how many
    repairs it took: the same ones as `linearise.rebuild`. No words give an empty text.
    """
    return tf.cond(
        tf.size(words) > 0,
        lambda: _rebuild(tf.strings.split(symbols), words),
        lambda: (tf.constant(""), tf.constant(0)),
    )


def _rebuild(symbols_S: tf.Tensor, words_W: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    leaves_W = tf.strings.join([" (", _tags(words_W), " ", words_W, ")"])
    is_word_S = ~_begins_with_mark(symbols_S)
    is_open_S = tf.strings.regex_full_match(symbols_S, OPEN + _LABEL)
    is_close_S = tf.strings.regex_full_match(symbols_S, CLOSE + _LABEL)
    too_many_S = tf.cumsum(tf.cast(is_word_S, tf.int32)) > tf.size(words_W)
    known_S = is_open_S | is_close_S | (is_word_S & ~too_many_S)
    written = tf.boolean_mask(symbols_S, is_word_S & ~too_many_S)
    others = tf.math.count_nonzero(written != symbols_of(words_W)[: tf.size(written)], dtype=tf.int32)
    symbols, is_open, is_close = (tf.boolean_mask(each, known_S) for each in (symbols_S, is_open_S, is_close_S))
    last = tf.reduce_max(tf.concat([[-1], tf.reshape(tf.where(~is_close), [-1])], axis=0))
    labels = tf.strings.regex_replace(symbols, f"^[{OPEN}{CLOSE}]", "")

    def step(place: tf.Tensor, state: _State) -> tuple[tf.Tensor, _State]:
        label = labels[place]
        kind = tf.where(is_open[place], 0, tf.where(is_close[place], 1, 2))
        new = tf.switch_case(
            kind,
            [
                lambda: state._replace(
                    labels=tf.concat([state.labels, [label]], 0), texts=tf.concat([state.texts, [""]], 0)
                ),
                lambda: _close(state, label, tf.cast(place, tf.int64) > last),
                lambda: state._replace(texts=_add(state.texts, leaves_W[state.used]), used=state.used + 1),
            ],
        )
        return place + 1, _State(*new)

    nothing = tf.zeros([0], tf.string)
    repairs = tf.size(symbols_S) - tf.size(symbols) + others
    first = _State(nothing, tf.constant([""]), nothing, tf.constant(0), repairs)
    _, state = tf.while_loop(
        lambda place, _: place < tf.size(symbols),
        step,
        (tf.constant(0), first),
        shape_invariants=(tf.TensorShape([]), _INVARIANTS),
        parallel_iterations=1,
    )
    return _finish(_State(*state), leaves_W)


_INVARIANTS = _State(*[tf.TensorShape([None])] * 3, *[tf.TensorShape([])] * 2)


def _begins_with_mark(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_full_match(texts, f"[{OPEN}{CLOSE}](?s:.*)")


def _close(state: _State, label: tf.Tensor, ends: tf.Tensor) -> _State:
    """Closes the innermost constituent of that label and all within it. `ends`: no word or opening follows."""
    is_there = tf.reduce_any(state.labels == label)
    state = state._replace(repairs=state.repairs + tf.where(is_there, 0, 1))
    nothing_to_close = ~is_there & (tf.size(state.labels) <= 1)

    def close() -> _State:
        wanted = tf.cond(is_there, lambda: label, lambda: state.labels[-1])
        inner = _close_while(state, lambda now: now.labels[-1] != wanted, repairs=1)
        too_early = (tf.size(inner.labels) == 1) & (inner.texts[-1] != "") & ~ends
        return _State(
            *tf.cond(too_early, lambda: inner._replace(repairs=inner.repairs + 1), lambda: _close_innermost(inner))
        )

    return _State(*tf.cond(nothing_to_close, lambda: state, close))


def _close_while(state: _State, condition: Callable[[_State], tf.Tensor], repairs: int) -> _State:
    def body(*parts: tf.Tensor) -> _State:
        closed = _close_innermost(_State(*parts))
        return closed._replace(repairs=closed.repairs + repairs)

    found = tf.while_loop(
        lambda *parts: condition(_State(*parts)), body, state, shape_invariants=_INVARIANTS, parallel_iterations=1
    )
    return _State(*found)


def _close_innermost(state: _State) -> _State:
    """One without words is dropped, which is a repair."""
    label, children = state.labels[-1], state.texts[-1]
    outer = state._replace(labels=state.labels[:-1], texts=state.texts[:-1])

    def keep() -> _State:
        whole = tf.strings.join([" (", label, children, ")"])
        is_root = tf.size(outer.labels) == 0
        root = tf.cond(is_root, lambda: tf.stack([label, children]), lambda: outer.root)
        texts = tf.cond(is_root, lambda: outer.texts, lambda: _add(outer.texts, whole))
        return outer._replace(root=root, texts=texts)

    return _State(*tf.cond(children == "", lambda: outer._replace(repairs=outer.repairs + 1), keep))


def _finish(state: _State, leaves_W: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Closes what is open, puts in the words that are left, and gives the tree."""
    left = leaves_W[state.used :]
    missing = tf.strings.reduce_join(left)
    in_root = (tf.size(state.labels) == 0) & (tf.size(state.root) > 0)
    state = state._replace(
        texts=tf.cond(in_root, lambda: state.texts, lambda: _add(state.texts, missing)),
        root=tf.cond(in_root, lambda: _add(state.root, missing), lambda: state.root),
        repairs=state.repairs + tf.size(left) + tf.size(state.labels),
    )
    state = _close_while(state, lambda now: tf.size(now.labels) > 0, repairs=0)
    before = state.texts[0]

    def with_root() -> tuple[tf.Tensor, tf.Tensor]:
        # each word before the root is taken into it, which is a repair; no word holds an opening bracket
        words_before = tf.size(tf.strings.split(before, "(")) - 1
        return tf.strings.join(["(", state.root[0], before, state.root[1], ")"]), state.repairs + words_before

    def without() -> tuple[tf.Tensor, tf.Tensor]:
        only_word = tf.size(leaves_W) == 1
        tree = tf.cond(
            only_word, lambda: tf.strings.substr(before, 1, _ALL), lambda: tf.strings.join([f"({ROOT}", before, ")"])
        )
        return tree, state.repairs + tf.where(only_word, 0, 1)

    return tf.cond(tf.size(state.root) > 0, with_root, without)


def _add(texts: tf.Tensor, addition: tf.Tensor) -> tf.Tensor:
    """The last of the texts grown by `addition`."""
    return tf.concat([texts[:-1], [texts[-1] + addition]], axis=0)


def _tags(words_W: tf.Tensor) -> tf.Tensor:
    """The part of speech that the sign itself tells, `linearise.tag_of` of each word."""
    signs, tags = list(PUNCTUATION), [*PUNCTUATION.values(), UNTOLD]
    same = words_W[:, None] == tf.constant(signs)[None]
    found = tf.where(tf.reduce_any(same, axis=1), tf.argmax(tf.cast(same, tf.int32), axis=1), len(signs))
    return tf.gather(tf.constant(tags), found)
