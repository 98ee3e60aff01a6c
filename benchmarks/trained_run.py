"""A trained run for benchmarks that decode with it: their common flags, the loaded run, and its prepared text."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple


class Loaded(NamedTuple):
    """A run, its prepared data and its `Translator`."""

    run: Any
    dataset: Any
    translator: Any

    def ids(self, split: str) -> Iterator[Any]:
        """Yields the source and target ids of each pair of a split."""
        from t2t_repro.data import input_pipeline

        return input_pipeline.pairs(self.dataset.shards(split))

    def pairs(self, split: str, most: int | None = None) -> list[tuple[str, str]]:
        """Returns the first pairs of a split as text."""
        ids = itertools.islice(self.ids(split), most)
        sides = (self.translator.vocabulary.decode(side) for side in zip(*ids, strict=True))
        return list(zip(*sides, strict=True))


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the flags that `load` reads, `--split` and `--rounds`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="run directory")
    parser.add_argument("--data_dir", help="directory of the prepared data, if it has moved since training")
    parser.add_argument("--split", default="test", choices=("validation", "test"), help="default: %(default)s")
    parser.add_argument("--average_checkpoints", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--precision", default="auto", help="of the model (default: the run's)")
    parser.add_argument("--int8", action="store_true", help="the decoder multiplies 8-bit integers")
    parser.add_argument("--rounds", type=int, default=5, help="timed (default: %(default)s)")
    return parser


def load(arguments: argparse.Namespace) -> Loaded:
    """Loads TensorFlow and the run. It decodes a batch on each core, as t2t-decoder does."""
    from t2t_repro.cli import launcher

    launcher.load_tensorflow()
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.inference.translator import Translator
    from t2t_repro.run import Run
    from t2t_repro.training.parallel import set_threads

    set_threads(1)
    run = Run.open(arguments.output_dir)
    dataset = Dataset.of_run(run, arguments.data_dir)
    options = arguments.average_checkpoints, arguments.int8, arguments.precision
    return Loaded(run, dataset, Translator.from_run(run.directory, *options))
