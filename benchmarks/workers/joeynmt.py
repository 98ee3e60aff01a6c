"""JoeyNMT with its own model and loss, called as its `TrainManager` does. Mode: float32, or bfloat16, which is
`torch.autocast`; JoeyNMT itself allows that, in float16, on a GPU alone."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, path, mode = protocol.arguments()
protocol.quiet_output()

import torch  # noqa: E402

from benchmarks import batches, shapes  # noqa: E402
from benchmarks.workers import joeynmt_model  # noqa: E402


def arguments(part: batches.Part) -> dict[str, torch.Tensor]:
    """Returns what JoeyNMT's `Batch` holds."""
    source, target = (torch.from_numpy(ids).long() for ids in part)
    source, target = (torch.where(ids == 0, joeynmt_model.PAD, ids) for ids in (source, target))
    return {
        "src": source,
        "src_length": (source != joeynmt_model.PAD).sum(1),
        "src_mask": (source != joeynmt_model.PAD)[:, None],
        "trg": target,
        "trg_input": torch.nn.functional.pad(target, (1, 0), value=joeynmt_model.BEGIN)[:, :-1],
        "trg_mask": (target != joeynmt_model.PAD)[:, None],
    }


def main() -> None:
    torch.manual_seed(1)
    updates = [[arguments(part) for part in parts] for parts in batches.load(path)]
    tokens = [sum(int(part["trg_mask"].sum()) for part in parts) for parts in updates]
    model = joeynmt_model.paper_model(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), shapes.LEARNING_RATE, shapes.BETAS, shapes.EPSILON)

    def update(index: int) -> float:
        total = 0.0
        for part in updates[index]:
            with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bfloat16"):
                loss, *_ = model(return_type="loss", **part)
            loss /= tokens[index]
            loss.backward()
            total += loss.item()
        optimizer.step()
        model.zero_grad()
        return total

    protocol.serve(update, updates)


if __name__ == "__main__":
    main()
