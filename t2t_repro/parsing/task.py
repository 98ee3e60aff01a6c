"""The parsing task: the source is the words of a tree, the target its linearization, and the score bracket F1.

It needs neither TensorFlow nor NumPy at import: the server rebuilds trees with this module.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never

from t2t_repro.parsing.linearization import TOP_DOWN, linearize_tree, rebuild, tree_words
from t2t_repro.parsing.trees import Tree, lines_of_trees, parse, parse_lines, read_trees
from t2t_repro.problem import LINEARIZATIONS
from t2t_repro.task import Decoder, Task

if TYPE_CHECKING:
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.evaluation.comparison import Compared
    from t2t_repro.inference.translator import Translator
    from t2t_repro.parsing.constrained_decoding import ParseConstraint
    from t2t_repro.parsing.parser import Parser
    from t2t_repro.run import Run
    from t2t_repro.training.validation import Sample

_UNCONSTRAINED_NOTE = """
This model is a parser: it reads tokens separated by spaces, and writes the same tokens with brackets between them. The
run's own decoding is constrained to these tokens, in order, and to balanced brackets. {engine} does not have this
constraint, so some outputs are not a tree over their tokens.
t2t_repro.parsing.linearization.rebuild(output, tokens{argument}) returns a tree over the list of tokens, and the number
of repairs. The signature "parse" of a SavedModel has the constraint.
"""


class Parsing:
    """See `t2t_repro.task.Task` for the methods."""

    name = "parsing"
    metrics: tuple[str, ...] = ("f1",)
    takes_trees = True
    segmented_sides: tuple[str, ...] = ("inputs",)  # decoding requires the usual segmentation of words in the target
    own_files = "parse_files"
    preview_extra_length = 200  # a linearized tree has about four times as many tokens as words
    signature = "parse"
    page_hint = "One sentence per line, tokens separated by spaces"
    page_action = "Parse"
    page_result = "Tree"

    def __init__(self, linearization: str = TOP_DOWN):
        if linearization not in LINEARIZATIONS:
            raise ValueError(f"linearization must be one of {', '.join(LINEARIZATIONS)}, got {linearization!r}")
        self.linearization = linearization
        argument = "" if linearization == TOP_DOWN else f", linearization={linearization!r}"
        self.unconstrained_note = _UNCONSTRAINED_NOTE.replace("{argument}", argument)

    def linearized(self, linearization: str) -> Parsing:
        return self if linearization == self.linearization else Parsing(linearization)

    def constraint(self, vocabulary: Vocabulary) -> ParseConstraint:
        from t2t_repro.parsing.constrained_decoding import ParseConstraint

        return ParseConstraint(vocabulary.subwords, self.linearization)

    def alignment_head(
        self, translator: Translator, run: Run, data_dir: str | None, report: Any, again: bool = False
    ) -> Never:
        raise ValueError(
            f"{run.directory!r} is a parsing run, whose output repeats the words of its input; decode it without "
            "alignments"
        )

    def decoder(self, translator: Any, well_formed: bool = False, min_confidence: float = 0.0) -> Decoder:
        return self._parser(translator, well_formed, min_confidence)

    def as_target(self, output: str) -> str:
        """Linearizes a tree in brackets. Text without brackets is linearized already."""
        return linearize_tree(parse(output), self.linearization) if output.lstrip().startswith("(") else output

    def summary(self, decoder: Any) -> str:
        return str(decoder.summary())

    def served(self, signature: str, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        """Adds trees to the symbols that `parse` writes. Older exports contain trees already."""
        if signature != self.signature or "symbols" in outputs:
            return outputs
        import numpy as np

        trees, repairs = [], []
        for text, symbols in zip(inputs["inputs"].tolist(), outputs["outputs"].tolist(), strict=True):
            words = tree_words(text.decode("utf-8", "replace"))
            written = symbols.decode("utf-8", "replace")
            tree, number = rebuild(written, words, linearization=self.linearization) if words else ("", 0)
            trees.append(str(tree).encode("utf-8"))
            repairs.append(number)
        made = {"outputs": np.array(trees, object), "repairs": np.array(repairs, np.int32)}
        return outputs | made | {"symbols": outputs["outputs"]}

    def references(
        self, dataset: Dataset, split: str, vocabulary: Vocabulary, longest: int | None = None
    ) -> list[Tree]:
        """Returns the gold trees."""
        golds = read_trees(dataset.trees(split))
        return [gold for gold in golds if longest is None or len(gold.words()) <= longest]

    def scores(
        self,
        translator: Translator,
        references: Sequence[Tree],
        language: str,
        beam_size: int | None,
        alpha: float | None,
    ) -> dict[str, Any]:
        """Returns scores in percent. `repaired` is the share of sentences whose output was not a tree over their
        words. `precision` alone would be the precision of the model's products."""
        from t2t_repro.parsing.evalb import evalb

        parser = self._parser(translator)
        trees = _parse_references(parser, references, beam_size, alpha)
        found = evalb(references, trees).all
        scores = {name: getattr(found, name) for name in ("f1", "complete_match", "skipped")}
        scores |= {"sentences": len(references), "bracket_recall": found.recall, "bracket_precision": found.precision}
        return scores | {"repaired": 100 * parser.repaired / len(references), "repairs": parser.repairs}

    def decode(
        self, translator: Translator, references: Sequence[Tree], beam_size: int | None, alpha: float | None
    ) -> list[Tree]:
        return _parse_references(self._parser(translator), references, beam_size, alpha)

    def compared(self, references: Sequence[Tree], a: Sequence[Tree], b: Sequence[Tree]) -> Compared:
        from t2t_repro.parsing.evalb import evalb
        from t2t_repro.parsing.paired import compared

        sources, golds = [" ".join(gold.words()) for gold in references], list(map(str, references))
        texts = list(map(str, a)), list(map(str, b))
        return compared(sources, golds, texts, evalb(references, a).rows, evalb(references, b).rows)

    def compared_files(self, a: str, b: str, reference: str, source: str | None = None) -> Compared:
        """Reads trees. The sources are the words of the references, so that `source` is not read."""
        from t2t_repro.parsing.evalb import evalb_files, outer_bracket_note
        from t2t_repro.parsing.paired import compared

        rows = [evalb_files(reference, path).rows for path in (a, b)]
        golds, *texts = ([line.strip() for line in lines_of_trees(path)] for path in (reference, a, b))
        words = (
            itertools.chain.from_iterable(tree.words() for tree in parse_lines([gold], reference)) for gold in golds
        )
        found = compared(list(map(" ".join, words)), golds, (texts[0], texts[1]), *rows)
        outer = [
            f"{name}: {note}" for name, path in (("A", a), ("B", b)) if (note := outer_bracket_note(reference, path))
        ]
        return dataclasses.replace(found, notes=(*found.notes, *outer))

    def score_rows(self, scores: Mapping[str, Any]) -> list[tuple[str, str]]:
        skipped = f"; {scores['skipped']:,} sentences of only punctuation are not scored" if scores["skipped"] else ""
        repaired = f"{scores['repaired']:.2f}% of outputs were not a tree over the words of their sentence"
        return [
            ("F1", f"{scores['f1']:.2f}  (labeled brackets, as EVALB counts with COLLINS.prm{skipped})"),
            ("brackets", f"recall {scores['bracket_recall']:.2f}, precision {scores['bracket_precision']:.2f}"),
            ("complete", f"{scores['complete_match']:.2f}% of sentences have every bracket right"),
            ("repaired", f"{repaired} ({scores['repairs']:,} repairs)"),
        ]

    def preview(self, translator: Translator, references: Sequence[Tree]) -> Sample:
        from t2t_repro.parsing.evalb import evalb
        from t2t_repro.training.validation import Sample

        trees = _parse_references(self._parser(translator), references, beam_size=1)
        shown = [(" ".join(gold.words()), str(gold), str(tree)) for gold, tree in zip(references, trees, strict=True)]
        return Sample({"sample_F1": evalb(references, trees).all.f1} if trees else {}, shown)

    def _parser(self, translator: Any, well_formed: bool = False, min_confidence: float = 0.0) -> Parser:
        from t2t_repro.parsing.parser import Parser

        return Parser(translator, well_formed, self.linearization, min_confidence)


def _parse_references(
    parser: Parser, golds: Sequence[Tree], beam_size: int | None, alpha: float | None = None
) -> list[Tree]:
    """Returns the parser's trees over gold's words, with gold's tags, by which EVALB deletes punctuation."""
    return parser.parse([gold.words() for gold in golds], beam_size, alpha, [gold.tags() for gold in golds])


TASK: Task = Parsing()
