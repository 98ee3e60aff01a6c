"""JoeyNMT's own search, all sentences in one batch. Its weights are its own, the work is the same. Mode: float32, or
bfloat16, which is `torch.autocast`.

It keeps nothing of earlier steps: each step decodes the whole prefix again, and projects all of it onto the vocabulary.
So it decodes no text, whose sentences may be long.
"""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import torch  # noqa: E402
from joeynmt.batch import Batch  # noqa: E402
from joeynmt.search import search  # noqa: E402

from benchmarks.decode_workload import ALPHA, ONE_LENGTH, TARGET_TOKENS  # noqa: E402
from benchmarks.workers import joeynmt_model  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    torch.manual_seed(1)
    model = joeynmt_model.paper_model(shape).eval()
    sources = [torch.tensor(case.sources(shape.vocab_size)) for case in ONE_LENGTH]
    autocast = {"device_type": "cpu", "dtype": torch.bfloat16, "enabled": mode == "bfloat16"}

    def decode(index: int) -> float:
        batch = Batch(
            src=sources[index],
            src_length=torch.full([len(sources[index])], sources[index].shape[1]),
            src_prompt_mask=None,
            trg=None,
            trg_prompt_mask=None,
            indices=torch.arange(len(sources[index])),
            device=torch.device("cpu"),
            pad_index=joeynmt_model.PAD,
            eos_index=joeynmt_model.END,
        )
        lengths = {"max_output_length": TARGET_TOKENS, "min_output_length": TARGET_TOKENS}
        found, scores, _ = search(
            model,
            batch,
            beam_size=ONE_LENGTH[index].beam_size,
            beam_alpha=ALPHA,
            return_prob="hyp",
            autocast=autocast,
            **lengths,
        )
        if found.shape != (len(sources[index]), TARGET_TOKENS):
            raise ValueError(f"translations of shape {found.shape}, not of {TARGET_TOKENS} tokens: not the same work")
        return float(scores.sum())

    protocol.serve(decode, ONE_LENGTH, imported)


if __name__ == "__main__":
    main()
