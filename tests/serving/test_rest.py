"""TensorFlow Serving's REST API: requests that it accepts have the same meaning in t2t-serve and fit the SavedModel.

`helpers.tf_serving` implements its rules. Like TensorFlow Serving, it runs a SavedModel in a session, with inputs by
tensor name.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers import tf_serving

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from t2t_repro.saved_model import ALIGNED_SIGNATURE  # noqa: E402
from t2t_repro.serving import protocol  # noqa: E402
from t2t_repro.serving.json_values import BadRequest, Limits  # noqa: E402
from t2t_repro.serving.model import ServedModel  # noqa: E402

ALL = {"beam_size": 3, "alpha": 0.5, "extra_length": 4, "n_best": 2}


def translate(**form):
    return {"signature_name": "translate", **form}


def score(**form):
    return {"signature_name": "score", **form}


# Body, accepted by TensorFlow Serving, accepted by t2t-serve.
FORMS = [
    ({"instances": ["12 cats", ""]}, True, True),
    ({"instances": [{"inputs": "12 cats"}, {"inputs": "1 dog"}]}, True, True),
    ({"instances": [{"b64": "MTIgY2F0cw=="}, "1 dog"]}, True, True),
    ({"instances": [{"inputs": {"b64": "/w=="}}]}, True, True),
    ({"inputs": ["12 cats", "1 dog"]}, True, True),
    ({"inputs": {"inputs": ["12 cats", {"b64": "MTIgY2F0cw=="}]}}, True, True),
    ({"inputs": []}, True, True),
    ({"signature_name": "", "instances": ["12 cats"]}, True, True),
    ({"signature_name": "serving_default", "inputs": ["12 cats"]}, True, True),
    (score(instances=[{"inputs": "a", "targets": "b"}, {"targets": "c", "inputs": "d"}]), True, True),
    (score(inputs={"inputs": ["a", "b"], "targets": ["c", "d"]}), True, True),
    (translate(instances=[{"inputs": "12 cats", **ALL}, {"inputs": "1 dog", **ALL}]), True, True),
    (translate(instances=[{"inputs": "12 cats", **ALL}, {"inputs": "1 dog", **ALL, "n_best": 1}]), True, True),
    (translate(instances=[{"inputs": "12 cats", **ALL, "alpha": 0}]), True, True),
    (translate(inputs={"inputs": ["12 cats", "1 dog"], **ALL}), True, True),
    (translate(inputs={"inputs": ["12 cats", "1 dog"], **ALL, "beam_size": [3, 2]}), True, True),
    (translate(inputs={"inputs": ["12 cats", "1 dog"], **ALL, "beam_size": [3]}), True, True),
    # Ignored there, refused here.
    ({"instances": ["12 cats"], "context": 1}, True, False),
    ({"inputs": {"inputs": ["12 cats"], "beam": 2}}, True, False),
    # Missing options are an error only there.
    (translate(instances=["12 cats"]), False, True),
    (translate(instances=[{"inputs": "12 cats"}]), False, True),
    (translate(instances=[{"inputs": "12 cats", "beam_size": 3}]), False, True),
    (translate(inputs={"inputs": ["12 cats"], "beam_size": 8, "n_best": 3}), False, True),
    (translate(inputs=["12 cats"]), False, True),
    # Refused by both.
    ({"instances": []}, False, False),
    ({"instances": {}}, False, False),
    ({"instances": "12 cats"}, False, False),
    ({"instances": ["12 cats", {"inputs": "1 dog"}]}, False, False),
    ({"instances": [{"inputs": "12 cats"}, "1 dog"]}, False, False),
    ({"instances": [{"inputs": "12 cats"}, {"b64": "MTIgY2F0cw=="}]}, False, False),
    ({"instances": ["12 cats", ["1 dog"]]}, False, False),
    ({"instances": [{"inputs": "12 cats", "more": "1"}]}, False, False),
    ({"instances": [{"b64": "?"}]}, False, False),
    ({"instances": [{"b64": 1}]}, False, False),
    ({"instances": [1]}, False, False),
    ({"instances": [None]}, False, False),
    ({"inputs": {"input": ["12 cats"]}}, False, False),
    ({"instances": ["a"], "inputs": ["a"]}, False, False),
    ({"signature_name": "classify", "instances": ["a"]}, False, False),
    ({"signature_name": 1, "instances": ["a"]}, False, False),
    ({}, False, False),
    (["12 cats"], False, False),
    (score(instances=["a"]), False, False),
    (score(inputs=["a"]), False, False),
    (score(instances=[{"inputs": "a"}]), False, False),
    (score(inputs={"inputs": ["a"]}), False, False),
    (translate(instances=[{"inputs": "12 cats", **ALL}, {"inputs": "1 dog", **ALL, "n_best": [1]}]), False, False),
    (translate(instances=[{"inputs": "12 cats", **ALL, "beam_size": 2.5}]), False, False),
    (translate(instances=[{"inputs": "12 cats", **ALL, "beam_size": True}]), False, False),
    (translate(instances=[{"inputs": "12 cats", **ALL, "beam_size": 2**31}]), False, False),
    (translate(instances=[{"inputs": "12 cats", **ALL, "alpha": "0"}]), False, False),
]


@pytest.fixture(scope="module")
def model(exported_with_glossaries):
    return ServedModel(exported_with_glossaries, attention=True)


@pytest.fixture(scope="module")
def session(model):
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        session.t2t_signatures = tf.compat.v1.saved_model.load(session, ["serve"], model.path).signature_def
    yield session
    session.close()


def dtypes(model):
    return {name: {each.name: each.dtype for each in takes.values()} for name, takes in model.signatures.items()}


def understood(function, *arguments):
    try:
        return function(*arguments)
    except (tf_serving.Refused, BadRequest):
        return None


@pytest.mark.parametrize(("body", "there", "here"), FORMS, ids=lambda value: str(value)[:60])
def test_forms(model, session, body, there, here):
    text = json.dumps(body)
    theirs = understood(tf_serving.tensors, text, dtypes(model))
    ours = understood(protocol.parse, text.encode(), model.signatures, Limits())
    assert (theirs is not None, ours is not None) == (there, here)
    if ours is None:
        return
    found = model.run(ours.signature, ours.inputs | ours.options)
    assert len(next(iter(found.values()))) == ours.rows
    if theirs is None:
        return
    name, tensors = theirs
    assert name == ours.signature and set(tensors) == set(ours.inputs | ours.options)
    for key, value in (ours.inputs | ours.options).items():
        expected = np.broadcast_to(tensors[key], ours.rows)
        np.testing.assert_array_equal(np.broadcast_to(value, ours.rows), expected)
    for key, value in in_session(session, name, tensors).items():
        if value.dtype == object:
            assert value.tolist() == found[key].tolist()
        else:
            np.testing.assert_allclose(value, found[key], atol=1e-4)


def in_session(session, name, tensors):
    signature = session.t2t_signatures[name]
    fed = {signature.inputs[key].name: value for key, value in tensors.items()}
    return session.run({key: info.name for key, info in signature.outputs.items()}, fed)


def test_every_signature_takes_rows_there(model):
    for name, takes in model.signatures.items():
        row = {each.name: {"string": "12 cats", "int32": 1, "float32": 0.5}[each.dtype] for each in takes.values()}
        _, tensors = tf_serving.tensors(json.dumps({"signature_name": name, "instances": [row] * 2}), dtypes(model))
        assert {value.shape for value in tensors.values()} == {(2,)}
        assert {len(value) for value in model.run(name, tensors).values()} == {2}


def test_requests_in_the_documentation_are_accepted_by_both(model):
    page = (CHECKOUT / "docs" / "serving.md").read_text("utf-8")
    bodies = re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S) + re.findall(r"^curl -d '(.*?)'", page, re.M)
    assert len(bodies) >= 3
    signatures = model.signatures | {ALIGNED_SIGNATURE: model.signatures["translate"]}  # this export has no alignments
    for body in bodies:
        assert tf_serving.tensors(body, dtypes(model)), body
        assert protocol.parse(body.encode(), signatures, Limits()), body
