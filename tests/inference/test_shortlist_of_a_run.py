"""From a run to its shortlist, and back to translations: t2t-shortlist, t2t-decoder, and their Python functions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.tiny_model import silent

import t2t_repro
from t2t_repro.bin.t2t_shortlist import FLAGS
from t2t_repro.run import Run

TEXT = "3 red cats and 4 old dogs\n\n12 big cows\n"


@pytest.fixture(scope="module")
def learned(trained, tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("learned") / "shortlist.txt")
    assert t2t_repro.learn_shortlist(trained.directory, path, first=30, best=5, report=silent) == path
    return path


def test_program_writes_the_same_file_and_reports_its_coverage(program, trained, learned, tmp_path):
    path = tmp_path / "mine.txt"
    options = "--first=30", "--best=5", f"--shortlist={path}"
    code, out, err = program("t2t-shortlist", f"--output_dir={trained.directory}", *options)
    assert (code, out) == (0, f"{path}\n") and path.read_bytes() == Path(learned).read_bytes()
    assert "learned from " in err and "of the target tokens of" in err
    assert [FLAGS[name].default for name in ("first", "best", "pairs")] == [1_000, 20, 100_000]


def test_default_file_is_in_the_run(trained, tmp_path):
    shutil.copytree(trained.directory, tmp_path / "RUN")
    path = t2t_repro.learn_shortlist(str(tmp_path / "RUN"), pairs=50, report=silent)
    assert path == str(tmp_path / "RUN" / "shortlist.txt") == Run.open(str(tmp_path / "RUN")).shortlist
    assert t2t_repro.load(str(tmp_path / "RUN"), shortlist=Path(path)).shortlist is not None


def test_decoder_uses_it(program, trained, learned):
    command = "t2t-decoder", f"--output_dir={trained.directory}", "--precision=float32"
    code, out, _ = program(*command, f"--shortlist={learned}", stdin=TEXT.encode())
    model = t2t_repro.load(trained.directory, shortlist=learned, precision="float32")
    assert code == 0 and out.split("\n")[:-1] == model(TEXT.split("\n")[:-1])
    assert model.shortlist.found([]).sum() < model.vocabulary.size / 4


def test_evaluation_uses_it_and_records_it(trained, learned, monkeypatch):
    found = []
    search = t2t_repro.inference.translator.Translator.search
    monkeypatch.setattr(
        "t2t_repro.inference.translator.Translator.search",
        lambda *arguments: (found.append(arguments[-1] is not None), search(*arguments))[1],
    )
    scores = t2t_repro.evaluate(trained.directory, shortlist=Path(learned), beam_size=1)
    assert all(found) and found and scores["shortlist"] == learned


def test_another_shortlist_does_not_continue_an_output_file(program, trained, learned, tmp_path, monkeypatch):
    """The content of the file decides, not its name."""
    made_by = []
    monkeypatch.setattr(
        "t2t_repro.inference.line_windows.decode_to_file", lambda items, window, path, made, *rest: made_by.append(made)
    )
    command = [f"--output_dir={trained.directory}", f"--decode_to_file={tmp_path / 'out'}"]
    for content in (Path(learned).read_bytes(), b"\t\n"):
        (tmp_path / "list").write_bytes(content)
        assert program("t2t-decoder", *command, f"--shortlist={tmp_path / 'list'}").code == 0
    assert program("t2t-decoder", *command).code == 0
    assert len({made["shortlist"] for made in made_by}) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--shortlist=missing.txt"], 1, "cannot read shortlist 'missing.txt': No such file or directory; give a file"),
        (["--shortlist=x", "--score_file=pairs"], 2, "--score_file scores given translations; remove --shortlist"),
    ],
)
def test_wrong_command_line(program, trained, arguments, code, message):
    found = program("t2t-decoder", f"--output_dir={trained.directory}", *arguments)
    assert found.code == code and message in found.err and found.err.count("\n") == 1


def test_export_has_none(trained, learned, tmp_path):
    with pytest.raises(ValueError, match="the format saved_model decodes with all subwords. Received: shortlist="):
        t2t_repro.export(trained.directory, str(tmp_path), shortlist=learned)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="is an export, which decodes with all subwords; load the run instead"):
        t2t_repro.load(str(tmp_path), shortlist=learned)
