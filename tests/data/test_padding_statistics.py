"""Padding statistics against counts calculated manually."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.tiny_model import PROBLEM

from t2t_repro.data.padding_statistics import BOUNDS, counts_by_width, table
from t2t_repro.data.shards import example, write_shard


def shard(folder: Path, lengths: list[tuple[int, int]]) -> list[str]:
    path = str(folder / "train-00000-of-00001.tfrecord")
    write_shard(path, (example([5] * source, [6] * target) for source, target in lengths))
    return [path]


def test_equal_lengths_fill_their_parts():
    counts = counts_by_width(
        np.array([[[10, 10, 8], [10, 10, 8]], [[5, 10, 8], [0, 0, 0]]]),
        np.array([[[100, 80], [100, 80]], [[50, 40], [0, 0]]]),
    )
    assert counts[BOUNDS.index(16)].tolist() == [3, 25, 250, 250]
    assert counts.sum(axis=0).tolist() == [3, 25, 250, 250]


def test_padding_and_unused_budget_are_counted(tmp_path: Path):
    """Two pairs in one part of 30 positions: the target is the longer side, 12 wide, with 12 + 9 real tokens."""
    shown = table(shard(tmp_path, [(3, 12), (9, 9)]), batch_tokens=30).splitlines()
    assert shown[0] == "30 tokens per side, in micro-batches of 30; the longer side of each:"
    assert shown[1].split() == ["tokens", "batches", "pairs", "real", "tokens", "of", "the", "budget"]
    assert [row.split() for row in shown[2:]] == [
        ["to", "16", "1", "2", "87.5%", "80.0%"],
        ["all", "1", "2", "87.5%", "80.0%"],
    ]


def test_a_budget_above_int32_is_a_wrong_command_line(program, tmp_path):
    found = program("t2t-datagen", f"--problem={PROBLEM.name}", f"--data_dir={tmp_path}", f"--fill={2**31}")
    assert found.code == 2 and "--fill=2147483648: expected an integer in the range" in found.err


def test_datagen_prints_the_table(program, data: str, registered):
    registered(PROBLEM)
    small = program("t2t-datagen", f"--problem={PROBLEM.name}", f"--data_dir={data}", "--fill=2")
    assert small.code == 1
    assert "does not fit in 2 tokens per part; raise --fill, or lower --max_length" in small.err
    done = program("t2t-datagen", f"--problem={PROBLEM.name}", f"--data_dir={data}", "--fill=512")
    assert done.code == 0
    assert done.out.startswith("512 tokens per side, in micro-batches of 512;")
    parts = sum(int(row.split()[-4]) for row in done.out.splitlines()[2:-1])  # the rows of each width
    assert done.out.splitlines()[-1].split()[:3] == ["all", str(parts), "300"]
