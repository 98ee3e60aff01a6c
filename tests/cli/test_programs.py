"""The programs: help, exit codes, one-line errors, and loading TensorFlow only when needed.

The library behind a program (training, decoding, scoring) is replaced by a stand-in that records its calls.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import flags
from conftest import CHECKOUT
from helpers.subprocesses import in_a_process

from t2t_repro import __version__
from t2t_repro.bin import t2t_trainer
from t2t_repro.cli import child_process, launcher
from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.documents.splitter import Splitter
from t2t_repro.filters import FILTERS
from t2t_repro.problem import Problem, TextFiles, TmxFile, TsvFile
from t2t_repro.registry import HPARAMS, PROBLEMS
from t2t_repro.run import Run
from t2t_repro.system.log import report
from t2t_repro.system.signals import Interrupted

FIXTURE = CHECKOUT / "tests/fixtures/run"
PROGRAMS = sorted(file.stem.replace("_", "-") for file in (CHECKOUT / "bin").glob("t2t_*.py"))
HEAVY = {
    "tensorflow",
    "keras",
    "tensorflow_text",
    "tensorflow_datasets",
    "numpy",
    "sentencepiece",
    "sacrebleu",
    "sacremoses",
    "babel",
}
TRAINED = ("problem", "hparams", "data_dir", "output_dir")
TRAIN = ("--hparams=base", "--data_dir=DATA", "--output_dir=RUN")


@pytest.fixture(scope="module", autouse=True)
def tensorflow_is_there():
    """Imports TensorBoard's writer before the tests, because the import prints."""
    import tensorflow  # noqa: F401


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "load_tensorflow", lambda: None)


@pytest.fixture
def run(tmp_path):
    """A run directory RUN. Only its vocabulary is fake."""
    vocabulary = tmp_path / "vocabulary"
    vocabulary.write_bytes(b"words")
    problem = Problem(name="translate_files", description="", vocab_size=100)
    hparams = HParams(name="base", description="")
    digest = hashlib.sha256(b"words").hexdigest()
    return Run("RUN", problem, hparams, "DATA", 1, "float32", digest).start(str(vocabulary))


@pytest.fixture
def stand_in(monkeypatch):
    """Returns `stand_in("training.trainer", train=function)`, which replaces a module that a program imports."""

    def put(name, **contents):
        monkeypatch.setitem(sys.modules, f"t2t_repro.{name}", SimpleNamespace(**contents))

    return put


# Help and the command line.


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(program, name, flag):
    code, out, err = program(name, "--problem", flag)
    assert (code, err) == (0, "")
    assert out.startswith(f"{name}: ")
    assert max(map(len, out.splitlines())) <= 80
    module = sys.modules[f"t2t_repro.bin.{name.replace('-', '_')}"]
    assert all(f"  --{each}" in out for each in module.FLAGS)
    assert "--pdb" not in out and "--flagfile" not in out


def test_help_lists_required_flags_first_with_the_form_of_values_and_defaults(program):
    lines = program("t2t-trainer", "--help").out.partition("Flags:\n")[2].splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  --")]
    assert shown[:4] == ["--problem=NAME", "--hparams=NAME", "--data_dir=DIR", "--output_dir=DIR"]
    assert {"--train_source=FILE", "--override=NAME=VALUE", "--train_steps=N", "--dry_run"} <= set(shown)
    text = " ".join(" ".join(lines).split())
    assert "the hyperparameter set's (default: 0) --train_steps" in text and "(default: 10) --checkpoint_steps" in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_version(program, name):
    assert program(name, "--version") == (0, f"{name} {__version__}\n", "")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("t2t-trainer", ["--hparam=base"], "unknown flag --hparam: did you mean --hparams?"),
        ("t2t-trainer", ["--xyzzy"], "unknown flag --xyzzy"),
        ("t2t-serve", ["--export=E"], "unknown flag --export: did you mean --export_dir?"),
        ("t2t-serve", ["--port=-1"], "flag --port=-1: expected an integer in the range [0, 65535]"),
        ("t2t-eval", ["--hlep"], "unknown flag --hlep: did you mean --help?"),
        ("t2t-trainer", ["--problem=p"], "missing --hparams"),
        ("t2t-trainer", ["--problem=p", "--hparams="], "missing --hparams"),
        ("t2t-datagen", [], "missing --problem"),
        ("t2t-decoder", [], "missing --output_dir"),
        ("t2t-registry", ["base"], "unexpected argument 'base'; flags are written --name=value"),
        ("t2t-eval", ["--output_dir=RUN", "test"], "unexpected argument 'test'; flags are written --name=value"),
        ("t2t-eval", ["--split=dev"], "flag --split=dev: expected train|validation|test"),
        ("t2t-eval", ["--alpha=high"], "flag --alpha=high: expected a number"),
        ("t2t-eval", ["--json=perhaps"], "flag --json=perhaps: expected true or false"),
        ("t2t-trainer", ["--train_steps=1e5"], "flag --train_steps=1e5: expected a whole number"),
        ("t2t-trainer", ["--train_steps=0"], "flag --train_steps=0: expected a positive integer"),
        ("t2t-trainer", ["--problem"], "--problem needs a value: --problem=VALUE"),
        ("t2t-decoder", ["--output_dir=run", "--glossary="], "--glossary needs a value: --glossary=VALUE"),
        (
            "t2t-decoder",
            ["--output_dir=run", "--decode_to_file="],
            "--decode_to_file needs a value: --decode_to_file=VALUE",
        ),
        ("t2t-decoder", ["--output_dir=run", "--output_dir="], "--output_dir needs a value: --output_dir=VALUE"),
        ("t2t-shortlist", ["--output_dir=run", "--shortlist="], "--shortlist needs a value: --shortlist=VALUE"),
        ("t2t-exporter", ["--output_dir=R"], "missing --export_dir"),
        ("t2t-compare", ["a"], "missing B"),
        ("t2t-compare", ["a", "b", "--seed=0"], "flag --seed=0: expected a positive integer"),
        (
            "t2t-compare",
            ["a", "b", "--reference=r", "--gold=r"],
            "give --reference for translations or --gold for trees, not both",
        ),
        (
            "t2t-compare",
            ["a", "b", "--source=s", "--gold=r"],
            "--source is for translations: the words of trees are in them",
        ),
        (
            "t2t-compare",
            ["a", "b", "--reference=r", "--beam_size=4"],
            "--beam_size is only for two runs; leave it out to compare files",
        ),
        (
            "t2t-compare",
            ["a", "b", "--gold=r", "--threads_per_batch=1"],
            "--threads_per_batch is only for two runs; leave it out to compare files",
        ),
        (
            "t2t-compare",
            ["a", "b", "--source=s"],
            "--source is only for files of translations; leave it out to compare runs",
        ),
        (
            "t2t-report",
            [".", "--markdown=m", "--json=same", "--html=./same"],
            "--json and --html are both './same'; give each a file of its own",
        ),
        ("t2t-registry", ["--diff=base"], "--diff expects two sets alone, such as --diff=base,big"),
        ("t2t-registry", ["--new_problem=mine"], "--new_problem needs a directory: --new_problem=NAME DIR"),
        (
            "t2t-registry",
            ["--new_problem=mine", "mine", "--problem=parse_wsj"],
            "--new_problem has no use for --problem; leave one of them out",
        ),
        (
            "t2t-registry",
            ["--completion=bash", "--hparams=base"],
            "--completion has no use for --hparams; leave one of them out",
        ),
        ("t2t-registry", ["--override=d_k=3"], "--override needs --hparams: it changes fields of that set"),
        ("t2t-registry", ["--new_problem=mine", ""], "--new_problem needs a directory: --new_problem=NAME DIR"),
        (
            "t2t-registry",
            ["--new_problem=mine", "mine", "--vocab_size=8000"],
            "--vocab_size needs --problem, --hparams or --diff: it is for counts of parameters",
        ),
        ("t2t-serve", ["--export_dir=E", "--labels="], "--labels needs a value: --labels=VALUE"),
        (
            "t2t-trainer",
            [
                *("--problem=p", "--hparams=h", "--data_dir=d", "--output_dir=o"),
                *("--also_validate=a", "--also_validate=b"),
            ],
            "--also_validate is given twice; give its values together: --also_validate=A,B",
        ),
        (
            "t2t-eval",
            ["--output_dir=a", "--output_dir=b"],
            "--output_dir is given twice: a run is scored alone",
        ),
        (
            "t2t-serve",
            ["--max_connections=3000000000"],
            "flag --max_connections=3000000000: expected an integer in the range [1, 2147483647]",
        ),
        ("t2t-selftest", ["--seconds=nan"], "flag --seconds=nan: expected a finite number of seconds"),
    ],
)
def test_wrong_command_line(program, name, arguments, message):
    assert program(name, *arguments) == (2, "", f"{name}: {message} (see {name} --help)\n")


# Failures.


def test_user_errors_are_one_line():
    def code_of(body):
        return launcher.run("t2t-x", "", flags.FlagValues(), body)

    sys_argv, sys.argv = sys.argv, ["t2t-x"]
    try:
        assert code_of(lambda: HPARAMS["bse"]) == 2
        assert code_of(lambda: HParams("n", "", d_k=0)) == 1
        assert code_of(lambda: open("missing")) == 1
        for defect in (lambda: {}["x"], lambda: 1 / 0, lambda: json.loads("{"), lambda: "a" + 1):
            with pytest.raises((KeyError, ZeroDivisionError, ValueError, TypeError)):
                code_of(defect)
    finally:
        sys.argv = sys_argv


def finish(body, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["t2t-x"])
    return launcher.run("t2t-x", "", flags.FlagValues(), body), capfd.readouterr().err


def test_message_of_a_key_error_has_no_quotes_around_it(monkeypatch, capfd):
    code, err = finish(lambda: HPARAMS["bse"], monkeypatch, capfd)
    assert code == 2 and err.startswith("t2t-x: unknown hyperparameter set 'bse': did you mean 'base'? known: ")
    assert err.count("\n") == 1


def test_message_of_the_operating_system_names_the_file(monkeypatch, capfd):
    assert finish(lambda: open("missing"), monkeypatch, capfd) == (1, "t2t-x: missing: No such file or directory\n")


def test_traceback_on_request(monkeypatch, capfd):
    monkeypatch.setenv("T2T_REPRO_TRACEBACK", "1")
    with pytest.raises(KeyError, match="bse"):
        finish(lambda: HPARAMS["bse"], monkeypatch, capfd)


def test_interrupted(monkeypatch, capfd):
    def body():
        raise KeyboardInterrupt

    assert finish(body, monkeypatch, capfd) == (130, "t2t-x: interrupted\n")


def test_closed_output_pipe_is_quiet():
    source = "from t2t_repro.bin.t2t_registry import main; import sys; sys.exit(main())"
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "t2t-trainer",
            ["--problem=translate_file", *TRAIN],
            "unknown problem 'translate_file': did you mean 'translate_",
        ),
        (
            "t2t-trainer",
            ["--problem=translate_ende_cldr", *TRAIN, "--hparams=bse"],
            "unknown hyperparameter set 'bse': did",
        ),
        *[
            ("t2t-trainer", ["--problem=translate_files", *TRAIN, mistake], message)  # not: needs your text
            for mistake, message in (
                ("--hparams=bse", "unknown hyperparameter set 'bse': did you mean 'base'? known: "),
                ("--override=dk=1", "--override: unknown field 'dk': did you mean 'd_k'? "),
                ("--override=d_k=x", "--override: d_k must be of type int, got 'x'"),
                ("--override=d_k=0", "d_k must be at least 1, got 0"),
                ("--filter=duplicat", "unknown filter 'duplicat': did you mean 'duplicate'? known: duplicate, "),
                ("--filter=length_ratio=x", "filter 'length_ratio': expected a number of at least 1. Received: 'l"),
                ("--filter=wrong_script", "filter 'wrong_script' needs scripts, as the problem names no languages"),
            )
        ],
        (
            "t2t-ablate",
            ["--problem=translate_files", "--data_dir=D", "--output_dir=O", "--rows=basse"],
            "unknown row 'basse' in --rows: did you mean 'base'?",
        ),
        ("t2t-registry", ["--diff=base,bgi"], "unknown hyperparameter set 'bgi': did you mean 'big'? known: "),
        (
            "t2t-registry",
            ["--hparams=base", "--override=dk=1"],
            "--override: unknown field 'dk': did you mean 'd_k'? ",
        ),
        ("t2t-registry", ["--hparams=base", "--override=d_k=x"], "--override: d_k must be of type int, got 'x'"),
        ("t2t-registry", ["--t2t_usr_dir=none"], "--t2t_usr_dir: 'none' is not a directory; give the folder with your"),
        (
            "t2t-datagen",
            ["--problem=translate_files", "--data_dir=D"],
            "problem 'translate_files' needs your text: give",
        ),
        (
            "t2t-datagen",
            ["--problem=translate_files", "--data_dir=D", "--train_source=s", "--train_target=t"],
            "cannot read --train_source 's': No such file or directory; give a UTF-8 text file",
        ),
        (
            "t2t-datagen",
            ["--problem=translate_ende_cldr", "--data_dir=D", "--test_source=s"],
            "problem 'translate_ende_cldr' has its own text and takes no --test_source; see translate_files",
        ),
        (
            "t2t-datagen",
            ["--problem=translate_ende_cldr", "--data_dir=D", "--raw_dir=."],
            "problem 'translate_ende_cldr' has no downloaded archives or treebank, and takes no --raw_dir",
        ),
        (
            "t2t-trainer",
            ["--problem=translate_ende_wmt14", *TRAIN, "--raw_dir=none"],
            "--raw_dir: 'none' is not a directory; give the folder of the downloaded archives",
        ),
        (
            "t2t-trainer",
            ["--problem=translate_ende_cldr", *TRAIN, "--init_from=none"],
            "--init_from: no directory 'none'; give the one that t2t-trainer wrote",
        ),
        (
            "t2t-trainer",
            ["--problem=translate_ende_cldr", *TRAIN, "--hparams=tiny", "--override=d_k=8", f"--init_from={FIXTURE}"],
            f"--init_from: the weights in '{FIXTURE}' have --override=num_layers=1, --override=d_model=32, ",
        ),
        (
            "t2t-datagen",
            ["--problem=translate_ende_cldr", "--data_dir=D", "--vocabulary_from=none"],
            "--vocabulary_from: no directory 'none'; give the one that t2t-trainer wrote",
        ),
        (
            "t2t-decoder",
            ["--output_dir=none"],
            "--output_dir: no directory 'none'; give the one that t2t-trainer wrote",
        ),
        (
            "t2t-eval",
            ["--output_dir=."],
            "'.' is not a run directory (no run.json); give the one that t2t-trainer wrote",
        ),
    ],
)
def test_failure(program, name, arguments, message):
    code, out, err = program(name, *arguments)
    unknown_name = message.startswith(("unknown ", "--override: unknown "))
    assert (code, out) == (2 if unknown_name else 1, "")
    assert err.startswith(f"{name}: {message}") and err.count("\n") == 1
    assert os.listdir() == []


# TensorFlow stays out.


@pytest.mark.parametrize(
    ("command", "code"),
    [
        *[([name, "--help"], 0) for name in PROGRAMS],
        (["t2t-registry"], 0),
        (["t2t-registry", "--problem=translate_ende_cldr", "--hparams=base"], 0),
        (["t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, "--hparms=base"], 2),
        (["t2t-trainer", "--problem=translate_ende_cdlr", *TRAIN], 2),
        (["t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, "--hparams=bose"], 2),
        (["t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, "--override=dmodel=2"], 2),
        (["t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, f"--init_from={FIXTURE}"], 1),
        (["t2t-datagen", "--problem=translate_ende_cldr", "--data_dir=D", "--vocabulary_from=none"], 1),
        (["t2t-datagen", "--problem=translate_ende_cldr", "--data_dir=D", "--filter=identicl"], 2),
        (["t2t-eval", f"--output_dir={FIXTURE}", "--data_dir=."], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_help_lists_and_errors_load_no_tensorflow(command, code):
    name, *arguments = command
    done = in_a_process("-X", "importtime", "-m", f"t2t_repro.bin.{name.replace('-', '_')}", *arguments)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert done.returncode == code
    assert "t2t_repro.cli.launcher" in imported and not imported & HEAVY


def test_tensorflow_loads_without_its_chatter(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import os\nos.write(2, b'I0000 oneDNN custom operations are on\\n')\n")
    source = "from t2t_repro.cli.launcher import load_tensorflow as load; load(); import os; os.write(2, b'after')"
    path = {"PYTHONPATH": f"{tmp_path}:{CHECKOUT}"}
    without = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}

    def errors(source, **more):
        command = [sys.executable, "-c", source]
        return subprocess.run(command, env={**without, **path, **more}, capture_output=True, text=True).stderr

    assert errors(source) == "after"
    assert errors(source, TF_CPP_MIN_LOG_LEVEL="0") == "I0000 oneDNN custom operations are on\nafter"
    with open(tmp_path / "tensorflow.py", "a") as file:
        file.write("1 / 0\n")
    assert errors(source).startswith("I0000 oneDNN custom operations are on\nTraceback")


@pytest.mark.slow
def test_modules_of_tensorflow_are_not_searched_for_garbage():
    """Collection stays enabled, or disabled, as it was."""
    for before in ("enable", "disable"):
        source = f"import gc; gc.{before}(); from t2t_repro.cli.launcher import load_tensorflow as load; load()"
        done = in_a_process("-c", f"{source}; print(gc.get_freeze_count() > 100_000, gc.isenabled())")
        assert done.stdout == f"True {before == 'enable'}\n", done.stderr


def test_tensorflow_loads_without_matplotlib():
    """Matplotlib can still be imported afterwards."""
    source = "import sys; from t2t_repro.cli.launcher import load_tensorflow as load; load(); import keras.layers"
    source += "; print({'keras', 'matplotlib'} & set(sys.modules)); import matplotlib.figure"
    done = in_a_process("-c", source)
    assert (done.returncode, done.stdout) == (0, "{'keras'}\n")


# t2t-registry.


def test_registry_lists_everything_at_80_columns(program):
    code, out, _ = program("t2t-registry")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert {"base", "big", "translate_ende_cldr", "translate_files"} <= {line.split(" ")[2] for line in _entries(out)}


def _entries(out):
    return [line for line in out.splitlines() if line.startswith("  ") and line[2] != " "]


def test_registry_describes_a_set(program):
    code, out, _ = program("t2t-registry", "--hparams=base")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert {line.split()[0] for line in _entries(out)} == {"field", *HParams.__dataclass_fields__} - {
        "name",
        "description",
    }
    text = " ".join(out.split())
    assert "d_k 64 3.2.2 width of queries and keys" in text
    assert "63,045,632 parameters with a vocabulary of 37,000. The paper prints 65 million. The sizes" in text


def test_registry_prints_no_figure_of_the_paper_for_an_altered_set(program):
    out = program("t2t-registry", "--hparams=base", "--override=d_k=16", "--vocab_size=37000").out
    assert "55,967,744 parameters with a vocabulary of 37,000." in out and "paper prints" not in out


def test_registry_takes_the_vocabulary_of_the_problem(program):
    out = program("t2t-registry", "--problem=translate_ende_cldr", "--hparams=base").out
    assert "Problem translate_ende_cldr" in out
    assert "parameters with a vocabulary of 1,500" in out


def test_registry_describes_a_problem_of_files(program):
    code, out, _ = program("t2t-registry", "--problem=translate_files")
    assert code == 0 and "your files: --train_source and --train_target" in out


def test_registry_shows_a_difference(program):
    code, out, _ = program("t2t-registry", "--diff=base,big")
    assert code == 0
    rows = [line.split() for line in _entries(out)]
    assert rows[0] == ["field", "base", "big"] and ["d_model", "512", "1024"] in rows
    assert "d_k" not in [row[0] for row in rows]
    assert "big has 214,171,648 parameters with a vocabulary of 37,000." in out
    assert program("t2t-registry", "--diff=base,base").out == "base and base have equal fields.\n"


def test_registry_of_a_users_folder(tmp_path):
    usr = tmp_path / "usr"
    usr.mkdir()
    (usr / "mine.py").write_text(
        "from dataclasses import replace\nfrom t2t_repro.hparams.base import BASE\n"
        "from t2t_repro.registry import HPARAMS\nHPARAMS.register(replace(BASE, name='mine', d_k=8))\n"
    )
    command = ("-m", "t2t_repro.bin.t2t_registry", "--t2t_usr_dir=usr", "--diff=base,mine")
    done = in_a_process(*command)
    assert done.returncode == 0 and ["d_k", "64", "8"] in [line.split() for line in done.stdout.splitlines()]
    (usr / "mine.py").write_text("from t2t_repro.config import HParams\nHParams('mine', '', d_k=0)\n")
    done = in_a_process(*command)
    expected = "t2t-registry: d_k must be at least 1, got 0 (while importing usr/mine.py)\n"
    assert (done.returncode, done.stderr) == (1, expected)
    (usr / "mine.py").write_text("import no_such_module_anywhere\n")
    done = in_a_process(*command)
    assert done.returncode == 1 and "Traceback" in done.stderr and "usr/mine.py" in done.stderr


# t2t-datagen and t2t-trainer.


def test_datagen(program, stand_in):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append((positional, named)))
    for path in ("s", "t"):
        open(path, "w").close()
    files = ["--train_source=s", "--train_target=t"]
    code, out, err = program(
        "t2t-datagen", "--problem=translate_files", "--data_dir=D", *files, "--verify", "--vocab_size=9"
    )
    assert (code, out, err) == (0, "", "")
    [((problem, data_dir), named)] = calls
    assert (problem.vocab_size, problem.train[0].source, data_dir, named["verify"]) == (9, "s", "D", True)
    named["report"]("reading")


def test_prepared_files_need_not_be_named_again(program, stand_in):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional))
    os.makedirs("D/translate_files")
    open("D/translate_files/dataset.json", "w").close()
    assert program("t2t-datagen", "--problem=translate_files", "--data_dir=D").code == 0
    assert calls[0][0].takes_files


@pytest.fixture
def prepared():
    """Data of translate_files, prepared in D with non-default sizes."""
    os.makedirs("D/translate_files")
    Path("D/translate_files/dataset.json").write_text('{"problem": {"vocab_size": 600, "sample": 50}}')


def test_sizes_of_prepared_data_need_not_be_given_again(program, stand_in, prepared):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional))
    data = ("t2t-datagen", "--problem=translate_files", "--data_dir=D")
    code, _, err = program(*data)
    assert code == 0 and err.splitlines() == [
        f"--{size}, as the data in 'D/translate_files' was prepared" for size in ("vocab_size=600", "sample=50")
    ]
    assert program(*data, "--vocab_size=600", "--sample=50") == (0, "", "")
    assert [(problem.vocab_size, problem.sample) for problem, _ in calls] == [(600, 50)] * 2


def test_vocabulary_of_a_run(program, stand_in, run):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append((positional, named)))
    command = ["t2t-datagen", "--problem=translate_enfr_cldr", "--data_dir=D", "--vocabulary_from=RUN"]
    assert program(*command).code == 0
    [((problem, _), named)] = calls
    assert (problem.vocab_size, problem.vocab_kind, named["vocabulary_from"]) == (100, "bpe", "RUN")
    message = "--vocab_size=99: the vocabulary of 'RUN' has 100 subwords; leave it out (see t2t-datagen --help)"
    assert program(*command, "--vocab_size=99") == (2, "", f"t2t-datagen: {message}\n")


def test_vocabulary_of_prepared_data_need_not_be_given_again(program, training):
    os.makedirs("DATA/translate_ende_cldr")
    recorded = {"vocab_size": 600, "vocab_kind": "word_piece", "min_character_count": 3}
    for given_by, kind in (("RUN", "word_piece"), (None, "bpe")):
        record = {"problem": recorded, "vocabulary": {"given_by": given_by}}
        Path("DATA/translate_ende_cldr/dataset.json").write_text(json.dumps(record))
        assert program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN).code == 0
        problem = training.calls[-2][0][0]
        assert (problem.vocab_size, problem.vocab_kind) == (600, kind)


def test_sizes_that_differ_from_prepared_data_are_rejected_early(program, prepared):
    expected = "t2t-datagen: 'D/translate_files' holds other data: its vocab_size is 600, not 700; leave out --vocab_s"
    code, _, err = program("t2t-datagen", "--problem=translate_files", "--data_dir=D", "--vocab_size=700")
    assert code == 1 and err.startswith(expected)


def test_filters_of_prepared_data_need_not_be_given_again(program, stand_in):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional))
    os.makedirs("D/translate_files")
    Path("D/translate_files/dataset.json").write_text('{"problem": {"filters": ["length_ratio=3", "duplicate"]}}')
    data = ("t2t-datagen", "--problem=translate_files", "--data_dir=D")
    noted = "--filter=length_ratio=3 --filter=duplicate, as the data in 'D/translate_files' was prepared\n"
    assert program(*data) == (0, "", noted)
    assert program(*data, "--filter=duplicate", "--filter=length_ratio") == (0, "", "")
    assert [problem.filters for problem, _ in calls] == [("length_ratio=3", "duplicate")] * 2
    assert program(*data, "--filter=duplicate") == (
        1,
        "",
        "t2t-datagen: 'D/translate_files' holds other data: it was prepared with --filter=length_ratio=3 "
        "--filter=duplicate, not --filter=duplicate; leave out --filter, or give another --data_dir\n",
    )


def test_linearization_of_prepared_data_need_not_be_given_again(program, stand_in):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional))
    os.makedirs("D/parse_files")
    for prepared, other in (("in_order", "top_down"), ("top_down", "in_order")):
        recorded = {"linearization": prepared} if prepared == "in_order" else {"vocab_size": 8_000}
        Path("D/parse_files/dataset.json").write_text(json.dumps({"problem": recorded}))
        data = ("t2t-datagen", "--problem=parse_files", "--data_dir=D")
        noted = "--linearization=in_order, as the data in 'D/parse_files' was prepared\n" if recorded != {} else ""
        assert program(*data) == (0, "", noted if prepared == "in_order" else "")
        assert program(*data, f"--linearization={prepared}") == (0, "", "")
        message = f"its linearization is '{prepared}', not '{other}'; leave out --linearization, or give another --data"
        assert program(*data, f"--linearization={other}").err.startswith(
            f"t2t-datagen: 'D/parse_files' holds other data: {message}"
        )
    assert [problem.linearization for problem, _ in calls] == ["in_order"] * 2 + ["top_down"] * 2


def test_linearization_is_for_trees(program):
    code, _, err = program("t2t-datagen", "--problem=translate_ende_cldr", "--data_dir=D", "--linearization=in_order")
    message = "problem 'translate_ende_cldr' has no trees and takes no --linearization; leave it out"
    assert (code, err) == (1, f"t2t-datagen: {message}\n")


def test_help_names_every_filter(program):
    _, out, _ = program("t2t-datagen", "--help")
    assert all(name in out for name in FILTERS)


def test_several_corpora_with_names_languages_and_weights(program, stand_in):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional))
    for path in ("a.en", "a.de", "b.en", "b.de", "web.tsv", "memory.tmx", "valid.tsv"):
        open(path, "w").close()
    files = ["--train_tmx=memory.tmx", "--train_source=a.en", "--train_target=a.de", "--train_source=b.en"]
    files += ["--train_target=b.de", "--train_tsv=web.tsv", "--validation_tsv=valid.tsv"]
    weights = [f"--train_weight={weight}" for weight in (1, 0.5, 2, 3)]
    names = [f"--train_name={name}" for name in "abcd"]
    data = ("t2t-datagen", "--problem=translate_files", "--data_dir=D", *files, "--source_language=en")
    assert program(*data, "--target_language=de", *weights, *names) == (0, "", "")
    [(problem, _)] = calls
    assert problem.train == (
        TextFiles("a.en", "a.de", name="a"),
        TextFiles("b.en", "b.de", name="b"),
        TsvFile("web.tsv", "c"),
        TmxFile("memory.tmx", "en", "de", "d"),
    )
    assert (problem.validation, problem.train_weight) == ((TsvFile("valid.tsv"),), (1, 0.5, 2, 3))
    for mistake, message in (
        (weights, "--train_tmx needs --source_language and --target_language"),
        (
            ["--target_language=de", *weights[:3]],
            "--train_weight must have one weight per training corpus, 4, got 1, 0",
        ),
        (["--target_language=de", "--train_weight=0"], "--train_weight must be above 0 and at most 1,000, got 0"),
        (["--target_language=de", "--train_source=a.en"], "--train_source and --train_target must be given equally of"),
        (["--target_language=de", "--train_tsv=no.tsv"], "cannot read --train_tsv 'no.tsv': No such file or directory"),
        (["--target_language=de", "--train_temperature=2", *weights], "--train_weight and --train_temperature exclude"),
    ):
        code, _, err = program(*data, *mistake)
        assert code == 1 and err.startswith(f"t2t-datagen: {message}"), err
    assert program(*data, "--train_temperature=0.5").code == 2 and len(calls) == 1


def test_a_flag_replaces_the_weights_of_a_problem(program, stand_in, monkeypatch):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional[0]))
    for name in ("a", "b"):
        Path(name).touch()
    corpora = (TextFiles("a", "b", name="one"), TextFiles("b", "a", name="two"))
    weighted = Problem(name="weighted", description="", train=corpora, train_weight=(1, 3))
    monkeypatch.setitem(PROBLEMS._items, "weighted", weighted)
    monkeypatch.setitem(PROBLEMS._places, "weighted", os.getcwd())
    data = ("t2t-datagen", "--problem=weighted", "--data_dir=D")
    assert program(*data).code == program(*data, "--train_temperature=5").code == 0
    assert [(each.train_weight, each.train_temperature) for each in calls] == [((1, 3), 0), ((), 5)]


def test_prepared_trees_are_compared_with_the_folder_that_is_given(program, tmp_path):
    """Without the parsed trees, nothing could be compared, and the folder would be ignored."""
    os.makedirs("D/parse_wsj_semisupervised")
    Path("D/parse_wsj_semisupervised/dataset.json").write_text("{}")
    os.makedirs("ptb")
    data = ("t2t-datagen", "--problem=parse_wsj_semisupervised", "--data_dir=D", "--raw_dir=ptb", "--verify")
    code, _, err = program(*data)
    assert code == 1 and "'parse_wsj_semisupervised' needs your text: give --raw_dir, " in err


def test_languages_of_prepared_data_need_not_be_given_again(program, stand_in):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional[0]))
    os.makedirs("D/translate_files")
    recorded = {"problem": {"source_language": "en", "target_language": ""}}
    Path("D/translate_files/dataset.json").write_text(json.dumps(recorded))
    data = ("t2t-datagen", "--problem=translate_files", "--data_dir=D")
    assert program(*data, "--train_weight=1", "--train_weight=2") == (0, "", "")
    assert program(*data, "--target_language=de", "--train_temperature=5") == (0, "", "")
    assert [(each.source_language, each.target_language) for each in calls] == [("en", ""), ("en", "de")]
    assert [(each.train_weight, each.train_temperature) for each in calls] == [((1, 2), 0), ((), 5)]
    code, _, err = program("t2t-datagen", "--problem=translate_ende_cldr", "--data_dir=D", "--source_language=fr")
    expected = "problem 'translate_ende_cldr' has its own languages and takes no --source_language; see translate_files"
    assert (code, err) == (1, f"t2t-datagen: {expected}\n")


def test_weights_that_do_not_fit_prepared_data_are_refused_before_tensorflow_loads(program, monkeypatch):
    pairs = "".join(f"the house number {n}\tdas Haus Nummer {n}\n" for n in range(60))
    for name in ("a.tsv", "b.tsv"):
        Path(name).write_text(pairs)
    data = ("--problem=translate_files", "--data_dir=D", "--vocab_size=300")
    assert program("t2t-datagen", *data, "--train_tsv=a.tsv", "--train_tsv=b.tsv").code == 0
    loads: list[None] = []
    monkeypatch.setattr(launcher, "load_tensorflow", lambda: loads.append(None))
    weights = ("--train_weight=1", "--train_weight=2", "--train_weight=3")
    code, _, err = program("t2t-trainer", *data, "--hparams=tiny", "--output_dir=RUN", *weights)
    expected = "t2t-trainer: --train_weight must have one weight per training corpus, 2 (a.tsv, b.tsv), got 3\n"
    assert (code, err, loads) == (1, expected, [])


SAGAS = """
from t2t_repro.problem import Problem, TextFiles
from t2t_repro.registry import PROBLEMS
PROBLEMS.register(Problem(name="{name}", description="", train=(TextFiles("text/a.en", "text/a.is"),)))
"""


@pytest.fixture
def users_problem(monkeypatch):
    """`users_problem(name)`: a folder `usr` that registers it; its text is text/a.en and text/a.is."""
    len(PROBLEMS)  # loads the others
    for attribute in ("_items", "_places"):
        monkeypatch.setattr(PROBLEMS, attribute, dict(getattr(PROBLEMS, attribute)))

    def made(name):
        os.mkdir("usr")
        Path("usr/sagas.py").write_text(SAGAS.format(name=name))
        return ["t2t-datagen", "--t2t_usr_dir=usr", f"--problem={name}", "--data_dir=D"]

    yield made
    for name in [name for name in sys.modules if name.split(".")[0] == "t2t_usr_dir"]:
        del sys.modules[name]


@pytest.mark.parametrize("folder", ["usr", "."])
def test_text_is_searched_beside_the_module_then_in_the_current_folder(
    program, stand_in, users_problem, tmp_path, folder
):
    calls = []
    stand_in("preparation.pipeline", prepare=lambda *positional, **named: calls.append(positional))
    command = users_problem("sagas_of_one_folder")
    for text in {folder, "."}:  # what is beside the module goes first
        os.mkdir(f"{text}/text")
        for side in ("en", "is"):
            Path(f"{text}/text/a.{side}").touch()
    assert program(*command) == (0, "", "")
    (corpus,) = calls[0][0].train
    assert os.path.abspath(corpus.source) == str(tmp_path / folder / "text/a.en")
    assert os.path.abspath(corpus.target) == str(tmp_path / folder / "text/a.is")


def test_missing_text_error_lists_the_searched_folders(program, users_problem, tmp_path):
    found = program(*users_problem("sagas_without_text"))
    where = f"neither in '{tmp_path}/usr' nor in '{tmp_path}': No such file or directory; put a UTF-8 text file there"
    expected = f"t2t-datagen: cannot read 'text/a.en' of problem 'sagas_without_text', {where}\n"
    assert found == (1, "", expected)


@pytest.fixture
def training(stand_in, monkeypatch):
    """Stand-ins for what the trainer calls; `training.calls` fills up, `training.splits` says what data there is."""

    def train(*positional, **named):
        state.calls.append((positional, named))
        if state.signal:
            raise Interrupted(state.signal)

    def evaluate(output_dir, **named):
        state.calls.append((output_dir, named))
        return named

    state = SimpleNamespace(calls=[], kept=[], signal=0, splits={"train": {}, "validation": {}, "test": {}})
    stand_in("training.trainer", train=train)
    stand_in("evaluation.evaluator", evaluate=evaluate, table=lambda scores: f"scores on {scores['split']}")
    stand_in("evaluation.validation_preview", ValidationPreview="the preview")
    stand_in("preparation.pipeline", prepare="the preparation")
    stand_in("preparation.provenance", check_same_data=lambda dataset, problem: state.calls.append("compared"))
    opened = SimpleNamespace(has=lambda split: split in state.splits)
    stand_in("data.dataset", Dataset=SimpleNamespace(open=lambda directory: opened, exists=lambda directory: False))
    monkeypatch.setattr(launcher, "keep_scores", lambda *arguments: state.kept.append(arguments))
    return state


def test_trainer_restarts_before_it_reports_anything(program, training, prepared, monkeypatch):
    monkeypatch.setattr(launcher, "use_huge_pages", lambda: launcher.report("starts again"))
    files = ("--problem=translate_files", "--hparams=tiny", "--data_dir=D", "--output_dir=RUN")
    first, *others = program("t2t-trainer", *files).err.splitlines()
    assert first == "starts again" and "--vocab_size=600, as the data in 'D/translate_files' was prepared" in others


def test_trainer_trains_then_scores(program, training):
    options = ["--train_steps=7", "--seed=3", "--override=d_k=32", "--override=dropout=0.2", "--checkpoint_steps=5"]
    code, out, err = program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, *options)
    assert (code, out, err) == (0, "scores on test\n", "")
    (problem, hparams, data_dir, output_dir, options), named = training.calls[0]
    assert (problem.name, data_dir, output_dir) == ("translate_ende_cldr", "DATA", "RUN")
    assert (hparams.train_steps, hparams.d_k, hparams.dropout) == (7, 32, 0.2)
    assert options == TrainingOptions(seed=3, checkpoint_steps=5)
    assert named == {"init_from": None, "prepare": "the preparation", "preview": "the preview"}
    scored = {"split": "test", "average_checkpoints": 5}  # as Table 2
    assert training.calls[1] == ("RUN", scored) and training.kept == [("RUN", scored)]


def test_trainer_scores_the_last_checkpoint_on_validation_if_requested(program, training):
    program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, "--split=validation")
    assert training.calls[1] == ("RUN", {"split": "validation", "average_checkpoints": 1})  # as Table 3


def test_trainer_stops_and_scores_by_validation(program, training):
    options = ["--patience=4", "--keep_best=3", "--validate_by=bleu", "--validate_metrics=chrf,bleu", "--average_best"]
    options += ["--train_minutes=1.5", "--train_epochs=2", "--validate_every=6"]
    assert program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, *options).code == 0
    limits = {"patience": 4, "keep_best": 3, "train_minutes": 1.5, "train_epochs": 2, "validate_every": 6}
    expected = TrainingOptions(validate_by="bleu", validate_metrics=("chrf", "bleu"), **limits)
    assert training.calls[0][0][4] == expected
    assert training.calls[1] == ("RUN", {"split": "test", "average_best": True})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--validate_metrics=f1"], "--validate_metrics must be one of bleu, chrf for this problem, got 'f1'"),
        (["--validate_by=loss"], "--validate_by must be one of perplexity, bleu, chrf for this problem, got 'loss'"),
        (
            ["--also_validate=nowhere"],
            "--also_validate: 'nowhere' holds neither a dataset.json nor one folder with it; give a directory that "
            "t2t-datagen wrote",
        ),
        (
            ["--override=decay_steps=500", "--patience=4"],
            "the learning rate falls to 0 at --train_steps=100000 (--override=decay_steps=500): expected no earlier "
            "end, got --patience=4; leave that out, or set --override=decay_steps=0",
        ),
    ],
)
def test_trainer_rejects_validation_before_loading_tensorflow(program, monkeypatch, arguments, message):
    monkeypatch.setattr(launcher, "load_tensorflow", lambda: pytest.fail("TensorFlow is loaded"))
    result = program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, *arguments)
    assert result == (1, "", f"t2t-trainer: {message}\n")


def test_trainer_scores_the_moving_average_on_request(program, training):
    line = ["t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, "--moving_average"]
    assert program(*line).err.startswith("t2t-trainer: --moving_average needs one: give --override=ema_decay=0.999")
    assert program(*line, "--override=ema_decay=0.99").code == 0
    assert training.calls[1] == ("RUN", {"split": "test", "average_checkpoints": 1, "moving_average": True})


def test_trainer_scores_on_validation_without_test_text(program, training):
    training.splits = {"train": {}, "validation": {}}
    assert program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN).out == "scores on validation\n"


def test_trainer_stopped_by_a_signal(program, training):
    training.signal = 15
    result = program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN)
    assert result == (143, "", "t2t-trainer: stopped by SIGTERM; the same command continues\n")


def test_dry_run_trains_nothing(program, training, stand_in, monkeypatch):
    """The dry run gets the arguments of training, in a separate process."""
    calls = []
    stand_in("training.dry_run.estimate", dry_run=lambda *positional, **named: calls.append((positional, named)))
    monkeypatch.setattr(child_process, "continue_in_child", lambda value: (value, calls.append("a child")))
    options = ["--dry_run", "--train_steps=7", "--seed=3", "--checkpoint_steps=5", "--jit_compile"]
    options += ["--microbatch_tokens=16", "--deterministic"]
    assert program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, *options) == (0, "", "")
    child, ((problem, hparams, data_dir, output_dir, options), named) = calls
    assert child == "a child" and training.calls == [] and os.listdir() == []
    assert (problem.name, hparams.train_steps, data_dir, output_dir) == ("translate_ende_cldr", 7, "DATA", "RUN")
    asked = {"seed": 3, "checkpoint_steps": 5, "microbatch_tokens": 16, "jit_compile": True, "deterministic": True}
    assert options == TrainingOptions(**asked) and named == {"init_from": None, "preview": "the preview"}


def test_dry_run_needs_no_text(program, training, stand_in, monkeypatch):
    calls = []
    stand_in("training.dry_run.estimate", dry_run=lambda *positional, **named: calls.append(positional))
    monkeypatch.setattr(child_process, "continue_in_child", lambda value: (value, None))
    assert program("t2t-trainer", "--problem=translate_files", *TRAIN, "--dry_run", "--vocab_size=900").code == 0
    assert calls[0][0].takes_files and calls[0][0].vocab_size == 900


def test_trainer_rejects_before_loading_tensorflow(program, training, run):
    open("file", "w").close()
    for arguments, message in [
        (["--output_dir=file"], "--output_dir: 'file' is a file; give a directory"),
        (["--data_dir=file"], "--data_dir: 'file' is a file; give a directory"),
        ([], "'RUN' holds another run: its max_length"),
    ]:
        result = program("t2t-trainer", "--problem=translate_ende_cldr", *TRAIN, *arguments)
        if arguments:
            assert result == (1, "", f"t2t-trainer: {message}\n")
        else:
            assert result.code == 1 and "'RUN' holds another run: its problem" in result.err
    assert training.calls == []


# t2t-decoder and t2t-eval.


@pytest.fixture
def translator(stand_in, run):
    """A translator that writes in capitals; its last hypothesis also has an exclamation mark."""

    class Translator:
        calls, checkpoints, checkpoints_sha256 = [], [[]], []
        ensemble = SimpleNamespace(head=None)

        @classmethod
        def from_run(cls, output_dirs, average_checkpoints, int8, precision, average_best, *, search_only, **weights):
            cls.search_only, moving_average = search_only, weights["moving_average"]
            more = [*(["int8"] if int8 else []), *([precision] if precision != "auto" else [])]
            more += ["moving average"] if moving_average else []
            cls.calls.append((*output_dirs, average_checkpoints, *more))
            return cls()

        def n_best(self, texts, n, beam_size, alpha, report, advance=None, **further):
            self.calls.append((list(texts), n, beam_size, alpha, *further.items()))
            every = [[(text.upper(), -0.5), (f"{text.upper()}!", -1.25)] if text else [("", 0.0)] for text in texts]
            return [translations[:n] for translations in every]

        def sample(self, texts, n, report, advance, **further):
            self.calls.append((list(texts), n, *further.items()))
            return [[(text[::-1], -2.5)] * n for text in texts]

        def score_tokens(self, pairs, report, advance):
            report(len(pairs) - 1, "has 9,999 tokens")
            return [[(source, -1.0), (target, -0.25)] if target else [] for source, target in pairs]

    stand_in("inference.translator", Translator=Translator)
    return Translator


def test_decoder_keeps_every_line_in_its_place(program, translator):
    stdin = "ein\n\n zwei \u2028 drei\r\n\t\nvier".encode()
    code, out, err = program("t2t-decoder", "--output_dir=RUN", "--average_checkpoints=3", stdin=stdin)
    assert (code, err) == (0, "")
    assert out.split("\n") == ["EIN", "", " ZWEI \u2028 DREI", "\t", "VIER", ""]
    assert translator.calls[0] == ("RUN", 3)


WINDOWS = "\ufeff12 €\r\n\r\nein\u2028Wort\r\r\n".encode()  # as Windows writes text, and a "\r" of the text's own
LINES = ["12 €", "", "ein\u2028Wort\r"]


@pytest.mark.parametrize("name", ["in.txt", "in.txt.gz"])
def test_decoder_reads_lines_as_training_does(program, translator, name):
    """Carriage returns at line ends and a byte order mark are removed, in files and on standard input."""
    Path(name).write_bytes(gzip.compress(WINDOWS) if name.endswith(".gz") else WINDOWS)
    assert program("t2t-decoder", "--output_dir=RUN", f"--decode_from_file={name}", f"--prefix_file={name}").code == 0
    assert program("t2t-decoder", "--output_dir=RUN", stdin=WINDOWS).code == 0
    (_, from_file), (_, from_stdin) = translator.calls[:2], translator.calls[2:]
    assert from_file == (LINES, 1, None, None, ("prefixes", LINES)) and from_stdin == (LINES, 1, None, None)


def test_decoder_scores_lines_as_training_reads_them(program, translator, monkeypatch):
    pairs = []
    monkeypatch.setattr(translator, "score_tokens", lambda self, given, *_: [*map(pairs.append, given)] and [])
    Path("pairs.tsv").write_bytes("\ufeff12\tzwölf\r\n".encode())
    assert program("t2t-decoder", "--output_dir=RUN", "--score_file=pairs.tsv").code == 0
    assert pairs == [("12", "zwölf")]


def test_decoder_reads_what_is_typed_on_windows(program, translator):
    assert program("t2t-decoder", "--output_dir=RUN", "--decode_interactive", stdin=WINDOWS).code == 0
    assert [texts for texts, *_ in translator.calls[1:]] == [[line] for line in LINES]


def test_decoder_rejects_an_empty_gzip_file(program, translator):
    Path("in.gz").touch()
    message = "t2t-decoder: in.gz is an empty file named .gz, not a gzip stream; download it again\n"
    assert program("t2t-decoder", "--output_dir=RUN", "--decode_from_file=in.gz") == (1, "", message)


@pytest.mark.parametrize(("stdin", "out"), [(b"", ""), (b"\n", "\n"), (b"a", "A\n"), (b"a\n\n", "A\n\n")])
def test_decoder_counts_lines_by_their_ends(program, translator, stdin, out):
    assert program("t2t-decoder", "--output_dir=RUN", stdin=stdin) == (0, out, "")


def test_decoder_from_file_to_file(program, translator, tmp_path):
    (tmp_path / "in").write_text("größe\n", "utf-8")
    files = ["--decode_from_file=in", "--decode_to_file=out"]
    assert program("t2t-decoder", "--output_dir=RUN", *files, "--beam_size=2", "--alpha=0.1") == (0, "", "")
    assert (tmp_path / "out").read_text("utf-8") == "GRÖSSE\n"
    assert translator.calls[1] == (["größe"], 1, 2, 0.1)


def test_decoder_takes_int8_and_a_precision(program, translator):
    options = ["--output_dir=RUN", "--int8", "--precision=float32"]
    assert program("t2t-decoder", *options, stdin=b"a\n").out == "A\n"
    assert translator.calls[0] == ("RUN", 1, "int8", "float32")


def test_decoder_takes_an_ensemble_a_prefix_and_a_minimum_length(program, translator):
    Path("prefixes").write_text("der\n\n")
    options = ["--output_dir=RUN", "--prefix_file=prefixes", "--min_length=3"]
    assert program("t2t-decoder", "--output_dir=RUN", *options, stdin=b"a\nb\n") == (0, "A\nB\n", "")
    further = (("min_length", 3), ("prefixes", ["der", ""]))
    assert translator.calls == [("RUN", "RUN", 1), (["a", "b"], 1, None, None, *further)]


def test_decoder_takes_a_glossary(program, translator, tmp_path):
    (tmp_path / "terms.tsv").write_text("cat\tKatze\n")
    arguments = "--output_dir=RUN", f"--glossary={tmp_path / 'terms.tsv'}"
    assert program("t2t-decoder", *arguments, stdin=b"ein\n").code == 0
    (_, (*_, (name, glossary))) = translator.calls
    assert name == "glossary" and [each.forms for each in glossary.required("a cat")] == [("Katze",)]


@pytest.fixture
def splitting(translator, monkeypatch):
    """The languages that the translator's splitter is asked for."""
    asked = []

    def splitter(self, language):
        asked.append(language)
        return Splitter(language or "de", 1_000)

    monkeypatch.setattr(translator, "splitter", splitter, raising=False)
    return asked


def test_decoder_translates_documents(program, translator, splitting):
    stdin = " Am 3. Mai.  Ein Satz!\n\n \t\r\nDrei\u2028vier".encode()
    found = program("t2t-decoder", "--output_dir=RUN", "--documents", stdin=stdin)
    assert found == (0, " AM 3. MAI.  EIN SATZ!\n\n \t\nDREI\u2028VIER\n", "")
    assert translator.calls[1:] == [(["Am 3. Mai.", "Ein Satz!", "Drei", "vier"], 1, None, None)]
    assert splitting == [None]


def test_decoder_takes_documents_with_other_options(program, translator, splitting):
    options = ["--documents", "--language=fr", "--sampling_temperature=0.5", "--decode_to_file=out"]
    assert program("t2t-decoder", "--output_dir=RUN", *options, stdin=b"Ab. Cd.\n").code == 0
    assert Path("out").read_text() == ".bA .dC\n" and splitting == ["fr"]
    typed = program("t2t-decoder", "--output_dir=RUN", "--documents", "--decode_interactive", stdin=b"Ja. Nein.\n\n")
    assert typed == (0, "JA. NEIN.\n\n", "")


def test_decoder_names_the_line_of_a_sentence(program, translator, splitting, monkeypatch):
    def n_best(self, texts, n, beam_size, alpha, report, advance):
        report(2, "has 17 terms")
        advance(len(texts))
        return [[(text, 0.0)] for text in texts]

    monkeypatch.setattr(translator, "n_best", n_best)
    found = program("t2t-decoder", "--output_dir=RUN", "--documents", stdin=b"One. Two.\n\nThree.\n")
    assert found == (0, "One. Two.\n\nThree.\n", "line 3 has a sentence that has 17 terms\n")


def test_decoder_needs_a_package_for_documents(program, translator, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sentencex" else object())
    message = "t2t-decoder: sentencex is not installed; install it with: pip install 't2t_repro[documents]'\n"
    assert program("t2t-decoder", "--output_dir=RUN", "--documents", stdin=b"a\n") == (1, "", message)
    assert translator.calls == []


def test_decoder_samples(program, translator):
    options = ["--sampling_temperature=0.5", "--sampling_top_k=9", "--seed=4", "--n_best=2"]
    assert program("t2t-decoder", "--output_dir=RUN", *options, stdin=b"ab\n").out == "-2.5000\tba\n-2.5000\tba\n"
    assert translator.calls[1] == (["ab"], 2, ("temperature", 0.5), ("top_k", 9), ("seed", 4))
    assert translator.search_only


def test_decoder_scores(program, translator):
    Path("pairs.tsv").write_text("a\tb\n\tc\nlong\t\n")
    arguments = ["--output_dir=RUN", "--score_file=pairs.tsv", "--decode_to_file=scores"]
    assert program("t2t-decoder", *arguments) == (0, "", "line 3 has 9,999 tokens\n")
    assert Path("scores").read_text() == "-1.2500\t-1.0000 -0.2500\n" * 2 + "-inf\t\n"
    assert not translator.search_only


def test_decoder_raises_the_beam_to_n_best(program, translator):
    assert program("t2t-decoder", "--output_dir=RUN", "--n_best=8", stdin=b"a\n").out.count("\n") == 8
    assert translator.calls[1] == (["a"], 8, None, None)


def test_decoder_n_best_gives_n_lines_each(program, translator):
    out = program("t2t-decoder", "--output_dir=RUN", "--n_best=2", stdin=b"a\n\n").out
    assert out == "-0.5000\tA\n-1.2500\tA!\n0.0000\t\n-inf\t\n"


def test_decoder_keeps_a_newline_of_the_model_inside_its_line(program, translator, monkeypatch):
    monkeypatch.setattr(translator, "n_best", lambda self, texts, **_: [[("two\nlines", 0.0)] for _ in texts])
    assert program("t2t-decoder", "--output_dir=RUN", stdin=b"a\n").out == "two lines\n"


def test_decoder_interactive(program, translator):
    code, out, err = program("t2t-decoder", "--output_dir=RUN", "--decode_interactive", stdin=b"ja\n\xff\nnein")
    assert (code, out) == (0, "-0.5000\tJA\n-0.5000\tNEIN\n")
    assert err == "the line is not valid UTF-8; type it again\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 1, "standard input, line 2: not UTF-8 (byte 0xe9 at position 3); convert the file to UTF-8"),
        (["--decode_from_file=none"], 1, "no file 'none'; give a UTF-8 text file"),
        (["--decode_to_file=no/out"], 1, "--decode_to_file: no directory 'no'; create it first"),
        (["--decode_to_file=RUN"], 1, "--decode_to_file: 'RUN' is a directory; give a file"),
        (
            ["--decode_from_file=three.tsv", "--decode_to_file=./three.tsv"],
            2,
            "--decode_to_file=./three.tsv would replace the file of --decode_from_file; give another one (see "
            "t2t-decoder --help)",
        ),
        (["--alpha=-1"], 1, "--alpha must be at least 0 and finite, got -1.0"),
        (["--alpha=nan"], 1, "--alpha must be at least 0 and finite, got nan"),
        (["--min_length=1025"], 1, "--min_length must be at most 1,024, got 1,025"),
        *(
            (
                [f"--{name}=3000000000"],
                2,
                f"flag --{name}=3000000000: expected an integer in the range [{least}, 2147483647] (see "
                "t2t-decoder --help)",
            )
            for name, least in (("min_length", 0), ("sampling_top_k", 0), ("n_best", 1), ("beam_size", 1))
        ),
        (
            ["--n_best=5", "--beam_size=4"],
            2,
            "--n_best=5 is more than --beam_size=4; raise --beam_size (see t2t-decoder --help)",
        ),
        (
            ["--decode_interactive", "--decode_to_file=out"],
            2,
            "--decode_interactive reads from the keyboard; remove --decode_to_file (see t2t-decoder --help)",
        ),
        (
            ["--sampling_temperature=1", "--beam_size=2"],
            2,
            "--sampling_temperature replaces beam search; remove --beam_size (see t2t-decoder --help)",
        ),
        (["--sampling_temperature=0"], 1, "--sampling_temperature must be above 0 and finite, got 0.0"),
        (
            ["--sampling_top_k=5"],
            2,
            "--sampling_top_k is only for sampling; give --sampling_temperature too (see t2t-decoder --help)",
        ),
        (
            ["--score_file=three.tsv", "--n_best=2"],
            2,
            "--score_file scores given translations; remove --n_best (see t2t-decoder --help)",
        ),
        (
            ["--glossary=three.tsv"],
            1,
            "three.tsv, line 2: the term 'a' is on line 1 too; give its forms there",
        ),
        (
            ["--glossary=none"],
            1,
            "no glossary 'none'; give a file with a term, a tab and its forms on each line",
        ),
        (
            ["--sampling_temperature=1", "--glossary=three.tsv"],
            2,
            "--sampling_temperature replaces beam search; remove --glossary (see t2t-decoder --help)",
        ),
        (
            ["--documents", "--prefix_file=one", "--min_length=2"],
            2,
            "--documents translates sentences that it finds; remove --prefix_file (see t2t-decoder --help)",
        ),
        (
            ["--score_file=three.tsv", "--documents"],
            2,
            "--score_file scores given translations; remove --documents (see t2t-decoder --help)",
        ),
        (
            ["--language=en"],
            2,
            "--language is only to split lines into sentences; give --documents too (see t2t-decoder --help)",
        ),
        (
            ["--documents", "--language=german"],
            1,
            "--language must be an ISO 639 code such as 'en' or 'pt-BR', got 'german'",
        ),
        (["--score_file=three.tsv"], 1, "three.tsv, line 2: expected a source, a tab and a target, got 2 tabs"),
        (
            ["--decode_from_file=three.tsv", "--prefix_file=one"],
            1,
            "one: expected 3 prefixes, one per line to translate, got 1",
        ),
    ],
)
def test_decoder_rejects_before_it_writes(program, translator, arguments, code, message):
    Path("three.tsv").write_text("a\tb\na\tb\tc\na\n")
    Path("one").write_text("der\n")
    result = program("t2t-decoder", "--output_dir=RUN", *arguments, stdin=b"ein\nzw\xe9i\n")
    assert result == (code, "", f"t2t-decoder: {message}\n")
    assert translator.calls == [] and not os.path.exists("out")


@pytest.mark.parametrize("to_a_terminal", [True, False])
def test_prompt_on_a_terminal_and_never_in_the_output(to_a_terminal):
    source = "from t2t_repro.cli.text_lines import converse; converse(lambda line: [line.upper()])"
    keyboard, terminal = pty.openpty()
    stdout = terminal if to_a_terminal else subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TERM": "dumb"}
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, env=environment, stdin=terminal, stdout=stdout, stderr=subprocess.PIPE) as child:
        watchdog = threading.Timer(20, child.kill)
        watchdog.start()
        shown = keyboard if to_a_terminal else child.stderr.fileno()
        _wait_for(b"> ", shown)
        os.write(keyboard, b"abc\n")
        _wait_for(b"> ", shown)
        os.write(keyboard, b"\x04")
        assert child.wait() == 0
        watchdog.cancel()
        assert child.stderr.read() == b""
        if not to_a_terminal:
            assert child.stdout.read() == b"ABC\n"
    os.close(keyboard)
    os.close(terminal)


def _wait_for(text, descriptor):
    seen = b""
    while text not in seen:
        seen += os.read(descriptor, 1)


def test_well_formed_is_rejected_for_translation(program, run):
    message = (
        "t2t-decoder: --well_formed is only for parsing, and 'RUN' is a translation run (see t2t-decoder --help)\n"
    )
    assert program("t2t-decoder", "--output_dir=RUN", "--well_formed") == (2, "", message)


@pytest.mark.parametrize(
    "flag",
    ["prefix_file=prefixes", "min_length=2", "sampling_temperature=0.5", "score_file=pairs.tsv", "glossary=terms.tsv"]
    + ["documents"],
)
def test_translation_flags_are_rejected_for_parsing(program, run, flag):
    problem = Problem(name="parse_files", description="", vocab_size=100, metric="f1")
    dataclasses.replace(run, directory="PARSE", problem=problem).start(run.vocabulary)
    message = f"--{flag.partition('=')[0]} is only for translation, and 'PARSE' is a parsing run"
    found = program("t2t-decoder", "--output_dir=PARSE", f"--{flag}")
    assert found == (2, "", f"t2t-decoder: {message} (see t2t-decoder --help)\n")


def test_eval(program, stand_in, run):
    calls = []

    def evaluate(output_dir, **named):
        calls.append((output_dir, named))
        return scores

    scores = {"bleu": 27.3, "problem": "größer", "split": "validation", "step": 8, "checkpoints": ["ckpt-8"]}
    stand_in("evaluation.evaluator", evaluate=evaluate, table=lambda scores: f"BLEU {scores['bleu']}")
    opened = SimpleNamespace(shards=lambda split: [])
    stand_in("data.dataset", Dataset=SimpleNamespace(of_run=lambda run, data_dir: opened))
    options = ["--split=validation", "--average_checkpoints=5", "--beam_size=1"]
    assert program("t2t-eval", "--output_dir=RUN", *options) == (0, "BLEU 27.3\n", "")
    named = {"split": "validation", "average_checkpoints": 5, "average_best": False, "beam_size": 1, "alpha": None}
    named |= {"moving_average": False, "shortlist": None}
    assert calls == [("RUN", named | {"int8": False, "precision": "auto", "data_dir": None})]
    assert json.loads(program("t2t-eval", "--output_dir=RUN", "--json").out) == scores
    with open("RUN/scores.jsonl", encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == [scores] * 2
    assert len([name for name in os.listdir("RUN") if name.startswith("events.out.tfevents.")]) == 2


def test_eval_of_a_damaged_run(program, run):
    with open("RUN/run.json", "w") as file:
        file.write("{")
    code, out, err = program("t2t-eval", "--output_dir=RUN")
    assert (code, out) == (1, "") and err.startswith("t2t-eval: RUN/run.json is damaged: not JSON")


def test_override_and_train_steps_are_checked_together(program, monkeypatch, tmp_path):
    """A set of 1,500 steps may have a longer decay if training is longer."""
    found: list[HParams] = []
    monkeypatch.setattr(t2t_trainer, "estimate", lambda problem, hparams, options: found.append(hparams))
    arguments = [
        "--problem=translate_ende_cldr",
        "--hparams=tiny",
        f"--data_dir={tmp_path}",
        f"--output_dir={tmp_path}/RUN",
    ]
    decay = ["--override=decay_steps=2000", "--override=train_steps=3000", "--dry_run"]
    assert program("t2t-trainer", *arguments, *decay, "--train_steps=5000").code == 0
    assert (found[0].train_steps, found[0].decay_steps) == (5000, 2000)
    result = program("t2t-trainer", *arguments, *decay, "--train_steps=1000")
    assert result.code == 1 and "decay_steps must be at most --train_steps = 1,000, got 2,000" in result.err


def test_messages_whose_reader_has_left_are_dropped(monkeypatch):
    """As after Ctrl-C in `t2t-trainer 2>&1 | tee log`: training still saves a checkpoint."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        launcher.report("progress")
        report("progress")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what was not written is written at the end
