"""BLEU: equal to published scores and to the Moses scripts, and refused for unsuitable files."""

from __future__ import annotations

import csv
import gzip
import html
import json
import subprocess
import sys

import pytest

from t2t_repro.evaluation import bleu, moses
from t2t_repro.text.lines import read_lines

SYSTEMS = 16
FIRST = ("newstest2017.C-3MA.4959.en-de", "newstest2017.online-A.0.en-de")
REFERENCE = ["Der Hund sieht die alte Katze.", "Es regnet seit drei Tagen.", "Wir gehen um 8 Uhr nach Hause."]
HYPOTHESIS = ["Der Hund sieht eine alte Katze.", "Es regnet seit drei Tagen!", "Wir gehen um 8 Uhr nach Haus."]


# Tokens of Moses: each expectation was printed by the Perl scripts.


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("de", "Ja, z.B. „Nr. 5“ (1,5 Mio. Euro).", 'Ja , z.B. „ Nr. 5 " ( 1,5 Mio. Euro ) .'),
        ("de", "Am 3. Mai kam Dr. Ott.  Na und. dann?", "Am 3. Mai kam Dr. Ott . Na und. dann ?"),
        ("de", "Sie wurde 5.", "Sie wurde 5 ."),
        ("de", "Ach was... A,b,,5, 6,", "Ach was ... A , b , ,5 , 6 ,"),
        ("de", "Hans’ U-Bahn\u00a0fährt\u202f2\x01km", "Hans ' U-Bahn fährt 2km"),
        ("de", "１０％！　ｘ。Y", '" 0 % ! ｘ . Y'),
        ("de", " \t ", ""),
        ("en", "It's 90's rock 'n' roll, don't", "It 's 90 's rock ' n ' roll , don 't"),
        ("en", "No. 5 or No. Mr. X said 'stop.'", "No. 5 or No . Mr. X said ' stop . '"),
        ("fr", "L'État, c'est 5 M. Aujourd’hui", "L' État , c' est 5 M. Aujourd' hui"),
    ],
)
def test_tokens_equal_those_of_moses(language, text, tokens):
    assert moses.tokenize(moses.replace_punctuation(text), language) == tokens


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("de", "Er sagte: „Das kostet 5\u00a0000 Euro.“", 'er sagte : " das kostet 5,000 euro " .'),
        ("de", "Nr. 5 (»Hut«) am 3.", 'nr . 5 ( " hut " ) am 3.'),
        ("de", "Sie trägt ‚Rot‘, ein T–Shirt — neu…", 'sie trägt " rot " , ein t-shirt - neu ...'),
        ("de", "Bei 20\u00a0ºC, 30\u00a0cm und 5 %\u00a0!  (a) .", "bei 20 ºc , 30 cm und 5 % ! ( a ) ."),
        ("de", "Ein ``Hut'' und «Mütze».", 'ein " hut " und " mütze " .'),
        ("en", "He said “stop”, at 5\u00a0000 feet.", 'he said " stop , " at 5.000 feet .'),
        ("en", "It’s a ‘dog’.  The sign (red) : 5 %", 'it \'s a " dog . " the sign ( red ) : 5 %'),
        ("en", "A man`s hat 'x' at 5 p.m.", "a man 's hat ' x ' at 5 p.m."),
        ("fr", "L’homme dit «\u00a0oui\u00a0», à 5\u00a0000 m.", 'l\' homme dit " oui " , à 5,000 m.'),
        ("fr", "Un homme\u00a0: n° 5, nº\u00a06\u00a0? ´oui´", "un homme : n ° 5 , nº 6 ? ' oui'"),
    ],
)
def test_lower_case_tokens_equal_those_of_moses_in_2017(language, text, tokens):
    assert bleu.lower_case_tokens(text, language) == tokens


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("E-Mail - da", "E ##AT##-##AT## Mail - da"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),
        ("-x x- --", "-x x- --"),
    ],
)
def test_compounds(text, split):
    assert moses.split_compounds(text) == split


# Figures.


def test_perfect_translation_scores_100():
    for figure in bleu.score(REFERENCE, REFERENCE):
        assert figure.bleu == pytest.approx(100, abs=1e-9), figure.name


def test_no_smoothing_as_in_multi_bleu():
    found = bleu.plain(["a b c x"], ["a b c d"])
    assert found.bleu == 0
    assert found.counts() == "75.0/66.7/50.0/0.0 (BP=1.000, ratio=1.000, hyp_len=4, ref_len=4)"


def test_no_break_spaces_belong_to_words_as_in_multi_bleu():
    assert bleu.plain(["a\u00a0b c\u3000d\u2009e \x1c f"], ["a b c d e f"]).hypothesis_length == 4
    assert bleu.plain(["\u00a0 \u2009"], ["\u2009 \u00a0"]).precisions[:2] == (100, 0)


def test_brevity_penalty_of_a_manual_example():
    """Four tokens of five: every n-gram matches, so that BLEU is exp(1 - 5/4)."""
    found = bleu.plain(["a b c d"], ["a b c d e"])
    assert found.bleu == pytest.approx(77.8800783, abs=1e-6)
    assert found.counts() == "100.0/100.0/100.0/100.0 (BP=0.779, ratio=0.800, hyp_len=4, ref_len=5)"


def test_every_figure_has_a_signature_and_a_comparison():
    figures = {figure.name: figure for figure in bleu.score(HYPOTHESIS, REFERENCE)}
    assert len({figure.signature for figure in figures.values()}) == len(figures) == 7
    assert all(figure.compare.endswith(".") and "{" not in figure.compare for figure in figures.values())
    assert "|tok:13a|smooth:exp|" in figures["sacreBLEU 13a"].signature
    assert "|case:lc|" in figures["sacreBLEU intl, lower case"].signature
    assert "|tok:moses-de-compounds|smooth:none|" in figures["the paper's recipe"].signature
    assert "|case:lc|eff:no|tok:moses-norm-de|smooth:none|" in figures["Multi30k's recipe"].signature


def test_compounds_are_split_only_in_german():
    assert bleu.recipe(["E-Mail"], "de") == ["E ##AT##-##AT## Mail"]
    assert bleu.recipe(["E-Mail"], "fr") == ["E-Mail"]
    found = bleu.paper(HYPOTHESIS, REFERENCE, "fr")
    assert "|tok:moses-fr|" in found.signature and "compounds" not in found.compare


# Published scores.


def expected(corpora):
    with open(corpora / "bleu_check/wmt17_ende/expected.tsv", encoding="utf-8", newline="") as file:
        return {row["system"]: row for row in csv.DictReader(file, delimiter="\t")}


def check_system(folder, system, row):
    """Compares with every column of expected.tsv: WMT's score, sacreBLEU's, and that of the Moses scripts.

    The file of online-A starts with a byte order mark, which all three count as text.
    """
    hypotheses = list(read_lines(str(folder / f"hyp.{system}.gz"), keep_mark=True))
    references = list(read_lines(str(folder / "ref.de.gz")))
    sacre = bleu.figure("sacreBLEU 13a", hypotheses, references)
    assert sacre.bleu == pytest.approx(float(row["sacreBLEU 2.6.0 13a"]), rel=1e-14)  # Python 3.12 sums more exactly
    assert round(sacre.bleu, 2) == float(row["published mteval-v13a"])
    recipe = bleu.paper(hypotheses, references)
    assert f"{recipe.bleu:.2f}" == row["paper recipe (Moses scripts)"]
    assert recipe.counts() == row["its n-gram precisions and brevity penalty"]


@pytest.mark.corpora
@pytest.mark.parametrize("system", FIRST)
def test_system_of_wmt17(corpora, system):
    check_system(corpora / "bleu_check/wmt17_ende", system, expected(corpora)[system])


@pytest.mark.slow
@pytest.mark.corpora
def test_all_other_systems_of_wmt17(corpora):
    rows = expected(corpora)
    assert len(rows) == SYSTEMS
    for system, row in rows.items():
        if system not in FIRST:
            check_system(corpora / "bleu_check/wmt17_ende", system, row)


def multi30k_lines(corpora, form, split, language):
    return list(read_lines(str(corpora / "multi30k" / f"{form.format(split)}.{language}.gz")))


@pytest.mark.corpora
@pytest.mark.parametrize(
    "language", [pytest.param(code, marks=[pytest.mark.slow] * (code == "fr")) for code in moses.LANGUAGES]
)
def test_tokens_of_all_31014_lines_of_multi30k(corpora, language):
    """Equal to its tokenized files, in which Moses left one space at the end of a line."""
    for split in ("train", "val", "test_2016_flickr"):
        raw = multi30k_lines(corpora, "raw/{}", split, language)
        tokenized = multi30k_lines(corpora, "tok_lc/{}.lc.norm.tok", split, language)
        expected = [html.unescape(line).rstrip(" ") for line in tokenized]
        assert [bleu.lower_case_tokens(line, language).rstrip(" ") for line in raw] == expected


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("language", "printed"),  # by multi-bleu.perl, for the output of the Perl scripts and the tokenized references
    [
        ("de", "78.64, 100.0/91.9/83.2/75.1 (BP=0.903, ratio=0.908, hyp_len=10986, ref_len=12103)"),
        ("fr", "81.67, 100.0/93.1/85.8/78.9 (BP=0.917, ratio=0.920, hyp_len=12867, ref_len=13988)"),
    ],
)
def test_recipe_of_multi30k_equals_multi_bleu(corpora, language, printed):
    """The translations are the references, with one word missing per line."""
    references = multi30k_lines(corpora, "raw/{}", "test_2016_flickr", language)
    words = [(n, line.split(" ")) for n, line in enumerate(references)]
    hypotheses = [" ".join(line[: n % len(line)] + line[n % len(line) + 1 :]) for n, line in words]
    found = bleu.multi30k(hypotheses, references, language)
    assert f"{found.bleu:.2f}, {found.counts()}" == printed
    tokenized = [bleu.lower_case_tokens(line, language) for line in hypotheses]
    escaped = [html.escape(line).replace("&#x27;", "&apos;") for line in tokenized]
    provided = multi30k_lines(corpora, "tok_lc/{}.lc.norm.tok", "test_2016_flickr", language)
    assert bleu.plain(escaped, provided).bleu == found.bleu


@pytest.mark.corpora
def test_plain_bleu_of_tensorflow_nmt(corpora):
    """Its own test expects 22.5855084573. It counts an empty line as one token, so that empty lines get one here."""
    folder = corpora / "bleu_check/tfnmt_newstest2013_deen"
    hypotheses = [line or "EMPTY" for line in read_lines(str(folder / "deen_output.gz"))]
    references = [line.replace("@@ ", "") for line in read_lines(str(folder / "deen_ref_bpe.gz"))]
    assert bleu.plain(hypotheses, references).bleu == pytest.approx(22.5855084573, abs=1e-10)


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("newstest2014.en-de.de.gz", "English to German"),
        ("newstest2014.en-de.en.gz", "German to English"),
        ("sgm/newstest2014-deen-ref.de.sgm.gz", "English to German"),
        ("sgm/newstest2014-deen-src.en.sgm.gz", "German to English"),
    ],
)
def test_newstest2014_is_recognized_in_every_form(corpora, file, name):
    lines = list(read_lines(str(corpora / "newstest" / file)))
    assert bleu.known_test_set(lines) == f"newstest2014, {name}"
    assert bleu.known_test_set([*lines[:-1], "x"]) is None


@pytest.mark.corpora
def test_subset_of_newstest2014(corpora):
    kept = {int(line) for line in read_lines(str(corpora / "newstest/newstest2014.en-de.filtered2737.idx.gz"))}
    assert len(kept) == 2737 and bleu.NEWSTEST2014_KEPT == tuple(n for n in range(3003) if n + 1 in kept)
    references = list(read_lines(str(corpora / "newstest/newstest2014.en-de.de.gz")))
    hypotheses = [line if n + 1 in kept else "" for n, line in enumerate(references)]
    scores = {figure.name: figure for figure in bleu.score(hypotheses, references)}
    assert scores["sacreBLEU 13a, 2,737 lines"].bleu == pytest.approx(100, abs=1e-9)
    assert scores["sacreBLEU 13a"].bleu < 95


# Files that are refused.


@pytest.mark.parametrize(
    ("hypothesis", "message"),
    [
        (b"", "hyp is empty; expected one sentence per line"),
        (
            b"eins\nzwei\n",
            "hyp has 2 lines and ref has 3; give files of equal length, whose lines correspond",
        ),
        (b"eins\n", "hyp has 1 line and ref has 3; give files of equal length"),
        (b"eins\nzw\xe9i\ndrei\n", r"hyp, line 2: not UTF-8 \(byte 0xe9 at position 3\); convert the file to UTF-8"),
        (
            b'<refset setid="x" srclang="any">\n<doc docid="1">\n<seg id="1">Haus</seg>\n',
            "hyp: 3 of 3 lines are SGML or XML, first line 1 .*; give the text of its segments, one per",
        ),
        (
            b"Die Kat@@ ze\nschl@@ aft\nfest\n",
            r"hyp: 2 of 3 lines are split into subwords, first line 1 \('Die Kat@@ ze'\); join the subwords",
        ),
        (
            "▁Die ▁Kat ze\n▁schläft\n▁fest\n".encode(),
            "hyp: 3 of 3 lines are split into subwords, first line",
        ),
    ],
)
def test_refused(program, tmp_path, monkeypatch, hypothesis, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hyp").write_bytes(hypothesis)
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in REFERENCE), "utf-8")
    code, out, err = program("t2t-bleu", "hyp", "ref")
    assert (code, out) == (1, "")
    with pytest.raises(ValueError, match=f"^t2t-bleu: {message}"):
        raise ValueError(err)
    (tmp_path / "hyp").rename(tmp_path / "other")
    assert program("t2t-bleu", "other", "hyp").code == 1


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("line", ["Ha@@ us", '<seg id="1">Haus</seg>'])
def test_a_hundredth_of_the_lines_is_another_format(tmp_path, line, count):
    path = tmp_path / "text"
    path.write_text(f"{line}\n" * count + "Haus\n" * (200 - count))
    with pytest.raises(ValueError, match=f"text: {count} of 200 lines are "):
        bleu.score_files(str(path), str(path))


def test_references_are_refused_too(tmp_path):
    for name, line in (("hyp", "Haus"), ("ref", "Ha@@ us")):
        (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(ValueError, match="ref: 1 of 1 lines are split into subwords"):
        bleu.score_files(str(tmp_path / "hyp"), str(tmp_path / "ref"))


def test_empty_gz_is_refused(tmp_path):
    for name in ("hyp.gz", "ref.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="hyp.gz is empty; expected one sentence per line"):
        bleu.score_files(str(tmp_path / "hyp.gz"), str(tmp_path / "ref.gz"))


def test_one_unusual_line_is_not_another_format(tmp_path):
    path = tmp_path / "text"
    path.write_text("mail me@@ home\n<doc> is what it was called\n" + "Haus\n" * 199)
    assert bleu.score_files(str(path), str(path))["lines"] == 201


def test_one_line_is_singular(tmp_path):
    path = tmp_path / "text"
    path.write_text("Haus\n")
    assert bleu.table(bleu.score_files(str(path), str(path))).startswith(f"{path} against {path}: 1 line\n")


# The program.


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hyp").write_text("".join(f"{line}\r\n" for line in HYPOTHESIS), "utf-8")
    (tmp_path / "ref.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in REFERENCE).encode()))


def test_program_prints_every_figure(program, files):
    code, out, err = program("t2t-bleu", "hyp", "ref.gz")
    assert (code, err) == (0, "")
    assert out.startswith("hyp against ref.gz: 3 lines\n\n")
    for figure in bleu.score(HYPOTHESIS, REFERENCE):
        assert f"\n{figure.bleu:5.2f}  {figure.name}\n       {figure.counts()}\n       {figure.signature}\n" in out
    assert max(len(line) for line in out.splitlines() if "|" not in line) <= 80


def test_program_prints_json(program, files):
    scores = json.loads(program("t2t-bleu", "hyp", "ref.gz", "--json", "--language=en").out)
    assert (scores["hypothesis"], scores["lines"], scores["test_set"]) == ("hyp", 3, None)
    figures = bleu.score(HYPOTHESIS, REFERENCE, "en")
    assert [(each["name"], each["bleu"]) for each in scores["figures"]] == [(each.name, each.bleu) for each in figures]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing HYPOTHESIS"),
        (["hyp"], "missing REFERENCE"),
        (["a", "b", "c"], "unexpected argument 'c'; flags are written --name=value"),
        (["a", "b", "--jsn"], "unknown flag --jsn: did you mean --json?"),
        (["a", "b", "--language=nl"], "flag --language=nl: expected de|en|fr"),
    ],
)
def test_program_with_an_invalid_command_line(program, arguments, message):
    assert program("t2t-bleu", *arguments) == (2, "", f"t2t-bleu: {message} (see t2t-bleu --help)\n")


def test_program_with_a_missing_file(program, files):
    code, _, err = program("t2t-bleu", "hyp", "reff")
    assert (code, err) == (1, "t2t-bleu: no file 'reff'; give a text file with one sentence per line\n")


def test_program_needs_no_tensorflow():
    source = "import sys, t2t_repro.bin.t2t_bleu, t2t_repro.evaluation.bleu; print('tensorflow' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "False\n"
    )
