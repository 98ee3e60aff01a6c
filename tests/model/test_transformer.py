"""The complete model: exact sizes, visibility, the shared matrix, and its use as a Keras model."""

from __future__ import annotations

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import SMALL, random_ids, random_model, seed, shared_model

from t2t_repro.config import HParams
from t2t_repro.model.layers import sinusoids
from t2t_repro.model.transformer import Transformer

pytestmark = pytest.mark.numeric

VOCAB = 11
RNG = np.random.default_rng(1)
SOURCE, TARGET = random_ids(RNG, VOCAB, 3, 5), random_ids(RNG, VOCAB, 3, 6)


def logits(model: Transformer, source: np.ndarray, target: np.ndarray, **options: object) -> np.ndarray:
    return model({"inputs": tf.constant(source), "targets": tf.constant(target)}, **options).numpy()


def padded(ids: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return np.pad(ids, [(0, rows), (0, columns)])


# Sizes.


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_heads": 1, "d_k": 16, "d_v": 16},
        {"d_k": 3, "d_v": 9},
        {"num_layers": 1, "d_ff": 7},
        {"positions": "learned", "max_positions": 13},
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
        {"num_decoder_layers": 1},
    ],
)
def test_number_of_parameters(changes):
    model = Transformer(VOCAB, replace(SMALL, **changes))
    assert sum(int(np.prod(weight.shape)) for weight in model.trainable_weights) == model.count_params()
    assert model.count_params() == model.hparams.num_parameters(VOCAB)


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_initial_matrices_of_layers_are_glorot_uniform_times_the_gain(gain):
    keras.utils.set_random_seed(1)
    model = Transformer(VOCAB, replace(SMALL, d_model=64, d_ff=128, d_k=24, initializer_gain=gain))
    matrices = [weight.numpy() for weight in model.weights if weight.name.startswith("w_")]
    assert len(matrices) == 2 * (4 + 2) + 2 * (4 + 4 + 2)
    for number, matrix in enumerate(matrices):
        limit = gain * np.sqrt(6 / sum(matrix.shape))
        assert 0.98 * limit < np.abs(matrix).max() <= limit, number
        assert np.std(matrix) == pytest.approx(limit / np.sqrt(3), rel=0.05), number
    assert np.std(model.embedding) == pytest.approx(1 / 8, rel=0.1)


def test_initial_learned_positions_are_normal_with_a_small_deviation():
    keras.utils.set_random_seed(1)
    model = Transformer(VOCAB, replace(SMALL, d_model=64, positions="learned", max_positions=100))
    for table in (model.source_positions, model.target_positions):
        assert np.std(table) == pytest.approx(0.02, rel=0.1)


def test_base_has_63_million_parameters():
    """PAPER.md, Table 3, has the exact count at V = 37,000. The default model is the paper's base."""
    model = Transformer(vocab_size=37_000)
    assert model.count_params() == 63_045_632
    assert model.hparams == HParams(name="base", description="")


# Visibility.


@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
@pytest.mark.parametrize("changed", range(6))
def test_target_token_changes_only_later_positions(changed, positions):
    model = shared_model(VOCAB, positions=positions)
    other = TARGET.copy()
    other[:, changed] = other[:, changed] % (VOCAB - 1) + 1
    before, after = logits(model, SOURCE, TARGET), logits(model, SOURCE, other)
    np.testing.assert_array_equal(before[:, : changed + 1], after[:, : changed + 1])
    for later in range(changed + 1, TARGET.shape[1]):
        assert np.abs(before[:, later] - after[:, later]).max() > 1e-3


def test_first_prediction_depends_only_on_the_source():
    """The decoder's input is the target shifted right by one (section 3.1)."""
    model = shared_model(VOCAB)
    first = logits(model, SOURCE, TARGET)[:, 0]
    np.testing.assert_allclose(logits(model, SOURCE, random_ids(RNG, VOCAB, 3, 2))[:, 0], first, rtol=1e-4, atol=1e-5)
    assert np.abs(logits(model, SOURCE[::-1], TARGET)[:, 0] - first).max() > 1e-3


@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_padding_changes_nothing(positions):
    """Pads either side, and adds rows of padding only. Sums over other shapes differ by rounding."""
    model = shared_model(VOCAB, positions=positions)
    plain = logits(model, SOURCE, TARGET)
    for rows, columns, more in ((0, 4, 0), (0, 0, 3), (2, 0, 0), (2, 1, 5)):
        wide = logits(model, padded(SOURCE, rows, columns), padded(TARGET, rows, more))
        assert np.isfinite(wide).all()
        np.testing.assert_allclose(wide[:3, :6], plain, rtol=1e-4, atol=1e-5)


def test_sentences_are_independent():
    model = shared_model(VOCAB)
    plain = logits(model, SOURCE, TARGET)
    np.testing.assert_allclose(logits(model, SOURCE[1:2], TARGET[1:2]), plain[1:2], rtol=1e-4, atol=1e-5)


# Section 3, part by part.


def test_layers_are_post_norm_without_a_final_norm():
    """Each sub-layer ends in LayerNorm(x + Sublayer(x)): with gain 1 and bias 0 its outputs have mean 0 and
    variance 1."""
    model = Transformer(VOCAB, SMALL)
    memory = model.encode(tf.constant(SOURCE))
    states = model.decode(tf.constant(TARGET), memory, tf.constant(SOURCE))
    for output in (memory, states):
        np.testing.assert_allclose(np.mean(output, axis=-1), 0, atol=1e-5)
        np.testing.assert_allclose(np.var(output, axis=-1), 1, atol=1e-3)
    assert sum(weight.name == "gain" for weight in model.weights) == SMALL.num_layers * (2 + 3)


def test_embeddings_are_scaled_and_positions_added():
    """If every sub-layer returns 0, the encoder normalizes E[source] sqrt(d_model) + PE, and does nothing else."""
    model = random_model(VOCAB)
    for weight in model.weights:
        if weight.name in ("w_o", "w_2", "b_2"):
            weight.assign(np.zeros(weight.shape))
        elif weight.name in ("gain", "bias"):
            weight.assign(np.full(weight.shape, weight.name == "gain", np.float32))
    x = model.embedding.numpy()[SOURCE] * np.sqrt(SMALL.d_model) + sinusoids(np.arange(5), SMALL.d_model).numpy()
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(model.encode(tf.constant(SOURCE)), expected, atol=1e-4)


def test_one_matrix_serves_source_target_and_softmax():
    model = random_model(VOCAB)
    assert [weight.shape for weight in model.weights if VOCAB in weight.shape] == [(VOCAB, SMALL.d_model)]
    source, target = np.array([[2, 3, 1]], np.int32), np.array([[4, 5, 1]], np.int32)
    before = logits(model, source, target)

    def after(row: int) -> np.ndarray:
        """Returns true for the logits [L, V] that change with a row of the matrix."""
        table = model.embedding.numpy()
        model.embedding.assign(table + 0.5 * (np.arange(VOCAB) == row)[:, None])
        changed = np.abs(logits(model, source, target) - before)[0] > 1e-5
        model.embedding.assign(table)
        return changed

    assert after(2).all()  # in the source: every prediction changes
    assert after(4)[1:].all() and after(4)[0].sum() == 1  # in the target: later predictions change
    np.testing.assert_array_equal(
        after(9), np.tile(np.arange(VOCAB) == 9, (3, 1))
    )  # in neither: only its own logit changes


def test_logits_are_states_times_the_embeddings():
    model = shared_model(VOCAB)
    memory = model.encode(tf.constant(SOURCE))
    states = model.decode(tf.constant(TARGET), memory, tf.constant(SOURCE)).numpy()
    expected = states @ model.embedding.numpy().T
    np.testing.assert_allclose(logits(model, SOURCE, TARGET), expected, rtol=1e-4, atol=1e-5)


# Dropout.


def test_dropout_only_in_training():
    model = shared_model(VOCAB, dropout=0.3)
    np.testing.assert_array_equal(logits(model, SOURCE, TARGET), logits(model, SOURCE, TARGET, seed=seed(1, 2)))
    first, again, other = (logits(model, SOURCE, TARGET, training=True, seed=seed(1, n)) for n in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    assert np.abs(first - logits(model, SOURCE, TARGET)).max() > 1e-2


def test_training_without_a_seed_draws_new_masks():
    model = shared_model(VOCAB, dropout=0.3)
    first, second = (logits(model, SOURCE, TARGET, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-2


# A Keras model.


def test_copy_from_config():
    model = shared_model(VOCAB, positions="learned")
    config = json.loads(json.dumps(model.get_config()))
    copy = Transformer.from_config(config)
    assert (copy.hparams, copy.vocab_size, copy.dtype_policy) == (model.hparams, VOCAB, model.dtype_policy)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(logits(copy, SOURCE, TARGET), logits(model, SOURCE, TARGET))


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_saved_model_loads_with_keras_only(tmp_path, positions):
    model = random_model(20_000, positions=positions)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Transformer) and loaded.hparams == model.hparams
    np.testing.assert_array_equal(logits(loaded, SOURCE, TARGET), logits(model, SOURCE, TARGET))
    assert (tmp_path / "model.keras").stat().st_size < 1.5 * 4 * model.count_params()  # each weight once


def test_summary_shows_the_embedding():
    lines: list[str] = []
    model = shared_model(VOCAB)
    model.summary(print_fn=lines.append)
    rows = [line for line in "\n".join(lines).splitlines() if "token_embedding" in line]
    assert len(rows) == 1 and str(VOCAB * SMALL.d_model) in rows[0]
    assert f"Total params: {model.count_params():,}" in "\n".join(lines)


@pytest.mark.parametrize("changes", [{}, {"positions": "learned"}, {"num_encoder_layers": 3, "num_decoder_layers": 1}])
def test_attention_gives_the_weights_of_every_layer(changes):
    model, h = shared_model(VOCAB, **changes), replace(SMALL, **changes)
    source = padded(SOURCE, 0, 2)
    found = model.attention(tf.constant(source), tf.constant(TARGET))
    (batch, length), keys = TARGET.shape, source.shape[1]
    shapes = {name: [tuple(each.shape) for each in layers] for name, layers in found._asdict().items()}
    assert shapes == {
        "encoder": [(batch, h.num_heads, keys, keys)] * h.encoder_depth,
        "memory": [(batch, h.num_heads, length, keys)] * h.decoder_depth,
        "decoder": [(batch, h.num_heads, length, length)] * h.decoder_depth,
    }
    for weights in (*found.encoder, *found.memory, *found.decoder):
        np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=1e-5)
    assert not np.any(np.array(found.memory)[..., 5:]) and not np.any(np.triu(found.decoder[0], 1))


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "message"),
    [
        (VOCAB, "bfloat16", "dtype must be one of float32, mixed_bfloat16, mixed_float16, got 'bfloat16'"),
        (VOCAB, "float64", "dtype must be one of float32, mixed_bfloat16, mixed_float16, got 'float64'"),
        (0, "float32", "vocab_size must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_rejected(vocab_size, dtype, message):
    with pytest.raises(ValueError, match=message):
        Transformer(vocab_size, SMALL, dtype=dtype)


def test_copy_keeps_its_precision():
    model = Transformer(VOCAB, SMALL, dtype="mixed_bfloat16")
    assert Transformer.from_config(model.get_config()).compute_dtype == "bfloat16"


@pytest.mark.bfloat16
def test_mixed_precision_keeps_weights_and_logits_in_float32():
    wide, narrow = shared_model(VOCAB), random_model(VOCAB, dtype="mixed_bfloat16")
    assert {weight.dtype for weight in narrow.weights} == {"float32"}
    assert narrow.encode(tf.constant(SOURCE)).dtype == tf.bfloat16
    exact, rounded = logits(wide, SOURCE, TARGET), logits(narrow, SOURCE, TARGET)
    assert rounded.dtype == np.float32
    assert np.abs(exact - rounded).max() < 0.05 * np.abs(exact).max()


def test_every_weight_is_in_a_checkpoint(tmp_path):
    """Counts the weights, as tf.train.Checkpoint silently omits layers in a list."""
    model = random_model(VOCAB, positions="learned", max_positions=9)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "weights"))
    shapes = [tuple(shape) for name, shape in tf.train.list_variables(path) if "seed_generator" not in name]
    shapes = [shape for shape in shapes if shape]  # without the object graph, which is a scalar
    assert sorted(shapes) == sorted(tuple(weight.shape) for weight in model.weights)
    copy = random_model(VOCAB, seed=2, positions="learned", max_positions=9)
    tf.train.Checkpoint(model=copy).read(path).assert_existing_objects_matched()
    for ours, theirs in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_positions_beyond_a_learned_table_share_its_last_row():
    model = random_model(VOCAB, positions="learned", max_positions=4)
    assert np.isfinite(logits(model, SOURCE, TARGET)).all()


@pytest.mark.slow
def test_training_with_keras_only():
    """Memorizes three pairs with compile and fit, as in a notebook."""
    keras.utils.set_random_seed(1)
    model = Transformer(VOCAB, replace(SMALL, num_layers=1, dropout=0.1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss)
    history = model.fit({"inputs": SOURCE, "targets": TARGET}, TARGET, epochs=60, batch_size=3, verbose=0)
    assert history.history["loss"][-1] < 0.5 < 2 < history.history["loss"][0]
