"""ONNX graphs: operations by name, products with weights in float32 or int8, and one file of weights for all graphs.

With int8, a matrix has a scale per column, and activations have a scale per row, computed for each product. So a row of
a product does not depend on the other rows. Weights are rounded to -64 to 64 (seven bits), and rows to -127 to 127,
stored as unsigned integers with the zero point 128, for which ONNX Runtime has its fast products. Without VNNI, it adds
pairs of products in 16 bits, which saturate at 32,767; the largest pair is 255 * 64 * 2 = 32,640.

Shapes: T rows, I inputs, O outputs, D d_model, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

OPSET = 17  # of ONNX 1.12, the first with LayerNormalization
IR_VERSION = 8  # the file format of that version
ZERO_POINT = 128  # of rows
LARGEST_ROW, LARGEST_WEIGHT = 127, 64
INLINE_BYTES = 1_024  # smaller tensors are in the graph itself
ALIGNMENT = 64  # bytes: a cache line


class WeightsFile(contextlib.AbstractContextManager["WeightsFile"]):
    """The new file `path` of tensors that graphs in the same folder refer to. A name is written once."""

    def __init__(self, path: str, name: str):
        self._file = open(path, "wb")
        self._name = name
        self._tensors: dict[str, Any] = {}

    def __exit__(self, *exception: Any) -> None:
        self._file.close()

    def tensor(self, name: str, value: np.ndarray) -> Any:
        """Returns the TensorProto of `value`. The first call with `name` writes it."""
        from onnx import TensorProto, numpy_helper

        if name not in self._tensors:
            tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
            if value.nbytes >= INLINE_BYTES:
                self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
                place = {"location": self._name, "offset": self._file.tell(), "length": len(tensor.raw_data)}
                self._file.write(tensor.raw_data)
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, entry in place.items():
                    tensor.external_data.add(key=key, value=str(entry))
            self._tensors[name] = tensor
        return self._tensors[name]


class Graph:
    """A graph while it is built. Values are strings, their names."""

    def __init__(self, name: str, weights: WeightsFile, int8: bool = False):
        self.name, self._weights, self._int8 = name, weights, int8
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._quantized: dict[str, tuple[str, str]] = {}  # value: its integers and scales

    def input(self, name: str, dtype: Any, shape: Sequence[str | int]) -> str:
        self._inputs.append(_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: Any, shape: Sequence[str | int]) -> None:
        """Declares the value `name` as an output."""
        self._outputs.append(_value_info(name, dtype, shape))

    def op(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """Returns the result of an operation, with the name `result` or a new one."""
        return self.ops(kind, *inputs, results=[result or self._new(kind)], **attributes)[0]

    def ops(self, kind: str, *inputs: str, results: Sequence[str] | int, **attributes: Any) -> list[str]:
        """Returns the results of an operation that has several: their names, or new ones for their number."""
        from onnx import helper

        names = [self._new(kind, n) for n in range(results)] if isinstance(results, int) else list(results)
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=self._new(kind), **attributes))
        return names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Returns a small constant, which is shared by all who ask for the same one."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype)
        name = "_".join(["constant", array.dtype.name, *map(str, array.shape), "is", *map(str, array.ravel())])
        self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, value: np.ndarray) -> str:
        self._initializers[name] = self._weights.tensor(name, value)
        return name

    def linear(self, x_TI: str, name: str, weight_IO: np.ndarray, bias_O: np.ndarray | None = None) -> str:
        """Returns x W + b: [T, O] float32. With int8, all arguments x of a graph have the same number of rows T."""
        if self._int8:
            y_TO = self._int8_product(x_TI, name, weight_IO)
        else:
            y_TO = self.op("MatMul", x_TI, self.weight(name, weight_IO.astype(np.float32)))
        if bias_O is None:
            return y_TO
        return self.op("Add", y_TO, self.weight(f"{name}.bias", bias_O.astype(np.float32)))

    def columns(self, ids_T: str, name: str, table_DV: np.ndarray) -> str:
        """Returns the columns of a table by their number, as rows: [T, D]. The same name in `linear` shares it."""
        if not self._int8:
            table = self.weight(name, table_DV.astype(np.float32))
            return self.op("Transpose", self.op("Gather", table, ids_T, axis=1), perm=[1, 0])
        values, scales = self._int8_matrix(name, table_DV)
        integers_TD = self.op("Transpose", self.op("Gather", values, ids_T, axis=1), perm=[1, 0])
        scales_T1 = self.op("Unsqueeze", self.op("Gather", scales, ids_T), self.constant([1]))
        return self.op("Mul", self.op("Cast", integers_TD, to=_dtype(np.float32)), scales_T1)

    def model(self, metadata: Mapping[str, str]) -> Any:
        """Returns the ModelProto of all that was added."""
        from onnx import helper

        import t2t_repro

        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        versions = {"producer_name": "t2t_repro", "producer_version": t2t_repro.__version__}
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, **versions)
        helper.set_model_props(model, dict(metadata))
        return model

    def _int8_product(self, x_TI: str, name: str, weight_IO: np.ndarray) -> str:
        integers_TI, scales_T1 = self._quantized.get(x_TI) or self._quantize(x_TI)
        values_IO, scales_O = self._int8_matrix(name, weight_IO)
        zero = self.constant(ZERO_POINT, np.uint8)
        sums_TO = self.op("MatMulInteger", integers_TI, values_IO, zero)
        y_TO = self.op("Mul", self.op("Cast", sums_TO, to=_dtype(np.float32)), scales_T1)
        return self.op("Mul", y_TO, scales_O)

    def _quantize(self, x_TI: str) -> tuple[str, str]:
        """Returns the integers of each row and its scale [T, 1]."""
        largest_T1 = self.op("ReduceMax", self.op("Abs", x_TI), axes=[1], keepdims=1)
        scales_T1 = self.op("Mul", largest_T1, self.constant(1 / LARGEST_ROW, np.float32))
        scales_T1 = self.op("Max", scales_T1, self.constant(1e-30, np.float32))  # of a row of zeros
        scales_T = self.op("Squeeze", scales_T1, self.constant([1]))
        zeros_T = self.op("Expand", self.constant(ZERO_POINT, np.uint8), self.op("Shape", scales_T))
        integers_TI = self.op("QuantizeLinear", x_TI, scales_T, zeros_T, axis=0)
        self._quantized[x_TI] = integers_TI, scales_T1
        return self._quantized[x_TI]

    def _int8_matrix(self, name: str, weight_IO: np.ndarray) -> tuple[str, str]:
        """Returns the integers and the scales [O] of a matrix."""
        scales_O = np.maximum(abs(weight_IO).max(axis=0) / LARGEST_WEIGHT, 1e-30)
        integers_IO = np.rint(weight_IO / scales_O).astype(np.int8)
        return self.weight(name, integers_IO), self.weight(f"{name}.scales", scales_O.astype(np.float32))

    def _new(self, kind: str, number: int = 0) -> str:
        return f"{kind}_{len(self._nodes)}_{number}" if number else f"{kind}_{len(self._nodes)}"


def activate(graph: Graph, x: str, activation: str) -> str:
    """Returns relu, gelu (by tanh), silu or tanh of `x`, as in `keras.ops`."""
    if activation == "silu":
        return graph.op("Mul", x, graph.op("Sigmoid", x))
    if activation == "gelu":
        number = {value: graph.constant(value, np.float32) for value in (0.5, 1.0, 0.044715, math.sqrt(2 / math.pi))}
        half, one, cubic, scale = number.values()
        cube = graph.op("Mul", graph.op("Mul", x, x), graph.op("Mul", x, cubic))
        tanh = graph.op("Tanh", graph.op("Mul", graph.op("Add", x, cube), scale))
        return graph.op("Mul", graph.op("Mul", x, half), graph.op("Add", tanh, one))
    return graph.op({"relu": "Relu", "tanh": "Tanh"}[activation], x)


def _value_info(name: str, dtype: Any, shape: Sequence[str | int]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, _dtype(dtype), list(shape))


def _dtype(dtype: Any) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
