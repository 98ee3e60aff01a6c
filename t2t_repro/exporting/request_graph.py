"""Parts of the signatures of an export: checks of arguments, options per row, and batches of rows.

Shapes: B strings in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from t2t_repro.text.glossary import MOST_CHARACTERS, MOST_FORMS, MOST_TERMS

Outputs = tuple[tf.Tensor, ...]


class Options(NamedTuple):
    """The options of `translate`, each [B]: one value for each string."""

    beam_size: tf.Tensor
    alpha: tf.Tensor
    extra_length: tf.Tensor
    n_best: tf.Tensor


def must(low: tf.Tensor, high: tf.Tensor | bool, message: str, value: tf.Tensor) -> tf.Operation:
    """Stops the graph with `message` and `value` unless both conditions hold for every element.

    Use `after` for everything that must not be computed before the check.
    """
    return tf.debugging.Assert(tf.reduce_all(tf.logical_and(low, high)), [message, value])


def term_checks(spelled_B: tf.Tensor, rows: tf.Tensor) -> list[tf.Operation]:
    """Returns the checks of the limits of terms."""
    lines = tf.strings.split(spelled_B, "\n")
    forms = tf.strings.split(lines.flat_values, "\t")
    longest = tf.reduce_max(tf.concat([[0], tf.strings.length(forms.flat_values, unit="UTF8_CHAR")], axis=0))
    most_terms, most_forms = (tf.reduce_max(tf.concat([[0], x.row_lengths()], axis=0)) for x in (lines, forms))
    number, limits = tf.size(spelled_B), f"a row has at most {MOST_TERMS} terms, one per line, got"
    return [
        must(number == rows, True, "there must be as many terms as inputs, got", number),
        must(most_terms <= MOST_TERMS, True, limits, most_terms),
        must(most_forms <= MOST_FORMS, True, f"a term has at most {MOST_FORMS} forms, got", most_forms),
        must(longest <= MOST_CHARACTERS, True, f"a form has at most {MOST_CHARACTERS} characters, got", longest),
    ]


def after(checks: Sequence[tf.Operation], value: Any) -> Any:
    """Returns the same tensor, dense or ragged, available only after all checks have passed.

    Otherwise TensorFlow computes refused inputs in parallel with the check: attention over 30,000 tokens takes
    gigabytes.
    """
    with tf.control_dependencies(checks):
        return tf.identity(value)


def one_each(rows: tf.Tensor, *options: tf.Tensor) -> Options:
    """Returns each option with one value per row: [B]. An option may be a scalar, [1] or [B]."""
    vectors = []
    for option in options:
        flat = tf.reshape(option, [-1])
        size = tf.size(flat)
        fits = (size == 1) | (size == rows)
        check = must(fits, True, "an option is one value, or one for each row, got", size)
        vectors.append(tf.broadcast_to(after([check], flat), [rows]))
    return Options(*vectors)


def kinds(*options_B: tf.Tensor) -> tf.Tensor:
    """Returns [B] int64: rows with the same number have the same options."""
    kinds_B = tf.zeros(tf.shape(options_B[0]), tf.int64)
    for option_B in options_B:
        _, numbers_B = tf.unique(option_B, out_idx=tf.int64)
        _, kinds_B = tf.unique(kinds_B * tf.size(option_B, tf.int64) + numbers_B, out_idx=tf.int64)
    return kinds_B


def in_batches(
    run: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Outputs],
    nothing: Outputs,
    lengths: tf.Tensor,
    most_rows: tf.Tensor,
    kinds: tf.Tensor | None = None,
) -> Outputs:
    """Calls `run(start, stop, order)` on batches of rows of one kind, and restores the order of the rows.

    Those of which most fit together come first, and of these the shortest.

    Args:
      nothing: the outputs for no rows.
      lengths: [B] int64.
      most_rows: [B] int64, the number of rows of this length that may run together; at least one is always run.
      kinds: [B] int64; None means that all rows are of one kind.
    """
    order = tf.argsort(lengths, stable=True)
    # what fits is decided by the last row of a batch
    order = tf.gather(order, tf.argsort(tf.gather(most_rows, order), direction="DESCENDING", stable=True))
    kinds = tf.zeros_like(order) if kinds is None else kinds
    order = tf.gather(order, tf.argsort(tf.gather(kinds, order), stable=True))
    most_rows, kinds = tf.gather(most_rows, order), tf.gather(kinds, order)
    size = tf.size(order)

    def next_batch(start: tf.Tensor, outputs: Outputs) -> tuple[tf.Tensor, Outputs]:
        rows = tf.range(1, tf.cast(size - start, tf.int64) + 1)
        fits = (rows <= most_rows[start:]) & (kinds[start:] == kinds[start])
        stop = start + tf.maximum(tf.math.count_nonzero(fits, dtype=tf.int32), 1)
        new = run(start, stop, order)
        return stop, tuple(tf.concat(both, axis=0) for both in zip(outputs, new, strict=True))

    _, outputs = tf.while_loop(
        lambda start, _: start < size,
        next_batch,
        (tf.constant(0), nothing),
        shape_invariants=(tf.TensorShape([]), tuple(tf.TensorShape([None, None]) for _ in nothing)),
        parallel_iterations=1,
    )
    back = tf.argsort(order)
    return tuple(tf.gather(output, back) for output in outputs)
