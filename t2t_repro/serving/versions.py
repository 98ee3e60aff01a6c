"""Which version in a folder of exports is served. Standard library only."""

from __future__ import annotations

import os
import re


def newest_version(export_dir: str) -> int:
    """The highest number that names a folder with a SavedModel. Raises FileNotFoundError, saying what is there."""
    if not os.path.isdir(export_dir):
        raise FileNotFoundError(f"--export_dir: no directory {export_dir!r}; give the one that t2t-exporter wrote to")
    numbers = [int(name) for name in os.listdir(export_dir) if re.fullmatch(r"\d+", name)]
    versions = [n for n in numbers if os.path.isfile(os.path.join(export_dir, str(n), "saved_model.pb"))]
    if not versions:
        what = "its versions are in another format" if numbers else "it has no numbered folder"
        raise FileNotFoundError(f"--export_dir: {export_dir!r} holds no SavedModel, {what}; write one by t2t-exporter")
    return max(versions)
