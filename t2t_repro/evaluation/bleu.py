"""BLEU of two files in every common form, each with its signature and the results it is comparable with.

Users measured 27.52 to 29.02 for one system on newstest2014 with these forms (tensor2tensor issue 317): a BLEU without
its recipe is meaningless.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import sacrebleu

from t2t_repro import __version__
from t2t_repro.evaluation import moses
from t2t_repro.text.lines import read_lines

WIDTH = 80

# newstest2014 between English and German: SHA-256 of its lines, each with a newline. English has two forms: single
# spaces, as in sacreBLEU and most copies, and the SGML file of WMT, with two consecutive spaces in four lines.
NEWSTEST2014 = {
    "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e": "newstest2014, English to German",
    "7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971": "newstest2014, German to English",
    "1e10b7cb106e08ab9b3a4ed85f5c866bd9391d2659626e68a6e0904d5b1aebcf": "newstest2014, German to English",
}
# WMT finally dropped 266 of its 3,003 lines: complete articles, here as first and last line, counted from 1. The other
# 2,737 are `wmt14` in sacreBLEU; its `wmt14/full` has all of them, as do TFDS and tensor2tensor.
_DROPPED = (
    *((162, 168), (582, 611), (630, 648), (744, 785), (866, 883), (970, 978), (1001, 1010), (1101, 1108)),
    *((1226, 1246), (1436, 1455), (1554, 1568), (2231, 2297)),
)
NEWSTEST2014_KEPT = tuple(n - 1 for n in range(1, 3004) if not any(first <= n <= last for first, last in _DROPPED))

# Lines that should not be scored: pattern, description, remedy.
_REFUSED = (
    (
        re.compile(r"\s*<(\?xml|!doctype|dataset|srcset|refset|tstset|doc|seg)\b", re.IGNORECASE),
        "SGML or XML",
        "give the text of its segments, one per line",
    ),
    (re.compile(r".*(\S@@( |$)|\u2581)"), "split into subwords", "join the subwords to words first"),
)

# multi-bleu.perl reads bytes and splits only at ASCII spaces; Python would also split at these.
_NO_SPACES = {n: chr(0xE000 + n) for n in (0x1C, 0x1D, 0x1E, 0x1F, *range(0x80, 0x3001)) if chr(n).isspace()}

_COMPARE = {
    "sacreBLEU 13a": "Any sacreBLEU 13a score on this test set, and mteval-v13a's: those of papers since 2018.",
    "sacreBLEU intl": "Other intl scores on this test set; BLEU_cased of tensor2tensor's t2t-bleu is almost equal.",
    "sacreBLEU 13a, lower case": "Other lower-cased 13a scores on this test set, but not cased ones.",
    "sacreBLEU intl, lower case": (
        "Other lower-cased intl scores on this test set; BLEU_uncased of tensor2tensor's t2t-bleu is almost equal."
    ),
    "sacreBLEU 13a, 2,737 lines": "Scores on sacreBLEU's test set wmt14, which omits the other 266 lines.",
    "the paper's recipe": (
        "Table 2 on newstest2014, Table 3 on newstest2013, and scores with the same splitting of {words}; not "
        "sacreBLEU, which was 1.5 lower for the same English-German output (tensor2tensor issue 317)."
    ),
    "Multi30k's recipe": (
        "Papers on Multi30k, which score its lower-cased, tokenized text (lc.norm.tok) by multi-bleu.perl. For text "
        "that has this form already, take the score as it stands."
    ),
    "as it stands": "Scores of multi-bleu.perl on text with the same tokenization and case.",
}


@dataclass(frozen=True)
class Figure:
    """One BLEU in percent, with its components."""

    name: str
    bleu: float
    precisions: tuple[float, ...]  # percent, of 1-grams to 4-grams
    brevity_penalty: float
    hypothesis_length: int  # tokens
    reference_length: int
    signature: str
    compare: str  # the results it is comparable with, in one sentence

    def counts(self) -> str:
        """Returns the components of the score in the format of multi-bleu.perl."""
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = self.hypothesis_length / self.reference_length if self.reference_length else 0
        lengths = f"hyp_len={self.hypothesis_length}, ref_len={self.reference_length}"
        return f"{precisions} (BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, {lengths})"


def score_files(hypothesis: str, reference: str, language: str = "de") -> dict[str, Any]:
    """Returns every form of BLEU for two text files whose lines correspond.

    `language` selects Moses' tokenizer, for the paper's and Multi30k's recipe: one of `moses.LANGUAGES`. Raises
    FileNotFoundError, and ValueError with the reason for files that give no meaningful score.
    """
    hypotheses, references = read_files(hypothesis, reference)
    files = {"hypothesis": hypothesis, "reference": reference, "lines": len(references)}
    figures = [asdict(each) for each in score(hypotheses, references, language)]
    return files | {"test_set": known_test_set(references), "figures": figures}


def score(hypotheses: Sequence[str], references: Sequence[str], language: str = "de") -> list[Figure]:
    """Returns every form of BLEU for translations and references, which are plain text and equally many."""
    both = hypotheses, references
    figures = [
        figure("sacreBLEU 13a", *both),
        figure("sacreBLEU intl", *both, tokenize="intl", force=True),
        figure("sacreBLEU 13a, lower case", *both, lowercase=True, force=True),
        figure("sacreBLEU intl, lower case", *both, lowercase=True, tokenize="intl", force=True),
    ]
    if known_test_set(references):
        subset = ([side[n] for n in NEWSTEST2014_KEPT] for side in both)
        figures.append(figure("sacreBLEU 13a, 2,737 lines", *subset, force=True))
    return [*figures, paper(*both, language), multi30k(*both, language), plain(*both)]


def figure(name: str, hypotheses: Sequence[str], references: Sequence[str], **options: Any) -> Figure:
    """Returns sacreBLEU's score with these options, under one of the names above."""
    metric = sacrebleu.BLEU(**options)
    found = metric.corpus_score(hypotheses, [references])
    return Figure(
        name=name,
        bleu=found.score,
        precisions=tuple(found.precisions),
        brevity_penalty=found.bp,
        hypothesis_length=found.sys_len,
        reference_length=found.ref_len,
        signature=str(metric.get_signature()),
        compare=_COMPARE[name],
    )


def plain(hypotheses: Sequence[str], references: Sequence[str], name: str = "as it stands") -> Figure:
    """Returns BLEU of tokens separated by ASCII spaces, without smoothing, as multi-bleu.perl computes it."""
    both = ([line.translate(_NO_SPACES) for line in side] for side in (hypotheses, references))
    return figure(name, *both, tokenize="none", smooth_method="none", force=True)


def paper(hypotheses: Sequence[str], references: Sequence[str], language: str = "de") -> Figure:
    """Returns the paper's BLEU: Moses' tokens, in German with split compounds, scored as by multi-bleu.perl.

    Compounds are split as in tensor2tensor's get_ende_bleu.sh, so that scores are comparable with those of GNMT and
    ConvS2S. There is no such script for other languages.
    """
    found = plain(recipe(hypotheses, language), recipe(references, language), "the paper's recipe")
    found = _with_tokens(found, f"moses-{language}" + "-compounds" * (language == "de"))
    return replace(found, compare=found.compare.format(words="compounds" if language == "de" else "words"))


def multi30k(hypotheses: Sequence[str], references: Sequence[str], language: str = "de") -> Figure:
    """Returns BLEU of text in lower case with Moses' punctuation and tokens, scored as by multi-bleu.perl.

    The text becomes that of Multi30k's files `lc.norm.tok`, as its task1-tokenize.sh makes them.
    """
    one, two = ([lower_case_tokens(line, language) for line in side] for side in (hypotheses, references))
    found = plain(one, two, "Multi30k's recipe")
    return _with_tokens(
        replace(found, signature=found.signature.replace("case:mixed", "case:lc")), f"moses-norm-{language}"
    )


def _with_tokens(found: Figure, tokens: str) -> Figure:
    """Returns a score of `plain` with the name of its tokenization in the signature."""
    signature = found.signature.replace("tok:none", f"tok:{tokens}") + f"|t2t_repro:{__version__}"
    return replace(found, signature=signature)


def recipe(lines: Sequence[str], language: str) -> list[str]:
    """Returns lines as tokenized for the paper's BLEU."""
    tokenized = [moses.tokenize(moses.replace_punctuation(line), language) for line in lines]
    return [moses.split_compounds(line) for line in tokenized] if language == "de" else tokenized


def lower_case_tokens(line: str, language: str) -> str:
    """Returns a line as Multi30k's tokenized files have it, except for the escaping of & < > and similar characters."""
    return moses.tokenize(moses.normalize_punctuation(line.lower(), language), language, keep_last_stop=True)


def known_test_set(references: Sequence[str]) -> str | None:
    """Returns the name of the test set if the references are all of newstest2014 between English and German."""
    text = "".join(f"{line}\n" for line in references)
    return NEWSTEST2014.get(hashlib.sha256(text.encode("utf-8")).hexdigest())


def table(scores: dict[str, Any]) -> str:
    """Returns the result of `score_files` as text."""
    test_set = f", {scores['test_set']}" if scores["test_set"] else ""
    lines = [f"{scores['hypothesis']} against {scores['reference']}: {_lines(scores['lines'])}{test_set}"]
    for each in (Figure(**found) for found in scores["figures"]):
        lines += ["", f"{each.bleu:5.2f}  {each.name}"]
        lines += [" " * 7 + line for line in (each.counts(), each.signature, *textwrap.wrap(each.compare, WIDTH - 7))]
    return "\n".join(lines)


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count > 1)}"


def read_files(*paths: str) -> list[list[str]]:
    """Returns the lines of translations and references. Raises FileNotFoundError, and ValueError as `score_files`."""
    found = [_read(path) for path in paths]
    for path, lines in zip(paths, found, strict=True):
        if len(lines) != len(found[-1]):
            raise ValueError(
                f"{path} has {_lines(len(lines))} and {paths[-1]} has {len(found[-1]):,}; "
                "give files of equal length, whose lines correspond"
            )
    return found


def _read(path: str) -> list[str]:
    lines = list(read_lines(path, keep_mark=True))  # a byte order mark is text, as in sacreBLEU and Moses
    if not lines:
        raise ValueError(f"{path} is empty; expected one sentence per line")
    for pattern, what, remedy in _REFUSED:
        found = [number for number, line in enumerate(lines, start=1) if pattern.match(line)]
        if 100 * len(found) >= len(lines):  # fewer are unusual sentences, not another format
            raise ValueError(
                f"{path}: {len(found):,} of {len(lines):,} lines are {what}, first line {found[0]:,} "
                f"({lines[found[0] - 1]!r:.50}); {remedy}"
            )
    return lines
