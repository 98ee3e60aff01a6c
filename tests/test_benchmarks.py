"""Tests the arithmetic and command lines of the benchmarks, not their measurements."""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    alignments,
    batches,
    bpe_dropout,
    compare,
    decode,
    decode_workload,
    dry_run,
    feeding,
    glossary,
    matmul_rate,
    news_text,
    noise,
    pictures,
    pipeline,
    prepare,
    scaling,
    shortlist,
    small_data,
    startup,
    stopping,
    train,
    wmt14_archives,
    wmt14_size,
)
from benchmarks.shapes import SHAPES, update_flops
from t2t_repro.cli import jobs
from t2t_repro.preparation.filtering import alignment
from t2t_repro.registry import PROBLEMS
from t2t_repro.run import Run

CHECKOUT = Path(__file__).resolve().parent.parent
PROGRAMS = [
    file.stem for file in sorted((CHECKOUT / "benchmarks").glob("*.py")) if "def main" in file.read_text("utf-8")
]


def test_help_names_the_command_and_imports_nothing_heavy() -> None:
    code = (
        "import contextlib, importlib, sys\n"
        "sys.argv[1:] = ['--help']\n"
        f"for name in {PROGRAMS}:\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        importlib.import_module(f'benchmarks.{name}').main()\n"
        "print('heavy:', sorted({'tensorflow', 'keras', 'torch'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    assert all(f"    python -m benchmarks.{name}" in shown for name in PROGRAMS)
    assert shown.endswith("heavy: []\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models=basic"], "unknown model basic; known: base, small"),
        (["--add=marian:fast"], "unknown worker marian; known: ours, opennmt"),
    ],
)
def test_train_rejects_unknown_names(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    with pytest.raises(SystemExit, match="2"):
        train.main()
    assert message in capsys.readouterr().err


def test_train_names_the_products_that_ran() -> None:
    updates, seconds = batches.make(SHAPES["smoke"], 1, 1), [2.0, 2.0]
    results = {
        name: {"seconds": seconds, "peak_bytes": 1, "loss": 1.0} for name in ("ours float32", str(train.PRODUCTS[1]))
    }
    header = next(line for line in train.table(SHAPES["smoke"], updates, results).splitlines() if "contestant" in line)
    assert "float32 product rate" in header and "bfloat16" not in header


def test_batches_are_full_reproducible_and_within_their_budget(tmp_path: Path) -> None:
    shape = SHAPES["base"]
    made = batches.make(shape, updates=8)
    assert [len(update) for update in made] == [1] * 8
    for update in made:
        for source, target in update:
            assert len(source) == len(target)
            assert max(source.size, target.size) <= shape.batch_tokens
            assert source.dtype == target.dtype == np.int32
            assert source.max() < shape.vocab_size and source[source > 0].min() >= batches.FIRST_ID
            assert (source[:, 0] > 0).all() and (target[:, 0] > 0).all()
    assert batches.fill(made) > 0.9
    batches.save(str(tmp_path / "made.npz"), made)
    for update, again in zip(made, batches.load(str(tmp_path / "made.npz")), strict=True):
        for part, same in zip(update, again, strict=True):
            np.testing.assert_array_equal(part[0], same[0])
            np.testing.assert_array_equal(part[1], same[1])


def test_papers_step_has_8_parts() -> None:
    (update,) = batches.make(SHAPES["base_25000"], updates=1)
    assert len(update) == 8
    assert 23_000 < sum(source.size for source, _ in update) <= 25_000


def test_lengths_are_as_declared() -> None:
    lengths = batches.random_lengths(100_000, np.random.default_rng(0))
    np.testing.assert_allclose(lengths.mean(axis=0), 27, rtol=0.01)
    assert np.corrcoef(np.log(lengths.T))[0, 1] == pytest.approx(0.9, abs=0.01)


def test_too_many_steps_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"updates must be between 1 and .* for base, got 1000000"):
        batches.make(SHAPES["base"], updates=1_000_000)


def test_flops_are_6_per_weight_and_token_plus_attention() -> None:
    shape = SHAPES["base"]  # d_model 512, d_ff 2048, N 6, V 32,000
    attention, feed_forward = 512 * 512, 2 * 512 * 2048
    source = 6 * (4 * attention + feed_forward) + 6 * 2 * attention
    target = 6 * (6 * attention + feed_forward) + 32_000 * 512
    assert update_flops(shape, [(1, 0)]) == 6 * source + 12 * 6 * 512
    assert update_flops(shape, [(0, 1)]) == 6 * target + 12 * 6 * 512
    both = 6 * (10 * source + 20 * target) + 12 * 6 * 512 * (10**2 + 20**2 + 10 * 20)
    assert update_flops(shape, [(10, 20)]) == both
    assert update_flops(shape, [(10, 20)] * 3) == 3 * both


def test_products_are_those_of_one_step() -> None:
    shape = SHAPES["base"]
    weights = update_flops(shape, [(1, 1)] * shape.batch_tokens) - 3 * 12 * 6 * 512 * shape.batch_tokens
    assert sum(map(matmul_rate.flops, matmul_rate.update_products(shape))) == pytest.approx(weights, rel=1e-3)


def test_point_survives_str_and_differs_in_one_size() -> None:
    for axis, points in scaling.AXES.items():
        for point in points:
            assert scaling.Point.read(point.mode) == point
            changed = {name for name, value in vars(point).items() if value != getattr(scaling.CENTER, name)}
            assert changed <= {axis} | ({"batch_tokens"} if axis == "replicas" else set())
            assert point.shape.d_k == 64 and point.shape.batch_tokens % point.length == 0


def test_sources_are_the_same_for_everyone_and_of_one_length() -> None:
    for case in decode_workload.ONE_LENGTH:
        sources = case.sources(64)
        assert sources == case.sources(64) and len(sources) == case.sentences
        for ids in sources:
            assert len(ids) == decode_workload.SOURCE_TOKENS and ids.index(decode_workload.EOS) == len(ids) - 1
            assert decode_workload.FIRST_WORD <= min(ids[:-1]) and max(ids) < 64
    assert len(set(decode_workload.pieces(64))) == 64


def test_text_has_other_lengths_in_each_turn_and_every_sentence_is_in_one_batch() -> None:
    (case,) = (case for case in decode_workload.CASES if case.is_text)
    first, second = (decode_workload.batches_of_text(case.sources(64, turn)) for turn in range(2))
    assert first == decode_workload.batches_of_text(case.sources(64)) and first != second
    assert sorted(source for batch in first for source in batch) == sorted(case.sources(64))
    for batch in first:
        lengths = [len(source) for source in batch]
        assert lengths == sorted(lengths, reverse=True) and len(batch) * lengths[0] <= decode_workload.BATCH_TOKENS
    shapes = [{(len(batch), len(batch[0])) for batch in turn} for turn in (first, second)]
    assert len(shapes[0]) > 8 and len(shapes[0] & shapes[1]) < 3
    lengths = [len(source) for turn in range(20) for source in case.sources(64, turn)]
    assert sum(lengths) / len(lengths) == pytest.approx(decode_workload.MEAN_LENGTH, rel=0.03)


def test_decode_rejects_unknown_cases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["decode", "--cases=beam 5"])
    with pytest.raises(SystemExit, match="2"):
        decode.main()
    assert "no case matches 'beam 5'; there are: beam 4, 64 sentences" in capsys.readouterr().err


def test_contestants_decode_among_the_same_subwords() -> None:
    ids = decode_workload.shortlist(32_000)
    assert len(ids) == decode_workload.SHORTLIST and ids == decode_workload.shortlist(32_000) == sorted(set(ids))
    assert ids[:5] != list(range(5)) and set(range(decode_workload.FIRST_WORD)) < set(ids) <= set(range(32_000))
    assert len(decode_workload.shortlist(64)) == 32
    modes = [each.mode for each in decode.OURS + decode.PEERS if "shortlist" in each.mode]
    assert modes == [*(f"{mode}, shortlist" for mode in decode.MODES), "float32, shortlist", "int8, shortlist"]


def test_shortlist_compares_speed_and_bleu_with_those_of_all_subwords() -> None:
    times = {
        "without": {"seconds": [4.0, 6.0, 2.0], "cpu_seconds": [8.0, 8.0, 8.0]},
        "9x2": {"seconds": [2.0, 2.0, 2.0], "cpu_seconds": [4.0, 8.0, 2.0]},
    }
    rows = {
        "without": {"covered": 1.0, "subwords": 6000, "bleu": 30.5},
        "9x2": {"covered": 0.9512, "subwords": 1024.4, "bleu": 30.25},
    }
    assert shortlist.table(rows, times).splitlines()[2:] == [
        "| without | 100.00% | 6,000 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | 30.50 | +0.00 |",
        "| 9x2 | 95.12% | 1,024 | 2.00 (1.00 to 3.00) | 0.50 (0.25 to 1.00) | 30.25 | -0.25 |",
    ]


@pytest.mark.slow
def test_shortlist_measures_a_run(
    trained: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--output_dir={trained.directory}", "--lists=1x1,40x9", "--rounds=1", "--sentences=5"]
    monkeypatch.setattr(sys, "argv", ["shortlist", *given])
    shortlist.main()
    *_, without, small, large = (line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines())
    assert [row[0].strip() for row in (without, small, large)] == ["without", "1x1", "40x9"]
    assert float(small[1].strip(" %")) < float(large[1].strip(" %"))
    assert all(float(row[3].split()[0]) > 0 for row in (small, large))


@pytest.mark.parametrize("text", ["1000", "0x5", "10x", "1000x20,"])
def test_shortlist_rejects_other_lists(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shortlist", "--output_dir=run", f"--lists={text}"])
    with pytest.raises(SystemExit, match="2"):
        shortlist.main()
    assert "expected lists such as 1000x20, separated by commas; got" in capsys.readouterr().err


def test_alignments_agree_by_sure_and_possible_links() -> None:
    """Two of three links are possible, and one of two sure links is found: AER is 1 - (1 + 2) / (3 + 2)."""
    reference = alignments.Reference(alignments.links("0-0 1-1 2-1"), alignments.links("0-0 1-1 3-2"))
    assert reference.sure == {(0, 0), (1, 1)} and len(reference.possible) == 4
    row = alignments.agreement(
        [alignments.links("0-0 3-2 5-5"), set()], [reference, alignments.Reference(set(), set())]
    )
    assert row == pytest.approx((2 / 3, 1 / 2, 1 - 3 / 5))
    assert alignments.table({"run": row}).splitlines()[2:] == ["| run | 66.7% | 50.0% | 0.400 |"]
    assert alignments.diagonal(2, 4) == {(0, 0), (0, 1), (1, 2), (1, 3)} and alignments.diagonal(0, 1) == set()
    assert alignments.agreement([], []) == (0, 0, 1)


def test_alignments_name_the_missing_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["alignments", "--output_dir=run", f"--cache={tmp_path}"])
    with pytest.raises(SystemExit, match="^eflomal is not installed; python -m benchmarks.environments eflomal$"):
        alignments.main()


def test_glossary_takes_terms_from_references_and_counts_those_that_appear() -> None:
    pairs = [
        (f"a {adjective} {noun} of {number}", f"ein {german} {other} von {number}")
        for number in range(120)
        for adjective, german in (("yellow", "gelber"), ("purple", "lila"), ("brown", "brauner"))
        for noun, other in (("table", "Tisch"), ("house", "Haus"), ("window", "Fenster"))
    ]
    model = alignment.learn(pairs)
    function = glossary.function_words(["a of " * 9]), {"von"}
    required = glossary.required_of(model, pairs[:2], 1, function)
    terms = {source: [(each.term, each.forms) for each in found] for source, found in required.items()}
    assert list(terms.values()) in (
        [[("yellow", ("gelber",))], [("yellow", ("gelber",))]],
        [[("table", ("Tisch",))], [("house", ("Haus",))]],
    )
    both = glossary.required_of(model, pairs[:2], 2, function)
    assert [sorted(each.term for each in found) for found in both.values()] == [
        ["table", "yellow"],
        ["house", "yellow"],
    ]
    assert glossary.OfSentences(both).required(pairs[0][0]) == both[pairs[0][0]]
    results = {
        "without": {"translations": ["ein gelber Tisch", "Haus"], "bleu": 20.0, "seconds": [1.0], "cpu_seconds": [2.0]},
        "with terms": {
            "translations": ["ein gelber Tisch", "gelber Haus"],
            "bleu": 20.5,
            "seconds": [2.0],
            "cpu_seconds": [3.0],
        },
    }
    assert glossary.table(list(both.values()), results).splitlines()[2:] == [
        "| without | 75.00% |  | 20.00 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) |",
        "| with terms | 100.00% | 50.00% | 20.50 | 0.50 (0.50 to 0.50) | 1.50 (1.50 to 1.50) |",
    ]


def test_projection_divides_the_encoding_alone_and_never_below_the_reading() -> None:
    """Microseconds per pair: 1 to read, 20 to learn from, 100 to encode on two processes, 3 to write."""
    rates = {"text": 1e-6, "vocabulary": 20e-6, "encoding": 100e-6, "writing": 3e-6}
    rows = [{"pairs": size} | {part: size * rate for part, rate in rates.items()} for size in (100_000, 200_000)]
    learnt = 2e6 * 20e-6 + 2 * 2e6 * 1e-6  # of 4 million pairs, all are read twice and 2 million are learned from
    for cores, encoding in ((2, 100e-6), (16, 12.5e-6), (1600, 1e-6)):
        expected = 4e6 * 1e-6 + learnt + 4e6 * (encoding + 3e-6)
        assert prepare.projection(rows, 4_000_000, 2, cores, 2_000_000) == pytest.approx(expected)


def test_text_of_any_size_has_no_line_twice(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\nzwei\n")
    given = str(tmp_path / "a"), str(tmp_path / "b")
    source, target = prepare.write_text(str(tmp_path), 5, *given, new_words=0)
    assert Path(source).read_text() == "one\ntwo\n1 one\n1 two\n2 one\n"
    assert Path(target).read_text().splitlines()[-1] == "2 eins"
    source, _ = prepare.write_text(str(tmp_path), 5, *given, new_words=1)
    assert Path(source).read_text().splitlines()[:2] == ["one", "two"]
    assert {line.split()[1] for line in Path(source).read_text().splitlines()[2:]} <= {"onne", "onwo", "twne", "twwo"}
    made = list(prepare.made_up(3))
    assert made == list(prepare.made_up(3)) and all(len(text.split()) > 3 for pair in made for text in pair)


def distinct(blocks: list[bytes]) -> tuple[int, int]:
    """Returns the number of words, and of different ones."""
    words = [line.split(b" ") for block in blocks for line in block.removesuffix(b"\n").split(b"\n")]
    return sum(map(len, words)), len({word for line in words for word in line})


def test_made_news_has_the_lengths_of_the_text_and_its_growth_of_words() -> None:
    """Ten times as many words have 10^b times as many different ones, b the exponent of the text (Heaps' law)."""
    pairs = [(source, " ".join(source.split(" ")[::-2])) for source, _ in prepare.made_up(5_000)]
    made = list(news_text.NewsText(pairs).blocks(50_000, seed=3))
    for side, blocks in enumerate(zip(*made, strict=True)):
        lines = [pair[side] for pair in pairs]
        words, exponent = news_text.heaps(lines)
        number, found = distinct(list(blocks))
        assert sum(block.count(b"\n") for block in blocks) == 50_000 and b"\n\n" not in blocks[0]
        assert number / 50_000 == pytest.approx(words / 5_000, rel=0.03)
        known = len({word for line in lines for word in line.split(" ")})
        assert found == pytest.approx(known * (number / words) ** exponent, rel=0.05) and found > 2 * known
        spread = [np.std([len(line.split()) for line in each]) for each in (lines, blocks[0].decode().splitlines())]
        assert spread[1] == pytest.approx(spread[0], rel=0.1)


def test_made_news_depends_on_its_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news_text, "BLOCK_PAIRS", 30)
    text = news_text.NewsText(list(prepare.made_up(50)))
    first = list(text.blocks(100, seed=1))
    assert [source.count(b"\n") for source, _ in first] == [30, 30, 30, 10]
    assert first == list(text.blocks(100, seed=1)) != list(text.blocks(100, seed=2))
    lines = [line for source, _ in first for line in source.splitlines()]
    assert len(set(lines)) == 100


@pytest.mark.parametrize("name", wmt14_size.PROBLEMS)
def test_wmt14_of_another_size_keeps_the_proportions(name: str) -> None:
    registered = PROBLEMS[name]
    pairs = wmt14_archives.train_pairs(registered)
    assert pairs == {"translate_ende_wmt14": 4_520_620, "translate_enfr_wmt14": 40_842_333}[name]
    assert wmt14_archives.of_size(registered, pairs) == registered
    smaller = wmt14_archives.of_size(registered, 10_001)
    assert wmt14_archives.train_pairs(smaller) == 10_001
    for (corpus, lines), (same, known) in zip(smaller.train[0].lines, registered.train[0].lines, strict=True):
        assert corpus == same and lines == (known if "newstest" in corpus else pytest.approx(known / pairs * 10_001, 1))


def wmt14_size_command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for side, lines in zip(("en", "other"), zip(*prepare.made_up(3_000), strict=True), strict=True):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    text = [f"--source={tmp_path}/en", f"--target={tmp_path}/other"]
    command = [sys.executable, "-m", "benchmarks.wmt14_size", str(tmp_path / "here"), *text, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "kill_at"), [(30_000, 0), (70_000, 0.2)], ids=["whole", "killed"])
def test_wmt14_size_is_measured_and_killed_once_if_asked(tmp_path: Path, pairs: int, kill_at: float) -> None:
    result = wmt14_size_command(tmp_path, "--problem=translate_enfr_wmt14", f"--pairs={pairs}", f"--kill_at={kill_at}")
    assert result.returncode == 0, result.stderr
    assert f"{pairs:,} pairs prepared in" in result.stdout and f"; kills: {int(kill_at > 0)}" in result.stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[:1] == "|"]
    phases = {(row[0], row[1]): row for row in rows if row[0] in ("1", "2")}
    named = [[name for each, name in phases if each == attempt] for attempt in "12"]
    if kill_at:
        assert named == [[*PHASES[:4], "encoding until the kill"], [*PHASES[:3], *PHASES[4:]]]
    else:
        assert named == [PHASES, []]
    encoding = phases["2" if kill_at else "1", "encoding"]
    assert float(phases["1", "vocabulary"][3]) > 0 and 100 < float(encoding[4].replace(",", "")) < 3_000
    assert "first " in result.stdout and "of the budget" in result.stdout
    assert not (tmp_path / "here").exists()


PHASES = ["start", "checking and unpacking archives", "reading, filters", "vocabulary", "encoding", "writing shards"]
PHASES += ["validation and test"]


def test_wmt14_size_leaves_other_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "thesis.tex").touch()
    result = wmt14_size_command(tmp_path, "--pairs=50000")
    assert result.stderr == f"expected an empty folder, or one of this command. Received: {tmp_path}/here\n"
    (tmp_path / "here" / "thesis.tex").unlink()
    measurement = wmt14_size.Measurement(
        str(tmp_path / "here"), "translate_ende_wmt14", 70_000, f"{tmp_path}/en", f"{tmp_path}/other", []
    )
    measurement.account.running = wmt14_size.Phase(1, "until a stop", 60.0, 30.0, 10**9)
    measurement.save()
    arguments = measurement.folder, measurement.name, 70_000, measurement.source, measurement.target, []
    assert wmt14_size.Measurement(*arguments).account.phases == [measurement.account.running]
    result = wmt14_size_command(tmp_path, "--pairs=50000")
    assert result.returncode and "has another measurement: {'problem': 'translate_ende_wmt14', 'pairs': '70000'" in (
        result.stderr
    )


def test_processor_seconds_are_of_all_descendants() -> None:
    spin = "import time, sys, subprocess\nwhile time.process_time() < 0.6: pass\n"
    code = spin + "subprocess.run([sys.executable, '-c', sys.argv[1]]) if len(sys.argv) > 1 else print(1, flush=True)\n"
    child = subprocess.Popen(
        [sys.executable, "-c", code, code + "time.sleep(99)"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout and child.stdout.readline() == b"1\n"
    times = list(wmt14_size.processor_seconds(child.pid).values())
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert len(times) == 2 and all(0.55 < seconds < 1.5 for seconds in times)


def test_feeding_counts_the_tokens_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host with half of the replicas takes every step, and a rate that no machine reaches takes too many cores."""
    shards, lengths = (
        pipeline.write_shards(str(tmp_path), 3_000, 100),
        batches.random_lengths(3_000, np.random.default_rng(1)),
    )
    monkeypatch.setattr(feeding, "LAYOUTS", ((4, 2),))
    feeding.report(shards, 10**10)
    shown = capsys.readouterr().out
    assert shown.startswith(f"3,000 pairs, {lengths[:, 1].sum():,} target tokens, ")
    assert shown.count("| 4, of 2 hosts |") == 1 and "within 8" not in shown
    assert re.search(r"10,000,000,000 target tokens/s take [0-9.]+ cores, more than 8\n$", shown)


def test_cores_are_processor_seconds_per_second_of_training() -> None:
    epoch = feeding.Epoch(pairs=40, tokens=1_000, steps=2)
    fed = feeding.Fed(processor=0.004, thread=0.001, wall=5.0, longest_wait=0.0)
    assert feeding.cores(epoch, fed, 500_000) == pytest.approx(2)
    assert feeding.cells(epoch, fed, fed, 500_000)[:4] == ["10,000", "250,000", "200", "0.50 ms"]


def test_dry_run_and_training_are_measured_in_separate_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate runs first. Both get a new run directory, and their result is their last line of output."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(stdout='chatter\n{"seconds": 2.0, "peak_bytes": 4}\n')

    monkeypatch.setattr(dry_run.subprocess, "run", run)
    given = ["--problem=p", "--hparams=h", "--data_dir=d", "--steps=3"]
    assert [dry_run.in_a_process(kind, given) for kind in dry_run.KINDS] == [{"seconds": 2.0, "peak_bytes": 4}] * 2
    for command, kind in zip(commands, ("estimate", "training"), strict=True):
        arguments = dry_run.parser().parse_args(command[3:])
        assert (arguments.kind, arguments.steps) == (kind, 3) and not Path(arguments.output_dir).exists()


def curves(svg: str) -> list[tuple[str, list[float]]]:
    """Returns the color and the coordinates of each line, without the numbers that name clip paths and markers."""
    drawn = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: (#\w+)', svg)
    return [(color, [float(each) for each in re.findall(r"-?\d+\.?\d*", path)]) for path, color in drawn]


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_of_the_documentation_show_its_tables(name: str) -> None:
    """If not, run `python -m benchmarks.pictures`."""
    shown, drawn = (pictures.DOCS / name).read_text("utf-8"), pictures.PICTURES[name]()
    assert re.findall(r"<text[^>]*>([^<]*)<", shown) == re.findall(r"<text[^>]*>([^<]*)<", drawn)
    assert len(curves(drawn)) > 1
    for (color, points), (other, others) in zip(curves(shown), curves(drawn), strict=True):
        assert color == other and points == pytest.approx(others, abs=0.1)


def test_every_svg_of_the_documentation_is_shown_and_drawn_by_a_command() -> None:
    pages = [page.read_text("utf-8") for page in pictures.DOCS.glob("*.md")]
    for picture in pictures.DOCS.glob("*.svg"):
        shown = [page for page in pages if f"]({picture.name})" in page]
        assert picture.name in pictures.PICTURES
        assert shown and all("python -m benchmarks.pictures" in page for page in shown)


def test_tables_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text(
        "text\n\n| a | b | b |\n|---|---|---|\n| 1,000 | -2 | 0.5 (0.4 to 1) |\n\n| c |\n"
    )
    [table] = pictures.table_with("page.md", "a", "b 2")
    assert table == [{"a": "1,000", "b": "-2", "b 2": "0.5 (0.4 to 1)"}]
    assert [pictures.number(cell) for cell in table[0].values()] == [1000, -2, 0.5]
    with pytest.raises(ValueError, match="has no table with the columns x"):
        pictures.table_with("page.md", "x")


def checkout(folder: Path) -> Path:
    """Copies this checkout's library to `folder`."""
    for name in ("t2t_repro", "problems", "hparams", "bin"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "setup.py", folder)
    return folder


def committed(folder: Path) -> None:
    """Makes `folder` a git repository with one commit of all its files."""
    author = ["-c", "user.name=tests", "-c", "user.email=tests@example.invalid"]
    for command in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message=all"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)


def compared(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `benchmarks.compare` of the checkout in `folder` with the smallest model."""
    command = [sys.executable, "-m", "benchmarks.compare", *arguments, "--models=smoke", "--rounds=2", "--updates=1"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


DECODED = ["decode smoke float32, greedy, 32 sentences", "decode smoke float32, beam 4, text of 256 sentences"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("train smoke float32", ["train smoke float32"]),
        ("decode smoke float32, (greedy|beam 4, text)", DECODED),
    ],
    ids=["training", "decoding"],
)
def test_compare_measures_a_revision_with_itself(tmp_path: Path, only: str, expected: list[str]) -> None:
    """Each side runs from a folder of its own, and none of the folders is left."""
    folder = checkout(tmp_path)
    shutil.copytree(CHECKOUT / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    committed(folder)
    result = compared(folder, "HEAD", "HEAD", f"--only={only}")
    assert result.returncode == 0, result.stderr
    rows = [line.split("|")[1:-1] for line in result.stdout.splitlines() if "smoke" in line]
    assert [row[0].strip() for row in rows] == expected
    for _, speed, memory in rows:
        assert 0 < float(speed.split()[0]) and float(memory) == pytest.approx(1, abs=0.3)
    libraries = dict(re.findall(r"(OLD|NEW) \(HEAD\) is warm, with (\S+)", result.stderr))
    assert libraries.keys() == {"OLD", "NEW"} and libraries["OLD"] != libraries["NEW"]
    assert str(CHECKOUT / "t2t_repro") not in libraries.values()
    assert not any(map(os.path.exists, libraries.values()))


def test_compare_reports_a_name_that_the_old_version_lacks(tmp_path: Path) -> None:
    """Only this side's own library lacks it."""
    old = checkout(tmp_path)
    heap = old / "t2t_repro" / "system" / "heap.py"
    heap.write_text(heap.read_text().replace("def one_heap", "def one_heap_only"))
    result = compared(CHECKOUT, str(old), ".", "--only=train smoke float32")
    (line,) = [line for line in result.stderr.splitlines() if "left out" in line]
    assert line.startswith(f"train smoke float32 is left out: OLD ({old}) lacks a name that this checkout's benchmark")
    assert "ImportError: cannot import name 'one_heap'" in line
    assert result.returncode == 1


@pytest.mark.parametrize(("rounds", "seconds", "peak"), [(1, [1.0], 1), (3, [1.0, 1.0, 2.0], 2)])
def test_compare_starts_each_version_first_in_half_of_the_rounds(
    monkeypatch: pytest.MonkeyPatch, rounds: int, seconds: list[float], peak: int
) -> None:
    def measure(versions: Any, contest: Any, arguments: Any, cells: Any, rounds: int) -> Any:
        """Gives each round of a version its place in the order of starts."""
        places = {version.side: place for place, version in enumerate(versions, start=1)}
        times = {name: {side: [float(place)] * rounds for side, place in places.items()} for name in cells}
        return times | {"peak_bytes": places}

    monkeypatch.setattr(compare, "measure", measure)
    versions = [compare.Version(side, ".", CHECKOUT) for side in ("OLD", "NEW")]
    found = compare.measure_both_ways(versions, compare.contests(["smoke"])[0], (), ["cell"], rounds)
    assert found["cell"]["OLD"] == seconds and found["peak_bytes"]["OLD"] == peak
    assert found["cell"]["NEW"] == [3 - each for each in seconds]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-name", "."], "expected a git revision of this repository or the path of a checkout. Received: 'no-"),
        ([".", ".", "--only=beam 5"], "no cell matches 'beam 5'; there are: train small bfloat16, "),
        ([".", ".", "--models=basic"], "unknown model basic; known: base, small"),
    ],
)
def test_compare_rejects_unknown_names(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    with pytest.raises(SystemExit, match="2"):
        compare.main()
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_startup_relates_a_run_with_random_weights_to_the_import() -> None:
    command = [sys.executable, "-m", "benchmarks.startup", "--models=smoke", "--runs=", "--only=t2t-decoder"]
    result = subprocess.run([*command, "--rounds=1"], cwd=CHECKOUT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [line.split("|")[1:-1] for line in result.stdout.splitlines()[-3:] if line]
    assert [row[0].strip() for row in rows] == ["import tensorflow", "t2t-decoder, smoke"]
    for _, *ratios, seconds, cpu_seconds in rows:
        assert all(float(ratio.split()[0]) > 0 for ratio in ratios) and float(seconds) > 0 and float(cpu_seconds) > 0


def test_startup_reports_a_process_that_fails(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r"t2t_decoder --output_dir=.* ended with 1:\nt2t-decoder: '.*' is not a run"
    ):
        startup.timed(startup.processes({"empty": str(tmp_path)})["t2t-decoder, empty"])


def test_startup_ratios_are_medians_of_rounds() -> None:
    times = {startup.ALONE: {"seconds": [1.0, 2.0, 4.0], "cpu_seconds": [1.0, 1.0, 1.0]}}
    times["t2t-decoder, a"] = {"seconds": [2.0, 2.0, 12.0], "cpu_seconds": [1.5, 1.0, 9.0]}
    row = startup.table(times).splitlines()[-1]
    assert row == "| t2t-decoder, a | 2.00 (1.00 to 3.00) | 1.50 (1.00 to 9.00) | 2.00 | 1.50 |"


CAPTIONS = [(f"a number {n} of the captions", f"eine Nummer {n} der Texte") for n in range(600)]


@pytest.mark.parametrize("add", [False, True])
def test_half_of_the_noisy_text_is_damaged_in_three_ways(add: bool) -> None:
    marked = noise.damage(CAPTIONS, seed=1, add=add)
    assert len(marked) == 600 * (1 + add)
    kinds = {kind: [pair for each, pair in marked if each == kind] for kind in ("", *noise.DAMAGES)}
    assert [len(pairs) for pairs in kinds.values()] == ([600, 200, 200, 200] if add else [300, 100, 100, 100])
    assert set(kinds[""]) <= set(CAPTIONS) and len(set(kinds[""])) == len(kinds[""])
    assert all(source == target for source, target in kinds["copied"])
    sources, targets = map(set, zip(*CAPTIONS, strict=True))
    assert all(pair not in CAPTIONS and pair[0] in sources and pair[1] in targets for pair in kinds["misaligned"])
    assert set(kinds["duplicated"]) <= set(kinds[""])
    assert marked == noise.damage(CAPTIONS, seed=1, add=add) != noise.damage(CAPTIONS, seed=2, add=add)


def test_noise_names_the_damage_that_filters_find() -> None:
    marked = noise.damage(CAPTIONS, seed=1)
    assert noise.dropped(marked, ["identical", "duplicate"]) == {"copied": 100, "duplicated": 100}
    assert noise.dropped([("", ("a", "b" * 9)), ("misaligned", ("a", "b" * 8))], ["length_ratio=8"]) == {"": 1}
    assert not noise.dropped([("", ("a", "b")), ("duplicated", ("a", "b"))], [])


def test_stopping_compares_each_choice_with_the_best() -> None:
    scores = {(100,): {"bleu": 20.0}, (200,): {"bleu": 31.25}, (300,): {"bleu": 31.0}, (200, 300): {"bleu": 31.5}}
    chosen = {"validation perplexity": (300,), "validation BLEU": (200,), "mean": (200, 300)}
    lines = stopping.table(scores, chosen, "bleu").splitlines()
    assert lines[3:5] == ["| 200 | 31.25 | best, validation BLEU |", "| 300 | 31.00 | validation perplexity |"]
    assert lines[-3:] == [
        "| validation perplexity | 300 | 31.00 | 0.25 |",
        "| validation BLEU | 200 | 31.25 | 0.00 |",
        "| mean | 200, 300 | 31.50 | -0.25 |",
    ]


@pytest.mark.slow
def test_noise_and_stopping_continue_with_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], one_replica: None
) -> None:
    """The programs run in this process; in others, each would import TensorFlow."""

    def program(name: str, arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with contextlib.redirect_stdout(sys.stderr):
            assert importlib.import_module(f"t2t_repro.bin.{name}").main() == 0

    monkeypatch.setattr(jobs, "program", program)
    for name, pairs in (("train", CAPTIONS), ("val", CAPTIONS[:20]), ("test_2016_flickr", CAPTIONS[20:40])):
        for side, language in enumerate(("en", "de")):
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{pair[side]}\n" for pair in pairs)

    def run(benchmark: ModuleType, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [benchmark.__name__, *arguments])
        benchmark.main()
        return capfd.readouterr().out

    monkeypatch.chdir(CHECKOUT)
    small = [f"--override={name}={size}" for name, size in (("d_model", 16), ("d_ff", 32), ("num_layers", 1))]
    small += ["--override=extra_length=2", "--hparams=tiny", "--vocab_size=400", "--steps=4", "--checkpoint_steps=2"]
    folder = tmp_path / "noise"
    small += [f"--filter={name}" for name in ("identical", "duplicate")]
    given = [f"--text={tmp_path}", f"--folder={folder}", "--rows=clean,filtered", *small]
    shown = run(noise, *given)
    assert "| duplicated | 100 | 100 (100.0%) |" in shown
    assert re.search(r"\n\| clean \| 600 \| .* \| \+0\.00 \|\n\| filtered \| \d+ \|", shown)
    metrics = folder / "runs" / "clean" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    assert run(noise, *given) == shown and metrics.stat().st_mtime_ns == before

    stop = ["--output_dir", str(folder / "runs" / "clean")]
    first, second = run(stopping, *stop), run(stopping, *stop)
    # t2t-trainer scored the last one
    assert first.startswith("ckpt-2: ") and "\nckpt-2, ckpt-4: " in first and first.count("ckpt-") == 3
    assert "ckpt-" not in second
    assert {"validation perplexity", "validation BLEU, mean of 2", "the last"} <= {
        line.split("|")[1].strip() for line in second.splitlines() if "|" in line
    }


def test_bpe_dropout_prints_the_growth_of_the_text(data, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["bpe_dropout", f"--data_dir={data}/animals", "--steps=0", "--rate=0.9"])
    bpe_dropout.main()
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    rates, growth, changed, kept, _ = zip(*rows, strict=True)
    assert rates == ("0.05", "0.1", "0.2", "0.9")
    assert 1 < float(growth[0]) < float(growth[1]) < float(growth[2])
    assert 0 < float(changed[0].rstrip("%")) < float(changed[2].rstrip("%")) <= 100
    assert kept[:2] == ("0.00%", "0.00%")


def scored(step: int, checkpoints: int, bleu: float, **more: bool) -> dict[str, object]:
    names = [f"ckpt-{step - number}" for number in reversed(range(checkpoints))]
    return {"split": "validation", "step": step, "checkpoints": names, "bleu": bleu, "perplexity": bleu / 2, **more}


def test_small_data_compares_rows_with_base() -> None:
    rows = {
        "base": (scored(90, 1, 30.0), scored(90, 5, 31.0), 0.5),
        "ema_decay=0.9": (scored(90, 1, 30.0), scored(90, 1, 31.5, moving_average=True), 0.625),
    }
    assert small_data.table(rows).splitlines()[2:] == [
        "| base | mean of 5 | 15.500 | 31.00 | +0.00 | 30.00 | 90 | 0.50 |",
        "| ema_decay=0.9 | moving average | 15.750 | 31.50 | +0.50 | 30.00 | 90 | 0.62 |",
    ]
    assert small_data.table({"ema_decay=0.9": rows["ema_decay=0.9"]}).count("31.50 |  | 30.00") == 1


def test_small_data_takes_the_scores_of_its_number_of_steps(tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(CHECKOUT / "tests/fixtures/run", tmp_path / "RUN"))
    found = functools.partial(small_data.scores_of, run.directory)
    assert found(3_000, 2) == small_data.scores_of(str(tmp_path / "none"), 3_000, 2) == ({}, {})
    for score in (scored(1_500, 1, 20.0), scored(3_000, 1, 30.0), scored(3_000, 3, 31.0), scored(1_500, 2, 29.0)):
        run.keep_scores(score)
    assert found(3_000, 2) == (scored(3_000, 1, 30.0), {})
    assert found(1_500, 2) == (scored(1_500, 1, 20.0), scored(1_500, 2, 29.0)) and found(4_500, 2) == ({}, {})
    run.keep_scores(scored(3_000, 2, 32.0))
    run.keep_scores(scored(3_000, 1, 33.0, moving_average=True))
    assert found(3_000, 2) == (scored(3_000, 1, 30.0), scored(3_000, 2, 32.0))


def test_small_data_adds_up_the_processor_time_of_its_programs(tmp_path: Path) -> None:
    """Programs that still run count too, so that a kill of the command loses little."""
    path, code = str(tmp_path / "time.json"), "while __import__('time').process_time() < {}: pass"
    start = small_data.processor_seconds()
    with subprocess.Popen([sys.executable, "-c", code.format(60)]) as running:
        while small_data.processor_seconds() < start + 0.2:
            assert running.poll() is None
        running.kill()
    for total in (0.1, 0.2):
        with small_data.noted_time(path):
            subprocess.run([sys.executable, "-c", code.format(0.1)], check=True)
        assert total <= small_data.read_seconds(path) < total + 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("base,rdrop=5", "override: unknown field 'rdrop': did you mean 'r_drop'?"),
        ("ema_decay=1", "ema_decay must be at least 0 and below 1, got 1.0"),
        ("dropout", "override: dropout must be of type float, got ''"),
    ],
)
def test_small_data_rejects_a_row(
    rows: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["small_data", "--text=TEXT", "--folder=FOLDER", f"--rows={rows}"])
    with pytest.raises(SystemExit, match="2"):
        small_data.main()
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_small_data_continues_after_a_signal(tmp_path: Path) -> None:
    for name, pairs in (("train", CAPTIONS), ("val", CAPTIONS[:20])):
        for side, language in enumerate(("en", "de")):
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{pair[side]}\n" for pair in pairs)
    folder = tmp_path / "screening"
    command = [sys.executable, "-m", "benchmarks.small_data", f"--text={tmp_path}", f"--folder={folder}"]
    command += [f"--override={each}" for each in ("d_model=16", "d_ff=32", "num_layers=1", "extra_length=2")]
    command += ["--hparams=tiny", "--steps=6", "--checkpoint_steps=2", "--average=2", "--vocab_size=400"]
    command += ["--rows=base,r_drop=5+ema_decay=0.9,decay_steps=3"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as stopped:
        while not (folder / "runs/r_drop=5+ema_decay=0.9/run.json").exists():
            assert stopped.poll() is None
            time.sleep(0.05)
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait() == 128 + signal.SIGTERM
    metrics = folder / "runs/base/metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    shown = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert metrics.stat().st_mtime_ns == before
    assert shown.startswith("tiny, 6 steps, seed 1, 3 of 3 rows, validation text\n")
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines()[4:]]
    assert [row[0] for row in found] == ["base", "r_drop=5+ema_decay=0.9", "decay_steps=3"]
    assert [row[1] for row in found] == ["mean of 2", "moving average", "mean of 2"]
    assert {row[6] for row in found} == {"6"}
    for path in folder.glob("*.time.json"):
        assert small_data.read_seconds(str(path)) > 1
    assert subprocess.run([*command, "--report"], cwd=CHECKOUT, capture_output=True, text=True).stdout == shown
