"""HParams: the paper's hyperparameters under its symbols, with validation. Record: their published results."""

from __future__ import annotations

import dataclasses
import difflib
import numbers
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LARGEST_INT = 2**31 - 1  # of int32, to which TensorFlow converts larger integers without an error


def _paper(default: Any, section: str, meaning: str, symbol: str = "") -> Any:
    """Returns a field with its default, its section of the paper, its meaning, and the paper's symbol if it differs.

    t2t-registry prints them.
    """
    meaning = f"{symbol}: {meaning}" if symbol else meaning
    return field(default=default, metadata={"section": section, "meaning": meaning, "symbol": symbol})


@dataclass(frozen=True)
class HParams:
    """A hyperparameter set. The defaults are the paper's base model for English-German.

    Make a variation with `dataclasses.replace(BASE, name="b_dk16", d_k=16)`. Raises ValueError for an impossible value,
    and TypeError for an unknown field or a value of the wrong type.
    """

    name: str  # by which the set is registered
    description: str  # shown by t2t-registry

    # Model
    num_layers: int = _paper(6, "3.1", "number of layers in the encoder, and in the decoder", "N")
    num_encoder_layers: int = _paper(0, "3.1", "layers of the encoder alone; 0: num_layers")
    num_decoder_layers: int = _paper(0, "3.1", "layers of the decoder alone; 0: num_layers")
    d_model: int = _paper(512, "3.1", "width of every sub-layer's output")
    d_ff: int = _paper(2048, "3.3", "inner width of the feed-forward network")
    num_heads: int = _paper(8, "3.2.2", "parallel attention heads", "h")
    d_k: int = _paper(64, "3.2.2", "width of queries and keys, independent of d_model / h (Table 3, rows B)")
    d_v: int = _paper(64, "3.2.2", "width of values")
    initializer_gain: float = _paper(
        1.0, "3.1", "factor of the Glorot-uniform initial values of the layers' matrices; not in the paper"
    )
    positions: str = _paper("sinusoid", "3.5", "position encoding: sinusoid, or learned (Table 3, row E)")
    max_positions: int = _paper(1024, "3.5", "maximum tokens per sequence; rows of each learned position table")

    # Regularization
    dropout: float = _paper(0.1, "5.4", "dropout on sub-layer outputs, and on embeddings plus positions", "P_drop")
    attention_dropout: float = _paper(0.0, "6.3", "dropout on attention weights; in the paper for parsing only")
    label_smoothing: float = _paper(0.1, "5.4", "probability mass of the target spread over the vocabulary", "eps_ls")
    bpe_dropout: float = _paper(0.0, "5.1", "BPE-dropout: chance of dropping a merge in training; not in the paper")
    r_drop: float = _paper(
        0.0, "5.4", "R-Drop (Liang et al., 2021): weight alpha of the divergence of two passes; 0: off"
    )

    # Training
    batch_tokens: int = _paper(25_000, "5.1", "batch size: positions per side and step, padding included")
    train_steps: int = _paper(100_000, "5.2", "training steps")
    warmup_steps: int = _paper(4_000, "5.3", "steps in which the learning rate rises (eq. 3)")
    learning_rate_scale: float = _paper(1.0, "6.3", "factor of eq. 3; the paper tuned it for parsing alone")
    decay_steps: int = _paper(0, "5.3", "last steps in which the rate of eq. 3 also falls linearly to 0; 0: none")
    adam_beta1: float = _paper(0.9, "5.3", "Adam: decay rate of the mean gradient")
    adam_beta2: float = _paper(0.98, "5.3", "Adam: decay rate of the mean squared gradient")
    adam_epsilon: float = _paper(1e-9, "5.3", "Adam: added to the root of the mean squared gradient")
    ema_decay: float = _paper(0.0, "6.1", "decay rate of an exponential moving average of the weights; 0: none is kept")

    # Inference
    beam_size: int = _paper(4, "6.1", "beam width")
    alpha: float = _paper(0.6, "6.1", "length penalty of Wu et al. (2016), eq. 14")
    extra_length: int = _paper(50, "6.1", "maximum output length minus the input length, in tokens")
    average_checkpoints: int = _paper(5, "6.1", "number of last checkpoints to average for the test set (Table 2)")
    checkpoint_steps: int = _paper(
        1500, "6.1", "steps between these checkpoints; the paper's ten minutes are 1,500 at 0.4 s"
    )

    def __post_init__(self) -> None:
        check_types(self)
        for names, is_valid, expected in _RANGES:
            for name in names.split():
                if not is_valid(getattr(self, name)):
                    raise ValueError(f"{name} must be {expected}, got {getattr(self, name)}")
        if self.d_model % 2:
            raise ValueError(f"d_model must be even (sines and cosines come in pairs, section 3.5), got {self.d_model}")
        if self.positions not in ("sinusoid", "learned"):
            raise ValueError(f"positions must be 'sinusoid' or 'learned', got {self.positions!r}")
        if self.decay_steps > self.train_steps:
            raise ValueError(
                f"decay_steps must be at most train_steps = {self.train_steps:,}, got {self.decay_steps:,}"
            )
        if self.r_drop and not (self.dropout or self.attention_dropout):
            raise ValueError(
                f"r_drop must be 0 without dropout, because two passes are then the same, got {self.r_drop}; raise "
                "dropout above 0"
            )

    @property
    def encoder_depth(self) -> int:
        """The number of layers in the encoder."""
        return self.num_encoder_layers or self.num_layers

    @property
    def decoder_depth(self) -> int:
        """The number of layers in the decoder."""
        return self.num_decoder_layers or self.num_layers

    def num_parameters(self, vocab_size: int) -> int:
        """Returns the exact number of trainable parameters for a vocabulary of `vocab_size`.

        Attention has no biases. A feed-forward network has two. A layer normalization has 2 d_model parameters. Both
        embeddings and the projection before the softmax share one matrix (sections 3.2 to 3.4).
        """
        attention = self.num_heads * 2 * self.d_model * (self.d_k + self.d_v)
        feed_forward = 2 * self.d_model * self.d_ff + self.d_ff + self.d_model
        norm = 2 * self.d_model
        encoder_layer = attention + feed_forward + 2 * norm
        decoder_layer = 2 * attention + feed_forward + 3 * norm
        learned_positions = 2 * self.max_positions * self.d_model if self.positions == "learned" else 0
        layers = self.encoder_depth * encoder_layer + self.decoder_depth * decoder_layer
        return vocab_size * self.d_model + layers + learned_positions

    def changes(self, base: HParams) -> dict[str, Any]:
        """Returns the fields that differ from `base`, under the paper's symbols: `{"h": 1, "d_k": 512, "d_v": 512}`."""
        fields = [each for each in dataclasses.fields(self) if each.metadata]
        changed = [each for each in fields if getattr(self, each.name) != getattr(base, each.name)]
        return {each.metadata["symbol"] or each.name: getattr(self, each.name) for each in changed}

    def override(self, assignments: list[str]) -> HParams:
        """Returns a copy with fields replaced by `name=value` strings.

        Raises KeyError for an unknown field, ValueError for another form or a value of the wrong type, and TypeError
        for a text instead of a list.
        """
        if isinstance(assignments, str):
            raise TypeError(f"override: expected a list such as ['d_k=16']. Received: {assignments!r}")
        fields = {each.name: each for each in dataclasses.fields(self) if each.name not in ("name", "description")}
        changes: dict[str, Any] = {}
        for assignment in assignments:
            name, equals, text = assignment.partition("=") if isinstance(assignment, str) else ("", "", "")
            if not equals:
                raise ValueError(f"override: expected a text such as 'd_k=16'. Received: {assignment!r}")
            if name not in fields:
                raise KeyError(f"override: unknown field {name!r}{nearest(name, fields)}")
            changes[name] = _parse(name, str(fields[name].type), text)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Returns every field, ready for JSON, except the fields of later versions that have their default."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != LATER.get(name)}


# The fields that run.json of older versions lacks, with their defaults.
LATER = {"initializer_gain": 1.0, "bpe_dropout": 0.0, "r_drop": 0.0, "decay_steps": 0, "ema_decay": 0.0}

PRECISIONS = ("auto", "float32", "tf32", "bfloat16", "float16")
BEST_KEPT = 5  # checkpoints, the number whose mean the paper uses (section 6.1)


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training run that belong to neither the problem nor the hyperparameter set.

    `seed` and `precision` are fixed for a run; the others may change each time it continues. Regular checkpoints are
    those of every `checkpoint_steps` steps and of the last step. Raises ValueError for an impossible value, and
    TypeError for one of the wrong type.
    """

    seed: int = 1  # random seed of weights, data order and dropout; below 2^18
    precision: str = "auto"  # precision of matrix products: see `t2t_repro.training.precision`
    checkpoint_minutes: float = 10.0  # maximum minutes between two checkpoints, against loss of work; 0: no limit
    checkpoint_steps: int = 0  # steps between checkpoints for averaging; 0: the hyperparameter set's
    microbatch_tokens: int = 0  # maximum tokens per side in a micro-batch; 0: automatic (smaller if memory runs out)
    jit_compile: bool = False  # compile the gradient of a micro-batch with XLA, one program per shape
    deterministic: bool = False  # bit-for-bit reproducible on a GPU too; slower there
    patience: int = 0  # regular checkpoints scored in a row without an improvement that end training; 0: no limit
    validate_by: str = "perplexity"  # the score of the validation split that decides; or bleu, chrf, f1
    validate_metrics: tuple[str, ...] = ()  # scores of the complete validation split, decoded greedily: bleu, chrf, f1
    validate_every: int = 0  # regular checkpoints between two such scorings; 0: at most 5% of the time
    also_validate: tuple[str, ...] = ()  # directories of prepared data, whose validation perplexity is reported too
    keep_best: int = 0  # best regular checkpoints kept beside the last ones; 0: BEST_KEPT if `selects`
    train_minutes: float = 0.0  # minutes of training over all starts that end it; 0: no limit
    train_epochs: int = 0  # passes over the data that end training; 0: no limit

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores for which the validation split is decoded, without duplicates."""
        decides = () if self.validate_by == "perplexity" else (self.validate_by,)
        return tuple(dict.fromkeys((*self.validate_metrics, *decides)))

    @property
    def selects(self) -> bool:
        """True if a checkpoint is to be chosen by its validation score."""
        return bool(self.patience or self.keep_best or self.metrics)

    @property
    def best_kept(self) -> int:
        """The number of best checkpoints to keep, whose mean may be recommended."""
        return self.keep_best or BEST_KEPT * self.selects

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("validate_metrics", "also_validate"):
            must_be_tuple(name, getattr(self, name), (str, os.PathLike), "texts")
        if not 0 <= self.seed < 2**18:
            raise ValueError(f"seed must be at least 0 and below {2**18}, got {self.seed}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        limits = ("patience", "validate_every", "keep_best", "train_minutes", "train_epochs")
        for name in ("checkpoint_minutes", "checkpoint_steps", "microbatch_tokens", *limits):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.validate_every and not self.metrics:
            raise ValueError(
                "validate_every is for decoded scores; give some (`validate_metrics`, `validate_by`) or leave it out"
            )


@dataclass(frozen=True)
class Record:
    """Published and measured results of a hyperparameter set. None stands for a number that the paper does not print.

    `perplexity` and `bleu_dev` are of a single checkpoint on newstest2013 (Table 3). `bleu_ende` and `bleu_enfr` are of
    averaged checkpoints on newstest2014 (Table 2). `f1` is on section 23 of the WSJ (Table 4).
    """

    name: str  # name of the hyperparameter set
    place: str = ""  # in the paper: "Table 3 (A)"; "" for a set that is not in it
    perplexity: float | None = None  # per word-piece
    bleu_dev: float | None = None
    bleu_ende: float | None = None
    bleu_enfr: float | None = None
    f1: float | None = None
    millions: int | None = None  # millions of parameters
    flops: float | None = None  # of the complete training
    measured: tuple[str, ...] = ()  # each: score, data, command and hardware; never an estimate

    def printed(self) -> str:
        """Returns the paper's results as text: `Table 3 (A): PPL 5.29, BLEU 24.9 on newstest2013`."""
        forms = {
            "perplexity": "PPL {:.2f}",
            "bleu_dev": "BLEU {:.1f} on newstest2013",
            "bleu_ende": "BLEU {:.1f} on newstest2014 en-de",
            "bleu_enfr": "BLEU {:.1f} on newstest2014 en-fr",
            "f1": "F1 {:.1f} on WSJ section 23",
            "flops": "{:.1e} FLOPs",
        }
        printed = [form.format(getattr(self, name)) for name, form in forms.items() if getattr(self, name) is not None]
        return f"{self.place}: {', '.join(printed).replace('e+', 'e')}"


_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("num_layers d_model d_ff num_heads d_k d_v max_positions batch_tokens", lambda value: value >= 1, "at least 1"),
    ("train_steps warmup_steps checkpoint_steps average_checkpoints beam_size", lambda value: value >= 1, "at least 1"),
    (
        "dropout attention_dropout label_smoothing bpe_dropout ema_decay",
        lambda value: 0 <= value < 1,
        "at least 0 and below 1",
    ),
    ("adam_beta1 adam_beta2", lambda value: 0 < value < 1, "between 0 and 1"),
    ("initializer_gain learning_rate_scale", lambda value: 0 < value < float("inf"), "above 0 and finite"),
    ("adam_epsilon", lambda value: 1e-30 <= value < float("inf"), "at least 1e-30 and finite"),  # 0 in float32 if less
    ("alpha r_drop", lambda value: 0 <= value < float("inf"), "at least 0 and finite"),
    ("num_encoder_layers num_decoder_layers extra_length decay_steps", lambda value: value >= 0, "at least 0"),
)

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


def check_types(record: Any) -> None:
    """Raises TypeError for a field of a frozen dataclass that is not an int, float, str or bool as declared.

    An int becomes a float where one is declared.
    """
    for each in dataclasses.fields(record):
        value, expected = getattr(record, each.name), _TYPES.get(str(each.type))
        if expected is float and type(value) is int:
            object.__setattr__(record, each.name, float(value))
        elif expected and type(value) is not expected:
            raise TypeError(f"{each.name} must be of type {each.type}, got {value!r}")


def must_be_tuple(name: str, value: object, kinds: Any, described: str) -> None:
    """Raises TypeError unless `value`, the argument `name`, is a tuple or a list of these kinds."""
    if not (isinstance(value, tuple | list) and all(isinstance(each, kinds) for each in value)):
        raise TypeError(f"{name} must be a tuple of {described}, got {value!r}")


def must_be_integer(name: str, value: object, least: int, most: float = LARGEST_INT) -> None:
    """Raises TypeError unless `value`, the argument `name`, is an integer; ValueError unless it is in this range."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be of type int, got {value!r:.60}")
    number = operator.index(value)  # numpy's integers too
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name} must be at most {most:,}, got {number:,}")


def must_be_number(name: str, value: object) -> None:
    """Raises TypeError unless `value`, the argument `name`, is a number."""
    if not isinstance(value, numbers.Real):  # numpy's too
        raise TypeError(f"{name} must be a number, got {value!r:.60}")


def _parse(name: str, type_name: str, text: str) -> int | float | str:
    try:
        value: int | float | str = _TYPES[type_name](text)
    except ValueError:
        raise ValueError(f"override: {name} must be of type {type_name}, got {text!r}") from None
    return value


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Returns the end of an error message about `name`: the known name closest to it, then all known names."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"{f': did you mean {close[0]!r}?' if close else ';'} known: {', '.join(sorted(known))}"
