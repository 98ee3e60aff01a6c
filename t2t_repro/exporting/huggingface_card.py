"""README.md of an export to Hugging Face: a model card with an example that runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2t_repro.config import HParams

_README = """---
{header}
---

# {name}

A Transformer of "Attention Is All You Need"{of_run}, as a `MarianMTModel` of transformers (version 4.57 or later).

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
texts = [{example}]
inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
outputs = model.generate(**inputs, max_length=inputs["input_ids"].shape[1] + {extra})
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
```

FOLDER is the folder of this file. `max_length` is the run's own limit, {extra_length} tokens more than the source has,
for the longest source of the batch. A source has at most {max_positions:,} tokens.
{scores}
## Differences from the run

- The weights are those of the run, reordered and scaled so that transformers computes the same function. Logits differ
  by rounding alone. Greedy search (`num_beams=1`) gives the same tokens, unless two are equally likely up to rounding.
- Beam search differs. transformers divides the score of a translation by length^`length_penalty`, the run by
  ((5 + length) / 6)^alpha with alpha {alpha}. `generation_config.json` has the closest options.
- transformers translates an empty text, and white space. The run returns an empty text.
- The tokenizer gives the same tokens for every text, and the same text for tokens that spell one. If a sequence of byte
  tokens is not valid UTF-8, transformers decodes each of them as U+FFFD, and the run only those that are invalid.
- `tokenizers.Tokenizer.from_file("tokenizer.json")` reads `</s>` in a text as the end-of-sentence token unless its
  `encode_special_tokens` is true. `AutoTokenizer` and the run read it as text.
- CTranslate2's converter rejects this folder. t2t_repro exports a run to CTranslate2 itself.
{note}"""


def write(hparams: HParams, directory: str, card: dict[str, Any], note: str) -> None:
    """Writes README.md to `directory`. `card` is the content of `model_card.json`; without it nothing of the run is
    mentioned. `note` is a paragraph for the end."""
    problem = card.get("problem", {})
    with open(os.path.join(directory, "README.md"), "w", encoding="utf-8") as file:
        file.write(
            _README.format(
                header=_header(problem),
                name=problem.get("name", hparams.name),
                of_run=_of_run(card, hparams),
                example=", ".join(json.dumps(text, ensure_ascii=False) for text in _examples(problem)),
                extra=hparams.extra_length + 1,
                extra_length=hparams.extra_length,
                max_positions=hparams.max_positions,
                alpha=hparams.alpha,
                scores=_scores(card.get("scores", [])),
                note=note,
            )
        )


def _header(problem: dict[str, Any]) -> str:
    """Returns the metadata that Hugging Face reads, YAML. Unknown languages are left out, and so is the license."""
    is_translation = problem.get("metric", "bleu") == "bleu"
    languages = [problem.get(f"{side}_language", "") for side in ("source", "target")]
    lines = ["library_name: transformers", f"pipeline_tag: {'translation' if is_translation else 'text-generation'}"]
    if all(languages):
        lines += ["language:", *(f"- {json.dumps(language)}" for language in dict.fromkeys(languages))]  # no is false
    return "\n".join([*lines, "tags:", "- t2t_repro"])


def _of_run(card: dict[str, Any], hparams: HParams) -> str:
    if not card:
        return ""
    return (
        f", trained with t2t_repro on the problem `{card['problem']['name']}` with the hyperparameter set "
        f"`{hparams.name}`: {card['parameters']:,} parameters. `model_card.json` has the data, all hyperparameters, "
        "training and scores. This file is the same model"
    )


def _examples(problem: dict[str, Any]) -> list[str]:
    return [problem.get("example") or "a text", "another"]


def _scores(scores: list[dict[str, Any]]) -> str:
    """Returns a table of the scores of exactly these weights, decoded by the run itself; "" if there are none.

    Decoding in int8 rounds the weights, and a shortlist leaves subwords out, so these scores are left out too.
    """
    scores = [each for each in scores if not each.get("int8") and not each.get("shortlist")]
    names = {"bleu": "BLEU", "chrf": "chrF", "f1": "F1", "perplexity": "perplexity"}
    columns = [name for name in names if any(name in each for each in scores)]
    if not columns:
        return ""
    fields = ("split", "sentences", "beam_size", "alpha", "precision")
    rows = [[*fields, *(names[name] for name in columns)]]
    for each in scores:
        found = [f"{each[name]:.2f}" if isinstance(each.get(name), float) else "" for name in columns]
        rows.append([str(each.get(name, "")) for name in fields] + found)
    rows.insert(1, ["---"] * len(rows[0]))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["", "## Scores", "", "Of the run's own decoding with these weights:", "", *lines, ""])
