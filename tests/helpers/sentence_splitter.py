"""A splitter of texts into sentences in the form of MiniSBD, which Argos Translate otherwise downloads."""

from __future__ import annotations

import json

UNITS = {"<PAD>": 0, "<UNK>": 1, " ": 2, ".": 3, "!": 4, "?": 5}
CLASSES, ENDS = 5, 2  # MiniSBD's classes of a character, and the one that ends a sentence


def write(path: str) -> None:
    """Writes a model that ends a sentence at each mark that a space follows."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "mark": np.int64(UNITS["."]),
        "space": np.int64(UNITS[" "]),
        "ends": np.int64(ENDS),
        "classes": np.int64(CLASSES),
        "values": np.array([0, 1], np.float32),
        "shift": np.array([0, 0, 0, 1], np.int64),  # one column of padding behind
        "one": np.array([1], np.int64),
        "all": np.array([2**30], np.int64),
    }
    nodes = [
        helper.make_node("Pad", ["units", "shift"], ["padded"]),
        helper.make_node("Slice", ["padded", "one", "all", "one"], ["next"]),
        helper.make_node("GreaterOrEqual", ["units", "mark"], ["is_mark"]),
        helper.make_node("Equal", ["next", "space"], ["is_before_space"]),
        helper.make_node("And", ["is_mark", "is_before_space"], ["is_end"]),
        helper.make_node("Cast", ["is_end"], ["flags"], to=TensorProto.INT64),
        helper.make_node("Mul", ["flags", "ends"], ["labels"]),
        helper.make_node("OneHot", ["labels", "classes", "values"], ["logits"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "splitter",
        [
            helper.make_tensor_value_info("units", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "length", "features"]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", CLASSES])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    texts = {
        "lang_code": "en",
        "config": {"batch_size": 1, "feat_funcs": ["space_before"]},
        "vocab": {"_unit2id": UNITS},
    }
    for key, value in texts.items():
        model.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    onnx.save(model, path)
