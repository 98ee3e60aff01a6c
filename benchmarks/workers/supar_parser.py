"""Trains supar's CRF parser and parses with it, in supar's environment: for `benchmarks.chart_parser`.

The first argument is the JSON file of a `benchmarks.chart_parser.Job`. The model, the loss, decoding
and the batches are supar's; the loop over epochs is here, because supar saves only its best epoch and so loses the
epochs after it when it is stopped. `supar_lstm` makes a step faster and changes no result but by rounding.

    FOLDER/last.pt        weights, optimizer, random state and record after the last epoch
    FOLDER/best.pt        weights of the best epoch
    FOLDER/epochs.jsonl   one line per epoch
    FOLDER/parsed.trees   the dev sentences, parsed by the best epoch; written last
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from supar.parsers.const import CRFConstituencyParser
from supar.utils.data import Dataset
from torch.optim import Adam
from torch.optim.lr_scheduler import ExponentialLR

from benchmarks.workers import supar_lstm

# Zhang, Zhou and Li 2020, "Fast and Accurate Neural CRF Constituency Parsing", and the defaults of supar 1.1.4
RECIPE: dict[str, Any] = {"encoder": "lstm", "feat": ["char"], "embed": None, "unk": None, "min_freq": 2, "fix_len": 20}
LEARNING_RATE, BETAS, EPSILON, DECAY, DECAY_STEPS, CLIP = 2e-3, (0.9, 0.9), 1e-12, 0.75, 5_000, 5.0
EVALUATION = {  # what EVALB leaves out
    "delete": {"TOP", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!", ""},
    "equal": {"ADVP": "PRT"},
}


def write(state: dict[str, Any], path: Path) -> None:
    """Writes a file of torch atomically."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


class Training:
    """Training of one parser in `folder`, which continues after the last complete epoch."""

    def __init__(self, job: dict[str, Any]):
        self.job, self.folder = job, Path(job["folder"])
        torch.manual_seed(job["seed"])
        torch.set_num_threads(job["threads"])
        update = {"update_steps": job["micro_batches"], "clip": CLIP, "mbr": True, "prob": False, **EVALUATION}
        sizes = {name: job[name] for name in ("n_lstm_hidden", "n_lstm_layers")}
        self.parser = CRFConstituencyParser.build(
            str(self.folder / "unused"), train=self._file("train"), build=True, **RECIPE, **sizes, **update
        )
        size = job["batch_words"] // job["micro_batches"]
        transform = self.parser.transform
        self.train = Dataset(transform, self._file("train")).build(size, job["buckets"], True)
        self.dev = Dataset(transform, self._file("dev")).build(size, job["buckets"])
        parameters = self.parser.model.parameters()
        self.parser.optimizer = Adam(parameters, LEARNING_RATE, BETAS, EPSILON)
        self.parser.scheduler = ExponentialLR(self.parser.optimizer, DECAY ** (1 / DECAY_STEPS))
        self.record: dict[str, Any] = {"epoch": 0, "best_epoch": 0, "best_f1": -1.0, "seconds": 0.0}
        if (self.folder / "last.pt").exists():
            self._resume()

    def run(self) -> None:
        """Trains until no epoch of the last `patience` was the best one, or for `epochs`."""
        record, job = self.record, self.job
        while record["epoch"] < job["epochs"] and record["epoch"] - record["best_epoch"] < job["patience"]:
            start = time.process_time()
            self.parser.optimizer.zero_grad()  # of micro-batches after the last step, which a stop would lose
            self.parser._train(self.train.loader)
            loss, metric = self.parser._evaluate(self.dev.loader)
            record["epoch"] += 1
            record["seconds"] += time.process_time() - start
            is_best = metric.score > record["best_f1"]
            if is_best:
                record |= {"best_epoch": record["epoch"], "best_f1": metric.score}
                write(self.parser.model.state_dict(), self.folder / "best.pt")
            write(self._state(), self.folder / "last.pt")
            line = {"epoch": record["epoch"], "dev_loss": loss, "dev_f1": 100 * metric.score}
            line |= {"processor_seconds": record["seconds"], "best": is_best}
            with open(self.folder / "epochs.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)

    def predict(self) -> None:
        """Writes the trees of the best epoch for the dev sentences, in their order."""
        parser = self.parser
        parser.model.load_state_dict(torch.load(self.folder / "best.pt", weights_only=True))
        parser.transform.eval()
        size = self.job["batch_words"] // self.job["micro_batches"]
        dataset = Dataset(parser.transform, self._file("dev")).build(size, self.job["buckets"])
        dataset.trees = parser._predict(dataset.loader)["trees"]
        lines = [" ".join(tree.pformat(1 << 30).split()) for tree in dataset.trees]
        temporary = self.folder / "parsed.tmp"
        temporary.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        os.replace(temporary, self._file("parsed"))

    def _file(self, name: str) -> str:
        return str(self.folder / f"{name}.trees")

    def _state(self) -> dict[str, Any]:
        parser = self.parser
        return {
            "model": parser.model.state_dict(),
            "optimizer": parser.optimizer.state_dict(),
            "scheduler": parser.scheduler.state_dict(),
            "random": torch.get_rng_state(),
            "order": self.train.loader.batch_sampler.epoch,
            "record": self.record,
        }

    def _resume(self) -> None:
        state = torch.load(self.folder / "last.pt", weights_only=True)
        parser, self.record = self.parser, state["record"]
        parser.model.load_state_dict(state["model"])
        parser.optimizer.load_state_dict(state["optimizer"])
        parser.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])
        self.train.loader.batch_sampler.epoch = state["order"]
        print(f"continues after epoch {self.record['epoch']}", flush=True)


if __name__ == "__main__":
    supar_lstm.install()
    training = Training(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    training.run()
    training.predict()
