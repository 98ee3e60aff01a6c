"""`Pace`: at most one line per minute, with a rate that leaves out what was done before."""

import pytest

from t2t_repro.preparation import pace


def test_a_line_per_minute(monkeypatch: pytest.MonkeyPatch):
    now, lines = [100.0], list[str]()
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    encoded = pace.Pace(lines.append, "encoded {done} of 90,000 pairs, {rate} per second", before=40_000)
    for seconds, done in ((59, 45_000), (61, 46_100), (120, 50_000), (122, 52_200)):
        now[0] = 100.0 + seconds
        encoded.at(done)
    assert lines == ["encoded 46,100 of 90,000 pairs, 100 per second", "encoded 52,200 of 90,000 pairs, 100 per second"]
