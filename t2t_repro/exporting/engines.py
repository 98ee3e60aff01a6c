"""The export formats and their engines: what each can do, and what the exports to other engines share.

Importing this module needs only the standard library, so the programs list the formats without TensorFlow.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from t2t_repro.model.transformer import Transformer

QUANTIZATIONS = ("none", "int8")
ELSEWHERE = "export it as a SavedModel"
_LACKING = {  # options of `export`, and the description of a format without one
    "shortlist": "decodes with all subwords",
    "alignments": "has no word alignments",
    "glossaries": "has no glossaries",
}


@dataclass(frozen=True)
class Format:
    """A format: the needs of its exports, and which options of `export` it takes."""

    name: str
    engine: str  # the software that runs the export
    package: str = ""  # that writes it, in the extra of the same name as the format; "" for none
    readme: str = ""  # the file that explains its use; "" for none
    shortlist: bool = False
    alignments: bool = False
    glossaries: bool = False
    constraint: bool = False  # of beam search, such as that of parsing
    dtype_elsewhere: str = ""  # how to compute in another precision than float32; "": the export has its own
    int8_elsewhere: str = ""  # how to quantize; "": the export is quantized

    def must_be_installed(self) -> None:
        """Raises ValueError, with the command that installs it, if the package that writes this format is missing."""
        if self.package and importlib.util.find_spec(self.package.lower()) is None:
            raise ValueError(f"{self.package} is not installed; install it with: pip install 't2t_repro[{self.name}]'")

    def must_take(self, precision: str, quantization: str, **options: Any) -> None:
        """Raises ValueError if the format lacks a precision, a quantization or an option that is given."""
        for option, value in options.items():
            if value not in (None, False) and not getattr(self, option):
                raise ValueError(
                    f"the format {self.name} {_LACKING[option]}. Received: {option}={value!r}; leave it out, or choose "
                    f"the format {having(option, ' or ')}"
                )
        own = f"{self.engine} takes float32 weights. Received:"
        if self.int8_elsewhere and quantization != "none":
            raise ValueError(f"{own} quantization={quantization!r}; leave it out, {self.int8_elsewhere}")
        if self.dtype_elsewhere and precision not in ("auto", "float32"):
            raise ValueError(f"{own} precision={precision!r}; leave it out, {self.dtype_elsewhere}")


_ALL = (
    Format("saved_model", "TensorFlow", alignments=True, glossaries=True, constraint=True),
    Format(
        "ctranslate2",
        "CTranslate2",
        package="CTranslate2",
        readme="README.txt",
        shortlist=True,
        alignments=True,
        dtype_elsewhere="and choose a compute_type when you load the model",
    ),
    Format(
        "argos",
        "Argos Translate",
        package="CTranslate2",
        readme="README.md",
        dtype_elsewhere="and set ARGOS_COMPUTE_TYPE when you translate",
    ),
    Format(
        "huggingface",
        "transformers",
        package="safetensors",
        readme="README.md",
        dtype_elsewhere="and choose a dtype when you load the model",
        int8_elsewhere="and quantize when you load the model",
    ),
    Format(
        "onnx",
        "ONNX Runtime",
        package="onnx",
        readme="README.txt",
        dtype_elsewhere="or choose the quantization int8",
    ),
)
FORMATS = {each.name: each for each in _ALL}


def having(option: str, separator: str = ", ") -> str:
    """Returns the names of the formats that take an option of `export`."""
    return separator.join(name for name, each in FORMATS.items() if getattr(each, option))


def activation(model: Transformer, engine: str) -> str:
    """Returns the name of the activation: relu, gelu, silu or tanh. Raises ValueError for another one.

    `engine` is the name of the format or its engine in the message.
    """
    from keras import ops

    names = {ops.relu: "relu", ops.gelu: "gelu", ops.silu: "silu", ops.tanh: "tanh"}
    activations = {layer.feed_forward.activation for layer in (*model.encoder_layers, *model.decoder_layers)}
    if len(activations) > 1 or not activations <= names.keys():
        received = ", ".join(sorted(getattr(each, "__name__", repr(each)) for each in activations))
        raise ValueError(f"{engine} has one of keras.ops' relu, gelu, silu and tanh. Received: {received}; {ELSEWHERE}")
    return names[activations.pop()]


def must_be_the_papers(model: Transformer, engine: str) -> None:
    """Raises ValueError if the code of the model was changed to one with other weights, or without post-norm."""
    import numpy as np

    weights = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    expected = model.hparams.num_parameters(model.vocab_size)
    if weights != expected:
        raise ValueError(
            f"{engine} has the {expected:,} weights of the paper's model. Received: {weights:,}; {ELSEWHERE}"
        )
    x_BLD, y_BLD = np.random.default_rng(1).normal(size=(2, 1, 3, model.hparams.d_model)).astype(np.float32)
    for layer in (*model.encoder_layers, *model.decoder_layers):
        add_norm = layer.feed_forward_norm
        found, expected_BLD = add_norm(x_BLD, sublayer=lambda _: y_BLD), add_norm.norm(x_BLD, y_BLD)
        if not np.allclose(found, expected_BLD, atol=1e-4):
            raise ValueError(
                f"{engine} normalizes the sum of each residual connection. Received: another AddNorm; {ELSEWHERE}"
            )


def num_positions(model: Transformer) -> int:
    """Returns the number of positions: a source of `max_positions`, and `extra_length` more for its translation."""
    return model.hparams.max_positions + model.hparams.extra_length


def positions(model: Transformer, side: str, least: int = 0) -> np.ndarray:
    """Returns position encodings [positions, D], float32, of the side "source" or "target": at least `least`.

    Those beyond a learned table repeat its last row.
    """
    import numpy as np

    from t2t_repro.model.layers import sinusoids

    length = max(num_positions(model), least)
    if model.hparams.positions == "sinusoid":
        return np.asarray(sinusoids(np.arange(length), model.hparams.d_model).numpy(), np.float32)
    table: Any = model.source_positions if side == "source" else model.target_positions
    return np.asarray(table.value.numpy(), np.float32)[np.minimum(np.arange(length), model.hparams.max_positions - 1)]
