"""Copied operations compute what the function would, with the tensors of their own call."""

from __future__ import annotations

import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import random_model

from t2t_repro.inference.ensemble import FixedEnsemble
from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.model.copies import Copies
from t2t_repro.model.transformer import DecoderLayer, EncoderLayer


def test_copies_read_the_tensors_of_their_own_call():
    weights = [tf.Variable(float(number)) for number in (2, 3, 5)]
    calls = []

    @tf.function(autograph=False)
    def stack(x, shared):
        copies, passed = Copies(), []

        def layer(weight, x, past):
            calls.append(weight)
            return tf.cond(shared > 0, lambda: x * weight + shared, lambda: x), {"past": past, "shared": shared}

        for number, weight in enumerate(weights):
            past = tf.fill([1], number)
            x, others = copies(lambda w=weight, x=x, past=past: layer(w, x, past), (x, past, weight.handle))
            passed.append(others)
        return x, passed

    x, passed = stack(tf.constant(1.0), tf.constant(0.5))
    assert x == ((1 * 2 + 0.5) * 3 + 0.5) * 5 + 0.5
    assert [(int(each["past"][0]), float(each["shared"])) for each in passed] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert len(calls) == 1


def test_copies_share_constants_and_leave_out_what_nobody_reads():
    @tf.function(autograph=False)
    def stack(x):
        copies = Copies()

        def layer(x):
            tf.sin(x)  # nobody reads it
            return tf.concat([x, tf.reverse(x, [0])], axis=0) + tf.concat([x, x], axis=0)  # 0 is its own axis

        for _ in range(3):
            x = copies(lambda x=x: layer(x), [x])
        assert tf.compat.v1.placeholder(tf.int32, []).shape.rank == 0  # unknown in an old graph
        return x

    operations = [each.type for each in stack.get_concrete_function(tf.TensorSpec([None])).graph.get_operations()]
    assert [operations.count(kind) for kind in ("Sin", "ReverseV2", "ConcatV2", "AddV2")] == [0, 3, 6, 3]
    assert operations.count("Const") == 2  # [0] and 0
    assert stack(tf.constant([1.0, 2.0])).numpy().tolist() == expected([1.0, 2.0], 3)


def expected(x, times):
    return expected([a + b for a, b in zip(x + x[::-1], x + x, strict=True)], times - 1) if times else x


def test_copies_outside_of_a_graph_are_calls():
    copies = Copies()
    assert [copies(lambda x=x: x + 1, [tf.constant(x)]) for x in (1, 2)] == [2, 3]


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("dtype", "changed"),
    [("float32", False), pytest.param("float32", True, marks=pytest.mark.slow), ("mixed_bfloat16", False)],
)
def test_a_search_traces_one_layer_of_each_kind_and_finds_the_same(monkeypatch, dtype, changed):
    model = random_model(dtype=dtype, num_encoder_layers=2, num_decoder_layers=3)
    if changed:  # a kind of its own
        model.decoder_layers[1].feed_forward.activation = keras.ops.gelu
    source = tf.constant([[5, 3, 7, 9, 1], [4, 1, 0, 0, 0]])
    traced = []
    for layer in (EncoderLayer, DecoderLayer):
        monkeypatch.setattr(layer, "call", counted(layer.call, traced, layer.__name__))

    def found():
        return tf.function(beam_search, autograph=False)(FixedEnsemble([model]), source, 2, 0.6, 4)

    copied = found()
    assert traced == ["EncoderLayer"] + ["DecoderLayer"] * (1 + changed)
    traced.clear()
    monkeypatch.setattr(Copies, "__call__", lambda self, function, *_: function())
    each = found()
    assert traced == ["EncoderLayer"] * 2 + ["DecoderLayer"] * 3
    np.testing.assert_array_equal(copied.ids, each.ids)
    np.testing.assert_array_equal(copied.scores, each.scores)


def counted(call, traced, name):
    @functools.wraps(call)
    def counting(*args, **kwargs):
        traced.append(name)
        return call(*args, **kwargs)

    return counting


def test_branches_outlive_the_trace():
    weights = [tf.Variable(float(number)) for number in (2, 3, 5)]

    @tf.function(autograph=False)
    def stack(x, limit):
        def step(number, x):
            copies, is_small = Copies(), x < limit
            for weight in weights:
                branch = functools.partial(tf.cond, is_small, functools.partial(tf.multiply, x, weight))
                x = copies(functools.partial(branch, lambda x=x: x), (x, weight.handle))
            return number + 1, x

        return tf.while_loop(lambda number, _: number < 2, step, (0, x))[1]

    traced = stack.get_concrete_function(tf.constant(1.0), tf.constant(100.0))
    gc.collect()  # before the first call
    assert traced(tf.constant(1.0), tf.constant(100.0)).numpy() == 900  # after 30
