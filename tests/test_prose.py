"""Plain words: no retired word in any page or module, no line of Markdown prose above 120 characters.

`RETIRED` maps a pattern to the words to write instead. `passages` yields the prose of a page, and `code_passages` that
of a Python module: docstrings, comments and messages.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import CHECKOUT

PAGES = [*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").glob("*.md"))]
LINE = 120

MODULES = sorted(
    path
    for folder in ("t2t_repro", "bin", "problems", "hparams", "benchmarks", "tests")
    for path in (CHECKOUT / folder).rglob("*.py")
    if path != Path(__file__)  # which has the retired words
)
RECORDED = {"held out from train"}  # values in files that users have
FEW = 3  # words: a shorter string is a name or a key, not prose
FIRST_WORDS = {"what", "of", "whether", "where"}  # never the first word of a docstring
DIRECTIVE = re.compile(r"# *(?:noqa|type:|fmt:|!|ruff:)")

NOUNS = r"(?:tokens?|positions?|pairs?|lines?|sentences?|subwords?|requests?|updates?|steps?|s)"
CONDITION = r"(?:there (?:is|are|was|were)|it is missing|that is missing|memory runs out|nothing is given|it can)"
TAKES_ISE = "normal|linear|token|initial|optim|recogn|serial|organ|summar|parallel|quant|general"
RETIRED = {
    r"\ba training(?=[.,;:)]|$| (?:that|of|which|is|was|has|on|in|may|cannot|will|goes|ends|stops)\b)|\btrainings\b": (
        "a training run, or training"
    ),
    r"\b(?:an|one|per|each|every|which|this|last|first) update\b|[\d,]+ updates\b|\bupdates an epoch\b": "step",
    r"\bparts? of an update\b|\bpieces? of a part\b|\beight parts\b": "micro-batch",
    r"\b(?:[\d,]+|shared|target|source|target's|neighbou?ring) pieces\b|\bpieces a line\b": "subwords",
    r"\bsets? of hyperparameters\b": "hyperparameter set",
    r"\b(?:written|is|are|was|were|all|once) whole\b": "complete, intact, atomic",
    r"\bforet(?:ell|ells|elling|old)\b": "estimate, predicted",
    r"\bmend(?:s|ed|ing)?\b": "repair, fix",
    r"\b(?:comes?|came) to nothing\b": "diverge",
    rf"\bwhere {CONDITION}\b": "if, when",
    r"\b(?:is|are|was|were) told\b|\btells? the rest\b|\bsaid (?:too|now|then)\b": "report, print, log",
    r"(?<!there )\b(?:is|are|was|were) no (?:JSON|UTF-8|run|tree|number|directory)\b|\bholds no run\b": (
        "not JSON, not a run"
    ),
    r"\bso many\b": "n, at most n",
    r"\banew\b": "again",
    r"\bbesides\b": "also, in addition",
    r"\bbeforehand\b": "in advance",
    r"\b(?:by hand)\b": "manually",
    r"\b(?:is|was|been|be) begun\b|\bgo(?:es)? on (?:after|from|to|where|with)\b": "start, continue, resume",
    r"\bin turn\b": "alternating, interleaved",
    rf"\b{NOUNS} an? (?:second|side|line|update|step|epoch)\b": "per second, per side",
    r"\bwhat it is for\b|(?:^|[,;:] )of what\b": "its purpose, or the noun",
    r"\boriginals\b": "downloaded archives",
    r"\bheld[ -]out\b": "validation split",
    r"\bhow full batches\b": "padding efficiency",
    r"\blinear maps?\b": "projection, linear layer",
    r"\bends? of (?:a|the) sentence\b": "end-of-sentence token",
    r"\bgiven words\b": "constrained decoding",
    r"\bat once\b": "in parallel, immediately",
    r"\b(?:greatest|least) (?:lengths?|counts?)\b": "maximum, minimum length",
    rf"\b(?:{TAKES_ISE})is(?:e[sdr]?|ing|ations?)\b": "American spelling: -ize",
    r"\b(?:licen[c]es?|neighbour\w*|labelled|colours?|behaviours?|learnt|misspelt|centre[sd]?)\b": "American spelling",
}


class Passage(NamedTuple):
    line: int
    text: str


def passages(text: str) -> Iterator[Passage]:
    """Yields the paragraphs, list items and table rows of a page: no code, no comments, no addresses."""
    text = re.sub(r"(?s:^ *```.*?^ *```$)|^(?: {4}| {8})\S.*$|(?s:<!--.*?-->)|`[^`\n]*`", _blank, text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", _blank, text)
    lines: list[str] = []
    start = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if not line.strip() or re.match(r"\s*(?:[-*#|]|\d+\.) ?", line):
            if lines:
                yield Passage(start, " ".join(lines))
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line.strip())


def code_passages(source: str) -> Iterator[Passage]:
    """Yields the docstrings, the comments and the strings of more than `FEW` words of a module, without inline code."""
    tree = ast.parse(source)
    in_f_strings = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(each.value) if isinstance(each, ast.Constant) else "_" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in in_f_strings:
            text = node.value
        else:
            continue
        if len(text.split()) > FEW and text not in RECORDED:
            yield Passage(node.lineno, _without_code(text))
    comments: list[str] = []
    start = end = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            continues = token.start[0] == end + 1 and token.line.lstrip().startswith("#")
            if comments and not continues:
                yield Passage(start, _without_code(" ".join(comments)))
                comments = []
            start, end = start if comments else token.start[0], token.start[0]
            comments.append(token.string.lstrip("# "))
    if comments:
        yield Passage(start, _without_code(" ".join(comments)))


def _without_code(text: str) -> str:
    return " ".join(re.sub(r"`[^`]*`|https?://\S+", "_", text).split())


def docstrings(source: str) -> Iterator[Passage]:
    """Yields the docstrings of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Passage(node.body[0].lineno, text)


def starts_badly(docstring: str) -> bool:
    """Returns true unless the docstring may start with a verb or a noun phrase."""
    return docstring.split()[0].lower() in FIRST_WORDS


def _blank(match: re.Match[str]) -> str:
    """Returns something as long in lines, that no pattern matches."""
    return " _ " + "\n" * match[0].count("\n")


def retired(text: str) -> list[str]:
    """Returns each retired phrase of `text` with what to write instead."""
    found = [(match[0], instead) for pattern, instead in RETIRED.items() for match in re.finditer(pattern, text, re.I)]
    return [f"{phrase!r}: {instead}" for phrase, instead in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_no_retired_word(page: Path) -> None:
    found = [
        f"line {passage.line}: {each}"
        for passage in passages(page.read_text("utf-8"))
        for each in retired(passage.text)
    ]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_lines_fit(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^ *```$", _blank, page.read_text("utf-8"), flags=re.M | re.S)
    assert not [line for line in text.split("\n") if len(line) > LINE and not line.startswith("|")]


def test_modules_have_no_retired_word() -> None:
    found = [
        f"{module}:{passage.line}: {each}"
        for module in MODULES
        for passage in code_passages(module.read_text("utf-8"))
        for each in retired(passage.text)
    ]
    assert not found


def test_docstrings_start_with_a_verb_or_a_noun_phrase() -> None:
    found = [
        f"{module}:{each.line}: {each.text.partition('.')[0]}"
        for module in MODULES
        for each in docstrings(module.read_text("utf-8"))
        if starts_badly(each.text)
    ]
    assert not found


SAMPLE = '''"""A module."""


def decode():  # finished sentences leave the batch
    """Returns the best translation.

    {docstring}
    """
    # a comment of two lines,
    # {comment}
    anew = {{"anew": 1}}  # `anew` is a name
    raise ValueError(f"{message}; got {{anew}} and more")
'''


@pytest.mark.parametrize(
    ("place", "line"),
    [("docstring", 5), ("comment", 9), ("message", 12)],
)
def test_retired_word_in_a_module_is_found(place: str, line: int) -> None:
    plain = {"docstring": "It is complete.", "comment": "with a reason", "message": "expected one of these"}
    found = [
        [(passage.line, each) for passage in code_passages(SAMPLE.format(**words)) for each in retired(passage.text)]
        for words in (plain, plain | {place: "an update is mended anew"})
    ]
    clean, changed = found
    assert not clean and {at for at, _ in changed} == {line} and len(changed) == 3


@pytest.mark.parametrize("first", ["What is found.", "Of each model, its caches.", "Whether it ends.", "Where it is."])
def test_dangling_first_word_of_a_docstring_is_found(first: str) -> None:
    good, bad = (f'def f():\n    """{text}"""\n' for text in ("Returns the caches.", first))
    assert not any(starts_badly(each.text) for each in docstrings(good))
    assert all(starts_badly(each.text) for each in docstrings(bad)) and len(list(docstrings(bad))) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "A training that comes to nothing ends.",
        "An update is the same pairs.",
        "It took 1,200 updates.",
        "A shared vocabulary of 37,000 pieces.",
        "A file is there when it is whole.",
        "What is foretold may be mended.",
        "It is prepared where it is missing.",
        "The line is no JSON.",
        "It begins anew, and besides, by hand.",
        "The same command goes on where it stopped.",
        "1.9 times the tokens a second, 2,048 tokens a side.",
        "Both are trained at once, in turn.",
        "The greatest length counts the end of the sentence.",
        "Layer normalisation and the licence of colours.",
        "![Perplexity over 1,200 updates](curves.svg)",
    ],
)
def test_retired_word_is_found(sentence: str) -> None:
    page = f"# Title\n\nSome text.\n\n- {sentence}\n"
    assert [passage.line for passage in passages(page) if retired(passage.text)] == [5]


@pytest.mark.parametrize(
    "sentence",
    [
        "A training run, a training sentence, and training in bfloat16.",
        "Update the test, and set the path where you like.",
        "The whole text is one part of a larger map.",
        "A parser license, a labeled bracket, an optimistic color.",
        "Every test that no run executed; a second signal; on the one side.",
        "It starts immediately, by handing over.",
        "`t2t-trainer` said `anew`, see [the page](anew.md).",
        "<!-- by hand -->",
    ],
)
def test_ordinary_english_is_not_retired(sentence: str) -> None:
    assert not [each for passage in passages(sentence) for each in retired(passage.text)]


def test_code_is_not_prose_and_a_generated_table_is() -> None:
    page = "Text:\n\n```sh\nanew\n```\n\n    anew\n\n<!-- the table: anew -->\n| anew | `anew` |\n<!-- the end -->\n"
    assert [(passage.line, retired(passage.text)) for passage in passages(page) if retired(passage.text)] == [
        (10, ["'anew': again"])
    ]
