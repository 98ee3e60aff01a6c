"""PyTorch's own `nn.Transformer` with what its users put around it: embedding, positions, loss, Adam.

Mode, words joined by "+", one of the first two and any of the others:

    float32, bfloat16   the latter is `torch.autocast`
    compile             `torch.compile`, with dynamic shapes; needs a C++ compiler
    shipped             dropout as `nn.Transformer` has it, on attention weights and inside the feed-forward network too

Without the last it is given the paper's model, the same as everyone else's, which is less work.
"""

from __future__ import annotations

import contextlib
import math

from benchmarks.workers import protocol

shape, path, mode = protocol.arguments()
protocol.quiet_output()

import torch  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks import batches, shapes  # noqa: E402

LONGEST = batches.LONGEST


class Translator(nn.Module):
    def __init__(self, shipped: bool):
        super().__init__()
        sizes = (shape.d_model, shape.num_heads, shape.num_layers, shape.num_layers, shape.d_ff, shapes.DROPOUT)
        self.transformer = nn.Transformer(*sizes, batch_first=True)
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.dropout = nn.Dropout(shapes.DROPOUT)
        rates = torch.exp(torch.arange(0, shape.d_model, 2) * (-math.log(10_000) / shape.d_model))
        angles = torch.arange(LONGEST)[:, None] * rates
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))
        if not shipped:
            for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
                layer.dropout.p = 0.0  # the one inside the feed-forward network
            for module in self.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scaled = self.embedding(ids) * math.sqrt(shape.d_model)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the smoothed loss, summed over the real target tokens."""
        shifted, padding = nn.functional.pad(target, (1, 0))[:, :-1], source == 0
        states = self.transformer(
            self.embed(source),
            self.embed(shifted),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = nn.functional.linear(states, self.embedding.weight)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(),
            target.flatten(),
            ignore_index=0,
            label_smoothing=shapes.LABEL_SMOOTHING,
            reduction="sum",
        )


def main() -> None:
    words = set(mode.split("+"))
    torch.manual_seed(1)
    updates = [[tuple(torch.from_numpy(ids).long() for ids in part) for part in parts] for parts in batches.load(path)]
    tokens = [sum(int((target != 0).sum()) for _, target in parts) for parts in updates]
    model = Translator("shipped" in words)
    forward = torch.compile(model, dynamic=True) if "compile" in words else model
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, shapes.LEARNING_RATE, shapes.BETAS, shapes.EPSILON, fused=True)

    def update(index: int) -> float:
        optimizer.zero_grad()
        total = 0.0
        for source, target in updates[index]:
            with torch.autocast("cpu", torch.bfloat16) if "bfloat16" in words else contextlib.nullcontext():
                loss = forward(source, target) / tokens[index]
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        return total

    protocol.serve(update, updates)


if __name__ == "__main__":
    main()
