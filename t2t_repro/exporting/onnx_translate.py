"""Translates text with the ONNX model in the folder of this file, one sentence per line.

  pip install onnxruntime sentencepiece numpy
  python translate.py < text > translations
  python translate.py --beam_size=1 < text > translations

In Python, `Translator(FOLDER).translate(["a text", "another"])` returns a list.

Shapes: B sentences, M source length, W beam width, T steps done, C candidates.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

try:
    import numpy as np
    import onnxruntime
    import sentencepiece
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"translate.py: {missing}; install what it needs: pip install onnxruntime sentencepiece numpy")

PAD, EOS = 0, 1
NEVER = np.float32(-1e30)  # log-probability of an impossible beam; finite, so that differences are never NaN
BATCH_TOKENS = 2_048  # source positions of a batch, padding included, for a beam of at most `BATCH_WIDTH`
BATCH_WIDTH = 4
WINDOW = 1_024  # lines that are read together, to be sorted by length


class Beams(NamedTuple):
    """The state of a batch. Open beams and finished translations are sorted, best first."""

    sentences: np.ndarray  # [B] their numbers
    longest: np.ndarray  # [B] maximum number of tokens, EOS included
    tokens: np.ndarray  # [B, W] the newest token of each open beam
    log_p: np.ndarray  # [B, W] float32
    ids: np.ndarray  # [B, W, T]
    slots: np.ndarray  # [B, W, T] the entry of each step, 0 to W - 1, in the cache of keys and values
    finished: np.ndarray  # [B, W, T] ids
    scores: np.ndarray  # [B, W] float32, of the finished translations

    def rows(self, chosen: np.ndarray) -> Beams:
        return Beams(*(each[chosen] for each in self))


class Translator:
    """The model in `folder`, with its tokenizer. `threads` is for products; 0 means one per core.

    Raises ValueError if a file of the export is missing or damaged.
    """

    def __init__(self, folder: str, threads: int = 0):
        try:
            self._load(folder, threads)
        except Exception as error:  # those of onnxruntime have no other class in common
            reason = str(error).partition("\n")[0]
            raise ValueError(f"the model in {folder} cannot be loaded; export it again ({reason})") from error

    def _load(self, folder: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a third less processor time
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(os.path.join(folder, name), options, providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "decoder.onnx")
        )
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "vocabulary.model"))
        settings = self.decoder.get_modelmeta().custom_metadata_map
        self.beam_size, self.alpha = int(settings["beam_size"]), float(settings["alpha"])
        self.extra_length, self.max_positions = int(settings["extra_length"]), int(settings["max_positions"])
        self.memories = [each.name for each in self.encoder.get_outputs()]
        self.caches = [each for each in self.decoder.get_inputs() if each.name.startswith(("keys_", "values_"))]

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        alpha: float | None = None,
        report: Callable[[int, str], None] | None = None,
    ) -> list[str]:
        """Returns the best translation of each text, and "" for white space alone. A beam of 1 is greedy search.

        Only the first `max_positions` - 1 tokens of a longer text are translated; `report` is called with its number,
        from 0, and a message. Raises ValueError for a beam size or an alpha (the exponent of the length penalty) that
        no search supports, and for a string in place of a list.
        """
        if isinstance(texts, str | bytes):
            raise ValueError(f"texts must be a list of strings, got one string, {texts!r:.60}; wrap it in a list")
        width = self.beam_size if beam_size is None else beam_size
        penalty = self.alpha if alpha is None else alpha
        if not 1 <= width <= (self.tokenizer.get_piece_size() - 1) // 2:  # `search` asks for 2 width + 1 candidates
            raise ValueError(f"beam_size must be at least 1 and less than half of the vocabulary, got {width}")
        if not 0 <= penalty < float("inf"):
            raise ValueError(f"alpha must be at least 0 and finite, got {penalty}")
        sources = self.tokenizer.encode(list(texts), add_eos=True)
        cut = self.max_positions - 1
        for number, ids in enumerate(sources):
            if len(ids) > cut + 1:
                sources[number] = ids[:cut] + [EOS]
                if report and texts[number].strip():
                    report(number, f"has {len(ids):,} tokens; the first {cut:,} are translated")
        translations = [""] * len(texts)
        numbers = sorted((n for n, text in enumerate(texts) if text.strip()), key=lambda n: len(sources[n]))
        most = BATCH_TOKENS * BATCH_WIDTH // max(width, BATCH_WIDTH)
        for batch in _batches(numbers, sources, most):
            found = self.search([sources[n] for n in batch], width, penalty)
            for number, hypotheses in zip(batch, found, strict=True):
                translations[number] = self.tokenizer.decode(hypotheses[0][0][:-1])
        return translations

    def search(
        self, sources: Sequence[Sequence[int]], beam_size: int, alpha: float
    ) -> list[list[tuple[list[int], float]]]:
        """Returns the best translations of each source: ids that end in EOS, and scores, best first.

        This is beam search as in Wu et al. (2016, section 7). A score is a log-probability divided by
        ((5 + length) / 6)^alpha. At the maximum length only EOS may follow. A sentence is done when no open beam can
        still score higher than the worst of its finished translations.
        """
        width = np.arange(beam_size)
        beams = self._first(sources, beam_size)
        source_BM = np.zeros((len(sources), max(map(len, sources))), np.int64)
        for row, ids in zip(source_BM, sources, strict=True):
            row[: len(ids)] = ids
        fixed = {"source": _tensor(source_BM)}
        fixed |= zip(self.memories, self.encoder.run_with_ort_values(self.memories, dict(fixed)), strict=True)
        names = [each.name for each in self.caches]
        nothing = [np.zeros((len(sources), each.shape[1], 0, each.shape[3]), np.float32) for each in self.caches]
        caches = dict(zip(names, map(_tensor, nothing), strict=True))
        outputs = ["log_probabilities", "likeliest_log_p", "likeliest", *(f"new_{name}" for name in names)]
        candidates = 2 * beam_size if beam_size > 1 else 1  # at most half of them are EOS, so that beams stay open
        results: list[list[tuple[list[int], float]]] = [[] for _ in sources]
        while True:
            step = beams.ids.shape[2]
            best_B = beams.log_p[:, 0]
            can_improve_B = (best_B > NEVER / 2) & (beams.scores[:, -1] < best_B / _penalty(beams.longest, alpha))
            open_B = can_improve_B & (step < beams.longest)
            if open_B.mean() <= 0.75:  # remove sentences that are done; doing it more often copies more than it saves
                _finish(beams.rows(~open_B), results)
                beams = beams.rows(open_B)
                fixed, caches = ({name: _rows(x, open_B) for name, x in each.items()} for each in (fixed, caches))
            if not len(beams.sentences):
                return results

            slots_BWT = np.concatenate([beams.slots, np.broadcast_to(width[:, None], (*beams.log_p.shape, 1))], axis=2)
            visible_BWTW = slots_BWT[..., None] == width  # each beam attends to its own history
            inputs = {
                "tokens": beams.tokens,
                "position": np.array(step),
                "visible": visible_BWTW.reshape(*beams.log_p.shape, -1),
                "count": np.array([candidates + 1]),  # one more, as PAD may be among them
            }
            given = {name: _tensor(value) for name, value in inputs.items()} | fixed | caches
            all_log_p, log_p_BWC, likeliest_BWC, *grown = self.decoder.run_with_ort_values(outputs, given)
            caches = dict(zip(names, grown, strict=True))
            log_p_BWC, likeliest_BWC = log_p_BWC.numpy(), likeliest_BWC.numpy()
            log_p_BWC[likeliest_BWC == PAD] = NEVER
            last_B = step + 1 >= beams.longest
            if last_B.any():
                log_p_BWC[last_B] = NEVER
                log_p_BWC[last_B, :, 0] = all_log_p.numpy()[last_B, :, EOS]
                likeliest_BWC[last_B] = EOS
            beams = _extended(beams._replace(slots=slots_BWT), log_p_BWC, likeliest_BWC, candidates, alpha)

    def _first(self, sources: Sequence[Sequence[int]], width: int) -> Beams:
        """Returns the beams before the first step: one, because several would be the same."""
        shape = len(sources), width
        nothing = np.zeros((*shape, 0), np.int64)
        return Beams(
            sentences=np.arange(len(sources)),
            longest=np.array([len(ids) + self.extra_length for ids in sources]),
            tokens=np.full(shape, PAD, np.int64),  # the decoder starts with padding
            log_p=np.tile(np.where(np.arange(width) == 0, np.float32(0), NEVER), (len(sources), 1)),
            ids=nothing,
            slots=nothing,
            finished=nothing,
            scores=np.full(shape, NEVER, np.float32),
        )


def _batches(numbers: Sequence[int], sources: Sequence[Sequence[int]], most: int) -> Iterator[list[int]]:
    """Yields numbers of sources, which are sorted by length, in batches of at most `most` positions, or of one."""
    batch: list[int] = []
    for number in numbers:
        if batch and (len(batch) + 1) * len(sources[number]) > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _extended(beams: Beams, log_p_BWC: np.ndarray, tokens_BWC: np.ndarray, candidates: int, alpha: float) -> Beams:
    """Returns the beams after a step. Those that end are finished; the best others stay open."""
    rows, width, each = log_p_BWC.shape
    totals = (log_p_BWC + beams.log_p[:, :, None]).reshape(rows, -1)
    best = _highest(totals, candidates)
    totals = _take(totals, best)
    tokens, parents = _take(tokens_BWC.reshape(rows, -1), best), best // each
    ids = np.concatenate([_take(beams.ids, parents), tokens[:, :, None]], axis=2)
    ends = tokens == EOS

    scores = np.where(ends & (totals > NEVER / 2), totals / _penalty(np.array(ids.shape[2]), alpha), NEVER)
    scores = np.concatenate([beams.scores, scores], axis=1)
    finished = np.concatenate([np.pad(beams.finished, ((0, 0), (0, 0), (0, 1))), ids], axis=1)
    kept = _highest(scores, width)

    totals = np.where(ends, NEVER, totals)
    opened = _highest(totals, width)
    return beams._replace(
        tokens=_take(tokens, opened),
        log_p=_take(totals, opened),
        ids=_take(ids, opened),
        slots=_take(beams.slots, _take(parents, opened)),
        finished=_take(finished, kept),
        scores=_take(scores, kept),
    )


def _finish(beams: Beams, results: list[list[tuple[list[int], float]]]) -> None:
    """Sets the results of all sentences of `beams`."""
    for number, ids_WT, scores_W in zip(beams.sentences, beams.finished, beams.scores, strict=True):
        found = zip(ids_WT.tolist(), scores_W.tolist(), strict=True)
        results[number] = [(ids[: ids.index(EOS) + 1], score) for ids, score in found if score > NEVER / 2]


def _penalty(length: np.ndarray, alpha: float) -> np.ndarray:
    return ((5 + length.astype(np.float32)) / np.float32(6)) ** np.float32(alpha)


def _highest(x: np.ndarray, count: int) -> np.ndarray:
    """Returns the places of the highest numbers of each row, highest first; of equal ones the first."""
    return np.argsort(-x, axis=1, kind="stable")[:, :count]


def _take(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    return x[np.arange(len(x))[:, None], places]


def _tensor(value: np.ndarray) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))


def _rows(tensor: Any, chosen: np.ndarray) -> Any:
    return _tensor(tensor.numpy()[chosen])


def _lines() -> Iterator[str]:
    """Yields the lines of standard input, as t2t-decoder reads them: without the line ends of Windows, and without a
    byte order mark at the start. Ends the program at a line that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            yield text.removeprefix("\ufeff") if number == 1 else text
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
            sys.exit(f"translate.py: line {number:,} is not UTF-8 ({byte}); convert the text to UTF-8")


def _report_from(start: int) -> Callable[[int, str], None]:
    """Returns a function that prints messages about lines, of which the first has the number `start`."""
    return lambda number, message: print(f"translate.py: line {start + number:,} {message}", file=sys.stderr)


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam_size", type=int, help="beam width; default: that of the run")
    parser.add_argument("--alpha", type=float, help="exponent of the length penalty; default: that of the run")
    parser.add_argument("--threads", type=int, default=0, help="threads of each product; default: one per core")
    options = parser.parse_args()
    for name in ("SIGINT", "SIGPIPE"):  # Ctrl-C, and a reader that leaves, as head does, end the program silently
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        translator = Translator(here, options.threads)
        lines = _lines()
        for start in itertools.count(1, WINDOW):
            window = list(itertools.islice(lines, WINDOW))
            if not window:
                break
            found = translator.translate(window, options.beam_size, options.alpha, _report_from(start))
            for text in found:
                sys.stdout.buffer.write(text.replace("\n", " ").encode("utf-8") + b"\n")
            sys.stdout.buffer.flush()
    except ValueError as error:
        sys.exit(f"translate.py: {error}")
    except OSError as error:  # the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise, Python writes again at exit, and fails again
        sys.exit(f"translate.py: {error}")


if __name__ == "__main__":
    main()
