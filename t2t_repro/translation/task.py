"""The translation task: lines of text in two languages, unconstrained beam search, scored by BLEU and chrF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from t2t_repro.problem import Pair
from t2t_repro.task import Decoder, Task

if TYPE_CHECKING:
    from t2t_repro.alignment.head import ChosenHead
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.evaluation.comparison import Compared
    from t2t_repro.inference.translator import Translator
    from t2t_repro.run import Run
    from t2t_repro.training.validation import Sample

RESAMPLED = 1_000  # bootstrap samples for the confidence interval of BLEU


class Translation:
    """See `t2t_repro.task.Task` for the methods."""

    name = "translation"
    metrics: tuple[str, ...] = ("bleu", "chrf")
    takes_trees = False
    segmented_sides: tuple[str, ...] = ("inputs", "targets")
    own_files = "translate_files"
    preview_extra_length = 20
    signature = "serving_default"
    unconstrained_note = ""
    page_hint = "One sentence per line"
    page_action = "Translate"
    page_result = "Translation"

    def linearized(self, linearization: str) -> Task:
        return self

    def constraint(self, vocabulary: Vocabulary) -> None:
        return None

    def alignment_head(
        self,
        translator: Translator,
        run: Run,
        data_dir: str | None,
        report: Callable[[str], None],
        again: bool = False,
    ) -> ChosenHead:
        from t2t_repro.translation.alignments import chosen_head

        return chosen_head(translator, run, data_dir, report, again)

    def decoder(self, translator: Any, well_formed: bool = False, min_confidence: float = 0.0) -> Decoder:
        return cast(Decoder, translator)

    def as_target(self, output: str) -> str:
        return output

    def summary(self, decoder: Any) -> str:
        return ""

    def served(self, signature: str, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        return outputs

    def references(
        self, dataset: Dataset, split: str, vocabulary: Vocabulary, longest: int | None = None
    ) -> list[Pair]:
        """Returns the (source, target) text of each pair. The vocabulary is reversible, so the shards contain the exact
        text."""
        from t2t_repro.data import input_pipeline
        from t2t_repro.text.token_ids import PAD

        sides: dict[str, list[list[int]]] = {"inputs": [], "targets": []}
        for batch in input_pipeline.evaluation_batches(dataset.shards(split)):
            lengths = (batch["inputs"].numpy() != PAD).sum(axis=1)
            kept = lengths <= (lengths if longest is None else longest)
            for side, found in sides.items():
                found += batch[side].numpy()[kept].tolist()
        sources, targets = (vocabulary.decode(found) for found in sides.values())
        return list(zip(sources, targets, strict=True))

    def scores(
        self,
        translator: Translator,
        references: Sequence[Pair],
        language: str,
        beam_size: int | None,
        alpha: float | None,
    ) -> dict[str, Any]:
        """Returns BLEU, chrF and, for target languages of Moses' tokenizer, BLEU by the paper's and Multi30k's recipe.

        The 95% interval of BLEU is from bootstrap resampling of the sentences (Koehn, 2004). "length_ratio" is the
        number of tokens of all translations over that of the references. Below 1, BLEU has the factor
        exp(1 - 1 / length_ratio), "brevity_penalty".
        """
        import sacrebleu

        from t2t_repro.evaluation import moses
        from t2t_repro.evaluation.bleu import multi30k, paper

        sources, targets = ([pair[side] for pair in references] for side in (0, 1))
        translations = self.decode(translator, references, beam_size, alpha)
        scores: dict[str, Any] = {"sentences": len(sources)}
        for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
            found = metric.corpus_score(translations, [targets])
            scores |= {name: found.score, f"{name}_signature": str(metric.get_signature())}
            if name == "bleu":
                scores |= {"length_ratio": found.ratio, "brevity_penalty": found.bp}
        resampled = sacrebleu.BLEU().corpus_score(translations, [targets], n_bootstrap=RESAMPLED)
        scores["bleu_interval"] = resampled._ci
        if language in moses.LANGUAGES:
            for name, recipe in (("paper_bleu", paper), ("multi30k_bleu", multi30k)):
                figure = recipe(translations, targets, language)
                scores |= {name: figure.bleu, f"{name}_signature": figure.signature}
        return scores

    def decode(
        self, translator: Translator, references: Sequence[Pair], beam_size: int | None, alpha: float | None
    ) -> list[str]:
        return translator.translate([source for source, _ in references], beam_size, alpha)

    def compared(self, references: Sequence[Pair], a: Sequence[str], b: Sequence[str]) -> Compared:
        import sacrebleu

        from t2t_repro.evaluation.comparison import Compared

        sources, targets = ([pair[side] for pair in references] for side in (0, 1))
        metrics = {"BLEU": sacrebleu.BLEU(force=True), "chrF": sacrebleu.CHRF()}
        return Compared(sources, targets, (a, b), (a, b), metrics)

    def compared_files(self, a: str, b: str, reference: str, source: str | None = None) -> Compared:
        from t2t_repro.evaluation.bleu import read_files

        *outputs, references = read_files(a, b, reference)
        sources = read_files(source, reference)[0] if source else [""] * len(references)
        return self.compared(list(zip(sources, references, strict=True)), *outputs)

    def score_rows(self, scores: Mapping[str, Any]) -> list[tuple[str, str]]:
        rows = [("BLEU", f"{scores['bleu']:.2f} +- {scores['bleu_interval']:.2f}  ({scores['bleu_signature']})")]
        for name, title in (("paper_bleu", "paper's BLEU"), ("multi30k_bleu", "lower case")):
            if name in scores:
                rows.append((title, f"{scores[name]:.2f}  ({scores[f'{name}_signature']})"))
        ratio, factor = scores["length_ratio"], scores["brevity_penalty"]
        rows.append(("length", f"{ratio:.3f} of the references (brevity penalty {factor:.3f})"))
        return [*rows, ("chrF", f"{scores['chrf']:.2f}  ({scores['chrf_signature']})")]

    def preview(self, translator: Translator, references: Sequence[Pair]) -> Sample:
        import sacrebleu

        from t2t_repro.training.validation import Sample

        pairs = [pair for pair in references if all(pair)]
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        found = translator.translate(sources, beam_size=1)
        scores = {"sample_BLEU": sacrebleu.corpus_bleu(found, [targets]).score} if found else {}
        return Sample(scores, list(zip(sources, targets, found, strict=True)))


TASK: Task = Translation()
