"""t2t-compare: equal to sacreBLEU's program, exact for few trees, and readable as text, JSON and a page."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from helpers.browser import Page
from helpers.made_runs import FILES, make_run
from helpers.tiny_model import test_pairs as pairs_of_test

from t2t_repro.evaluation import comparison
from t2t_repro.evaluation.comparison import compare, compared_runs
from t2t_repro.evaluation.comparison_page import as_html
from t2t_repro.inference.translator import Translator
from t2t_repro.parsing.evalb import Row
from t2t_repro.parsing.paired import compared as compared_trees
from t2t_repro.translation.task import TASK

WORDS = "der große kleine Hund sieht heute eine alte Katze im Garten vor dem Haus und schläft".split()
REFERENCES = [" ".join((WORDS * 2)[n % 7 : n % 7 + 6 + n % 5]) + "." for n in range(80)]
A = [line.replace("alte", "junge").replace("Hund", "Bär" if n % 3 else "Hund") for n, line in enumerate(REFERENCES)]
B = [line.replace("Hund", "Bär" if n % 2 else "Hund").replace("im", "am") for n, line in enumerate(REFERENCES)]


def compared(a=A, b=B):
    return TASK.compared([("", line) for line in REFERENCES], a, b)


def both(result, metric):
    """Returns the p values of the bootstrap and of approximate randomization."""
    (found,) = [each for each in result.differences if each.metric == metric]
    return found.bootstrap_p, found.randomization_p


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("a", A), ("b", B), ("ref", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


# The tests.


def test_p_values_are_those_of_the_program_of_sacrebleu(files):
    found = {}
    for kind in ("bs", "ar"):
        command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "a", "b", "-m", "bleu", "chrf", f"--paired-{kind}"]
        environment = {name: value for name, value in os.environ.items() if name != "SACREBLEU_SEED"}
        done = subprocess.run([*command, "--format", "latex"], env=environment, capture_output=True, text=True)
        found[kind] = re.findall(r"= (\d\.\d+)\b", done.stdout)
    result = compare(("a", "b"), compared())
    expected = [[f"{both(result, metric)[which]:.4f}" for metric in ("BLEU", "chrF")] for which in (0, 1)]
    assert [found["bs"], found["ar"]] == expected
    assert any(p != "0.0001" for p in found["ar"])


def test_scores_are_those_of_sacrebleu():
    import sacrebleu

    bleu, chrf = compare(("a", "b"), compared()).differences
    assert bleu.a == pytest.approx(sacrebleu.corpus_bleu(A, [REFERENCES]).score)
    assert chrf.b == pytest.approx(sacrebleu.corpus_chrf(B, [REFERENCES]).score)
    assert bleu.difference == pytest.approx(bleu.b - bleu.a) and bleu.low < bleu.difference < bleu.high
    assert "|bs:1000|ar:10000|seed:12345|" in bleu.signature and "|nc:6|" in chrf.signature


def test_interval_is_that_of_the_middle_95_percent_of_the_resamples():
    import sacrebleu

    bleu, _ = compare(("a", "b"), compared(), resamples=60, trials=10).differences
    drawn = np.random.default_rng(12345).choice(len(A), size=(60, len(A)), replace=True)
    a, b = (
        [sacrebleu.corpus_bleu([side[n] for n in rows], [[REFERENCES[n] for n in rows]]).score for rows in drawn]
        for side in (A, B)
    )
    assert (bleu.low, bleu.high) == pytest.approx(tuple(np.percentile(np.subtract(b, a), [2.5, 97.5])))


@pytest.mark.slow
def test_same_seed_gives_the_same_result_and_another_one_another():
    first, again, other = (compare(("a", "b"), compared(), seed=seed) for seed in (7, 7, 8))
    assert first == again and first.differences != other.differences
    with pytest.raises(ValueError, match="seed must be at least 1. Received: seed=0"):
        compare(("a", "b"), compared(), seed=0)


def test_equal_outputs_are_not_different():
    """sacreBLEU's tests return p = 0.001 and p = 0.0001 here."""
    result = compare(("a", "b"), compared(A, A))
    assert result.differing == 0 and not result.better_a and not result.better_b
    for each in result.differences:
        assert (each.low, each.high, each.bootstrap_p, each.randomization_p) == (0, 0, 1, 1)
        assert each.verdict == "not significant"


@pytest.mark.parametrize(("different", "significant"), [(1, False), (4, False), (6, True)])
def test_few_different_outputs_are_no_evidence(different, significant):
    """If d outputs differ, two of 2^d swaps give the difference: none and all. sacreBLEU has p = 0.0001 here."""
    counts = [(6, 8)] * 40
    (found,) = compare(("a", "b"), trees_of(counts, [(8, 8)] * different + counts[different:])).differences
    assert found.randomization_p >= 2.0 ** (1 - different) * (1 - 1e-9)
    assert (found.randomization_p < 0.05) == significant


@pytest.mark.parametrize(("better", "worse", "exact"), [(7, 1, 0.0703), (8, 2, 0.1094), (12, 4, 0.0768)])
def test_swaps_with_the_same_difference_count(better, worse, exact):
    """One bracket more in some sentences and one less in others: the exact test is the sign test."""
    counts = [(6, 8)] * 90
    a = [(7, 8)] * worse + counts[worse:]
    b = counts[: 90 - better] + [(7, 8)] * better
    (found,) = compare(("a", "b"), trees_of(a, b)).differences
    assert found.randomization_p == pytest.approx(exact, abs=0.01)
    assert found.verdict == "not significant"


def test_systems_with_equal_scores_are_not_different():
    nothing = "甲乙丙", "丁戊己"  # for 13a each line is one word, so that BLEU is 0
    bleu, _ = compare(("a", "b"), compared([nothing[0]] * 80, [nothing[1]] * 80)).differences
    assert (bleu.a, bleu.b, bleu.bootstrap_p, bleu.randomization_p) == (0, 0, 1, 1)
    (found,) = compare(("a", "b"), trees_of([(0, 8)] * 20, [(0, 8)] * 20)).differences
    assert (found.a, found.bootstrap_p, found.randomization_p, found.verdict) == (0, 1, 1, "not significant")


def test_clear_difference_is_significant_in_both_directions():
    for a, b, verdict in ((REFERENCES, A, "A is better"), (A, REFERENCES, "B is better")):
        assert {each.verdict for each in compare(("a", "b"), compared(a, b)).differences} == {verdict}


def test_verdict_needs_both_tests():
    found = comparison.Difference("BLEU", 1.0, 2.0, 1.0, 0.0, 2.0, 0.04, 0.06, "")
    assert found.verdict == "not significant"
    assert dataclasses.replace(found, randomization_p=0.04).verdict == "B is better"


# Trees.


def rows(counts):
    return [Row(n, 9, 9, matched=matched, gold=8, test=test) for n, (matched, test) in enumerate(counts, start=1)]


def trees_of(a, b):
    lines = [f"(S {n})" for n in range(len(a))]
    return compared_trees(["words"] * len(a), lines, (lines, lines), rows(a), rows(b))


def f1(counts):
    matched, gold, test = sum(each[0] for each in counts), 8 * len(counts), sum(each[1] for each in counts)
    return 100 * 2 * matched / (gold + test)


COUNTS_A = [(5, 8), (6, 9), (4, 7), (8, 8), (3, 8), (6, 6), (5, 9), (7, 8), (2, 5), (6, 8)]
COUNTS_B = [(6, 8), (6, 8), (7, 7), (8, 8), (5, 8), (5, 7), (7, 9), (7, 8), (6, 7), (5, 8)]


def test_f1_is_that_of_all_counts_together():
    (found,) = compare(("a", "b"), trees_of(COUNTS_A, COUNTS_B)).differences
    assert (found.a, found.b) == (pytest.approx(f1(COUNTS_A)), pytest.approx(f1(COUNTS_B)))
    assert "evalb:COLLINS" in found.signature


def test_randomization_of_f1_is_close_to_the_exact_test():
    """The exact p value is the share of the 1,024 ways to swap outputs that give no smaller difference."""
    real = abs(f1(COUNTS_A) - f1(COUNTS_B))
    pairs = list(zip(COUNTS_A, COUNTS_B, strict=True))
    larger = 0
    for swaps in itertools.product((0, 1), repeat=len(pairs)):
        one, other = ([pair[swap ^ side] for pair, swap in zip(pairs, swaps, strict=True)] for side in (0, 1))
        larger += abs(f1(one) - f1(other)) > real - 1e-9
    (found,) = compare(("a", "b"), trees_of(COUNTS_A, COUNTS_B)).differences
    assert 0.02 < larger / 1024 < 0.2
    assert found.randomization_p == pytest.approx(larger / 1024, abs=0.012)


def test_interval_of_one_sentence_is_its_difference():
    (found,) = compare(("a", "b"), trees_of([(4, 8)], [(6, 8)])).differences
    assert (found.low, found.difference, found.high) == (25, 25, 25)


def test_sentences_that_evalb_does_not_score_count_nothing():
    trees = trees_of(COUNTS_A, COUNTS_B)
    a = [dataclasses.replace(row, status=1, message="9 words in gold, 8 in test") for row in trees.measured[0][:1]]
    trees = compared_trees(trees.sources, trees.references, trees.outputs, [*a, *trees.measured[0][1:]], rows(COUNTS_B))
    (found,) = compare(("a", "b"), trees).differences
    assert found.a == pytest.approx(f1(COUNTS_A[1:]))
    result = compare(("a", "b"), trees, shown=20)
    assert result.gains[0] == 0 and 1 not in {each.number for each in (*result.better_a, *result.better_b)}
    assert trees.notes == ("A, sentence 1: 9 words in gold, 8 in test; not scored",)


def test_outputs_without_trees_and_with_another_outer_bracket_are_named(program, tmp_path, monkeypatch):
    """Otherwise a system that leaves sentences out, or whose trees are written in another form, would win or lose."""
    monkeypatch.chdir(tmp_path)
    gold = "(S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))"
    for name, lines in (("gold", [gold] * 3), ("a", ["", gold, ""]), ("b", [f"( {gold})"] * 3)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    code, _, err = program("t2t-compare", "a", "b", "--gold=gold")
    assert code == 0 and err.splitlines() == [
        "A has no tree for 2 sentences, so its F1 is that of the others",
        "B: one file has an unlabeled bracket around its sentences, ( (S ...)), and EVALB counts it",
    ]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_of_trees(program, tmp_path, monkeypatch, suffix):
    import gzip

    monkeypatch.chdir(tmp_path)
    gold = "(S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))"
    other = "(S (NP (DT The)) (VP (NN law) (VBD changed)) (. .))"
    for name, lines in (("gold", [gold] * 3), ("a", [other, gold, gold]), ("b", [gold] * 3)):
        data = "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    code, out, err = program("t2t-compare", f"a{suffix}", f"b{suffix}", f"--gold=gold{suffix}", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["differences"][0]["a"] == pytest.approx(100 * 14 / 18)  # 1 + 3 + 3 of nine brackets are right
    assert found["better_b"][0]["source"] == "The law changed ." and found["better_a"] == []
    assert found["better_b"][0]["output_a"] == other


# Sentences.


def test_sentences_are_ranked_by_their_gain():
    result = compare(("a", "b"), trees_of(COUNTS_A, COUNTS_B), shown=3)
    gains = [f1([b]) - f1([a]) for a, b in zip(COUNTS_A, COUNTS_B, strict=True)]
    assert result.gains == pytest.approx(gains) and result.ranked_by == "F1"
    order = sorted(range(len(gains)), key=lambda n: -gains[n])
    assert [each.number - 1 for each in result.better_b] == order[:3]
    assert [each.number - 1 for each in result.better_a] == [n for n in reversed(order) if gains[n] < 0][:3]


def test_translations_are_ranked_by_chrf():
    result = compare(("a", "b"), compared(), shown=1)
    (found,) = result.better_b
    assert found.reference == REFERENCES[found.number - 1] and found.output_b == B[found.number - 1]
    assert result.ranked_by == "chrF" and found.b - found.a == pytest.approx(max(result.gains))


def test_of_equal_gains_the_longer_reference_is_first():
    trees = trees_of([(4, 8)] * 3, [(6, 8)] * 3)
    trees = dataclasses.replace(trees, references=["(S 1)", "(S longer)", "(S 3)"])
    assert [each.number for each in compare(("a", "b"), trees).better_b] == [2, 1, 3]


# Runs.


def test_runs_decode_the_text_of_the_first_one(trained, monkeypatch):
    seen = []

    def translate(self, texts, *options):
        seen.append(options)
        return [dict(pairs_of_test())[text] if len(seen) == 2 else "wrong" for text in texts]

    monkeypatch.setattr(Translator, "translate", translate)
    found = compared_runs((trained.directory, trained.directory), beam_size=2, alpha=0.5)
    assert sorted(zip(found.sources, found.references, strict=True)) == sorted(pairs_of_test())
    assert list(found.outputs[1]) == list(found.references) and set(found.outputs[0]) == {"wrong"}
    assert seen == [(2, 0.5)] * 2


def test_program_with_runs(program, trained):
    code, out, err = program("t2t-compare", trained.directory, trained.directory, "--beam_size=1", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["sentences"] == len(list(pairs_of_test())) and found["differing"] == 0


def test_runs_of_different_tasks_are_refused(tmp_path, program):
    trees = dataclasses.replace(FILES, name="parse_files", metric="f1")
    first, second = make_run(tmp_path, "tiny"), make_run(tmp_path, "tiny", trees, folder="others")
    with pytest.raises(ValueError, match="expected two runs with the same task. Received: .*'translation' and .*'pars"):
        compared_runs((first.directory, second.directory))
    french, german = (
        make_run(tmp_path, "tiny", dataclasses.replace(FILES, target_language=language), folder=language)
        for language in ("fr", "de")
    )
    with pytest.raises(ValueError, match="expected two runs with the same target language"):
        compared_runs((french.directory, german.directory))


# The program and the page.


def test_program_prints_scores_and_sentences(program, files):
    code, out, err = program("t2t-compare", "a", "b", "--reference=ref", "--source=ref", "--sentences=1")
    assert (code, err) == (0, "")
    result = compare(("a", "b"), compared(), shown=1)
    assert out.startswith("A  a\nB  b\n80 sentences; the outputs of ")
    for each in result.differences:
        assert f"\n{each.metric}{each.a:8.2f}{each.b:7.2f}{each.difference:+8.2f}  {each.low:+.2f} to " in out
        assert f"p = {each.bootstrap_p:.4f}" in out and f"p = {each.randomization_p:.4f}\n" in out
    (found,) = result.better_a
    assert (
        f"\n    source     {found.reference}\n    reference  {found.reference}\n    A          {found.output_a}" in out
    )
    assert out.count("\n  sentence ") == 2
    assert max(len(line) for line in out.splitlines() if "|" not in line and not line.startswith("    ")) <= 80


def test_the_page_replaces_no_file_that_is_read(program, files):
    for path in ("a", "ref"):
        code, _, err = program("t2t-compare", "a", "b", "--reference=ref", f"--html={path}")
        what = "A" if path == "a" else "the file of --reference"
        assert (code, err) == (
            2,
            f"t2t-compare: --html={path} would replace {what}; give another one (see t2t-compare --help)\n",
        )


def test_the_page_does_not_replace_what_the_program_prints_to(files):
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_compare", "a", "b", "--reference=ref", "--html=page"]
    with open("page", "wb") as page:
        done = subprocess.run(command, stdout=page, stderr=subprocess.PIPE, text=True)
    expected = "t2t-compare: --html: 'page' is what this program prints to; give another file\n"
    assert (done.returncode, done.stderr) == (1, expected) and os.path.getsize("page") == 0


def test_columns_stay_below_each_other_for_the_widest_interval():
    wide = comparison.Difference("F1", 0.0, 100.0, 100.0, -100.0, 100.0, 0.001, 0.001, "")
    found = dataclasses.replace(compare(("a", "b"), compared(), trials=10, resamples=10), differences=(wide,))
    heading, line = comparison.table(found).split("\n")[4:6]
    assert len(heading) == len(line) and "-100.00 to +100.00  p = 0.0010" in line


def test_program_for_files_needs_no_tensorflow(files):
    source = (
        "import sys; from t2t_repro.bin import t2t_compare; sys.argv = ['t2t-compare', 'a', 'b', '--reference=ref'];"
        "code = t2t_compare.main(); print(code, 'tensorflow' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("\n0 False\n"), done.stderr


def test_page_marks_the_words_that_differ_and_escapes_text(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, line in (("a<b>", "Ein <i>Hund</i> läuft hier"), ("b", "Ein Hund läuft hier"), ("r", "Ein Hund läuft")):
        (tmp_path / name).write_text(f"{line}\n", "utf-8")
    code, _, err = program("t2t-compare", "a<b>", "b", "--reference=r", "--html=page.html")
    assert (code, err) == (0, "wrote page.html\n")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert '<dd dir="auto">Ein <mark>&lt;i&gt;Hund&lt;/i&gt;</mark> läuft hier</dd>' in page
    assert '<dd dir="auto">Ein <mark>Hund</mark> läuft hier</dd>' in page
    assert "A: a&lt;b&gt;<br>B: b<br>1 sentence; the outputs of 1 differ.<br>" in page
    assert "<i>" not in page and "<script" not in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone_in_both_color_schemes(browser: Any, tmp_path, scheme):
    (tmp_path / "page.html").write_text(as_html(compare(("a" * 90, "b"), compared())), "utf-8")
    page = Page(browser)
    browser.get((tmp_path / "page.html").as_uri())
    page.media(scheme, width=390, height=800, phone=True)
    assert page("document.documentElement.scrollWidth") == 390
    assert page.texts("h2") == [f"Sentences in which {name} is better, by chrF" for name in "BA"]
    assert len(page.all("svg.chart")) == 1 and len(page.all("dl.texts")) == 10
    colors = page(
        "['body', '.texts', 'mark'].map((s) => getComputedStyle(document.querySelector(s)).backgroundColor)"
        ".concat(getComputedStyle(document.querySelector('mark')).color)"
    )
    dark = [sum(map(int, re.findall(r"\d+", color)[:3])) < 384 for color in colors]
    assert dark == ([False, False, False, True] if scheme == "light" else [True, True, True, False])
    assert page.errors() == []
