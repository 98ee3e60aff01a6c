"""A stand-in for a `ServedModel` that writes capitals."""

from __future__ import annotations

import threading

import numpy as np

from t2t_repro.documents.splitter import Splitter
from t2t_repro.saved_model import ALIGNED_SIGNATURE, WrongInput
from t2t_repro.serving.cancellation import Cancelled
from t2t_repro.serving.model import Input, marked
from t2t_repro.task import task_of
from t2t_repro.text.markup import MarkedText

STRINGS = Input("inputs", "string", batched=True)
TARGETS = Input("targets", "string", batched=True)
OPTIONS = {
    "beam_size": Input("beam_size", "int32", batched=False, either=True, default=4),
    "alpha": Input("alpha", "float32", batched=False, either=True, default=0.6),
    "extra_length": Input("extra_length", "int32", batched=False, either=True, default=50),
    "n_best": Input("n_best", "int32", batched=False, either=True, default=1),
    "scalar": Input("scalar", "int32", batched=False, default=1),  # as older exports have options
}


class Capitals:
    """A stand-in for `ServedModel`. Records the rows of each call; waits while `gate` is not set."""

    version, path, card, task = 3, "E/3", {"problem": {"name": "capitals"}}, task_of("bleu")
    metadata = {"serving_default": {"method_name": "tensorflow/serving/predict"}}
    signatures = {
        "serving_default": {"inputs": STRINGS},
        "translate": {"inputs": STRINGS, **OPTIONS},
        "score": {"inputs": STRINGS, "targets": TARGETS},
    }
    has_splitter = True

    def __init__(self):
        self.calls, self.gate = [], threading.Event()
        self.gate.set()
        self.is_deaf = False  # to cancellation

    def splitter(self, language=None):
        return Splitter(language or "en", 1_024)

    def run(self, signature, inputs, cancellation):
        texts = inputs["inputs"]
        self.calls.append((signature, len(texts)))
        while not self.gate.wait(0.01):
            if cancellation.is_cancelled and not self.is_deaf:
                raise Cancelled
        if b"large" in texts:
            return {"outputs": np.array([b"x" * 100_000 for _ in texts], object)}
        if b"defect" in texts:
            raise RuntimeError("the secret inside")
        if np.max(inputs.get("beam_size", 1), initial=1) > 64:
            raise WrongInput("beam_size must be from 1 to 64, got 65")
        if signature == "score":
            widest = max(map(len, texts))
            each = np.array([[-0.1] * len(text) + [0] * (widest - len(text)) for text in texts], np.float32)
            return {"log_probabilities": each[:, 0], "token_log_probabilities": each}
        most = int(np.max(inputs.get("n_best", 1), initial=1))
        if most > 1:  # the same text, the text in small letters, and then nothing
            found = [[text.upper(), text.upper() + b" ", text.lower(), *[b""] * most][:most] for text in texts]
            scores = [[-len(text) / 10, -len(text), -len(text) - 0.5, *[-np.inf] * most][:most] for text in texts]
            return {"outputs": np.array(found, object), "scores": np.array(scores, np.float32)}
        scores = np.array([-len(text) / 10 if text else -np.inf for text in texts], np.float32)
        return {"outputs": np.array([text.upper() for text in texts], object), "scores": scores}


class AlignedCapitals(Capitals):
    """A stand-in for an export that aligns words: word n with word n. Words with an x have the probability 0.25.

    Its languages are English and German.
    """

    card = {"problem": {"name": "capitals", "source_language": "en", "target_language": "de", "example": "an example"}}
    signatures = Capitals.signatures | {ALIGNED_SIGNATURE: Capitals.signatures["translate"]}

    def __init__(self):
        super().__init__()
        self.glossaries = []

    def run(self, signature, inputs, cancellation):
        if "markup" in inputs:
            return self._marked(signature, inputs, cancellation)
        found = super().run(signature, inputs, cancellation)
        if "glossary" in inputs:
            self.glossaries.append(inputs["glossary"].item())
        if signature == ALIGNED_SIGNATURE:
            found = {name: values.reshape(len(values), -1) for name, values in found.items()}
            lines = [[text.decode().split() for text in texts] for texts in found["outputs"]]
            own = {
                "alignments": [[" ".join(f"{n}-{n}" for n, _ in enumerate(words)) for words in row] for row in lines],
                "word_confidences": [
                    [" ".join("0.2500" if "x" in word.lower() else "0.9000" for word in words) for words in row]
                    for row in lines
                ],
            }
            found["num_tokens"] = np.array([[len(words) for words in row] for row in lines], np.int32)
            found |= {
                name: np.array([[text.encode() for text in row] for row in rows], object) for name, rows in own.items()
            }
            found["confidences"] = np.full(found["scores"].shape, 0.5, np.float32)
        return found

    def _marked(self, signature, inputs, cancellation):
        """Returns the capitals of the texts without markup, with the markup of the texts."""
        lines = [MarkedText(text.decode()) for text in inputs["inputs"]]
        texts = np.array([line.text.encode() for line in lines], object)
        if signature == ALIGNED_SIGNATURE:
            plain = {name: value for name, value in inputs.items() if name != "markup"}
            return marked(lines, self.run(signature, plain | {"inputs": texts}, cancellation), signature)
        found = super().run(signature, {"n_best": 1, **inputs, "inputs": texts}, cancellation)
        rows = found["outputs"].reshape(len(lines), -1)
        outputs = [
            [line.restored(text.decode(), [(n, n) for n, _ in enumerate(text.split())]).encode() for text in row]
            for line, row in zip(lines, rows, strict=True)
        ]
        return found | {"outputs": np.array(outputs, object).reshape(found["outputs"].shape)}
