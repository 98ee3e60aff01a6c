"""t2t_repro.serving.model: outputs of an exported model as those of a request."""

from __future__ import annotations

import numpy as np
import pytest

from t2t_repro.serving.cancellation import Cancellation, Cancelled
from t2t_repro.serving.model import marked
from t2t_repro.text.markup import MarkedText


class CanceledAtOnce(MarkedText):
    """A line whose request is canceled while its first translation gets its markup."""

    def __init__(self, line, cancellation):
        super().__init__(line)
        self.times, self.cancellation = 0, cancellation

    def restored(self, translation, links):
        self.times += 1
        self.cancellation.cancel()
        return super().restored(translation, links)


def test_markup_of_a_canceled_request_stops_after_one_translation():
    cancellation = Cancellation()
    line = CanceledAtOnce("<b>a</b>", cancellation)
    outputs = {name: np.full([1, 36], value, object) for name, value in (("outputs", b"b"), ("alignments", b"0-0"))}
    outputs["scores"] = np.zeros([1, 36], np.float32)
    with pytest.raises(Cancelled):
        marked([line], outputs, "translate", cancellation)
    assert line.times == 1
