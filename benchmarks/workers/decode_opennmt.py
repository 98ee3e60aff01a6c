"""OpenNMT-tf in float32, as its `infer` runs it: a graph for a beam. Its weights are its own, the work is the same.

It decodes no text: the length of its translations is part of its graph.
"""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import tensorflow as tf  # noqa: E402

from benchmarks.decode_workload import ALPHA, ONE_LENGTH, TARGET_TOKENS  # noqa: E402
from benchmarks.workers import opennmt_model  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    model = opennmt_model.paper_model(shape)
    lengths = {"minimum_decoding_length": TARGET_TOKENS, "maximum_decoding_length": TARGET_TOKENS}
    opennmt_model.initialize(model, shape, {"length_penalty": ALPHA, **lengths})
    model.create_variables()
    sources = [tf.constant(case.sources(shape.vocab_size)) for case in ONE_LENGTH]
    graphs = {}

    def graph(beam_size: int) -> tf.types.experimental.GenericFunction:
        if beam_size not in graphs:
            model.params["beam_width"] = beam_size  # read when the graph is made, in the first call

            @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
            def search(ids: tf.Tensor) -> dict[str, tf.Tensor]:
                _, predictions = model({"ids": ids, "length": tf.fill([tf.shape(ids)[0]], tf.shape(ids)[1])})
                return {name: predictions[name] for name in ("log_probs", "length")}

            graphs[beam_size] = search.get_concrete_function()
        return graphs[beam_size]

    def decode(index: int) -> float:
        found = graph(ONE_LENGTH[index].beam_size)(sources[index])
        if set(found["length"].numpy().reshape(-1).tolist()) != {TARGET_TOKENS}:
            raise ValueError(
                f"translations of {found['length'].numpy()} tokens, not {TARGET_TOKENS}: not the same work"
            )
        return float(found["log_probs"][0, 0])

    protocol.serve(decode, ONE_LENGTH, imported)


if __name__ == "__main__":
    main()
