r"""t2t-serve: serves an exported model over HTTP, with TF Serving's REST API.

  t2t-serve --export_dir=exported --port=8501
  curl -d '{"instances": ["12 cats"]}' \
      localhost:8501/v1/models/exported:predict

Serves the newest SavedModel that t2t-exporter wrote to --export_dir; the run
directory is not needed. http://localhost:8501/ is a page to try it. /translate
and /languages take requests in LibreTranslate's form. /healthz and /metrics
(Prometheus) are for monitoring. Requests of several clients are batched. A new
version replaces the old one as soon as it is loaded. SIGTERM or Ctrl-C finishes
the requests in progress and stops; a second one stops immediately.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.config import LARGEST_INT

FLAGS = flags.FlagValues()
flags.DEFINE_string("export_dir", None, "directory that t2t-exporter wrote to", flag_values=FLAGS)
flags.DEFINE_integer("port", 8501, "TCP port; 0: any free port", lower_bound=0, upper_bound=65535, flag_values=FLAGS)
flags.DEFINE_string("host", "127.0.0.1", "address to listen on; 0.0.0.0: all network interfaces", flag_values=FLAGS)
flags.DEFINE_string("model_name", None, "model name in URLs (default: name of --export_dir)", flag_values=FLAGS)
for _name, _default, _lowest, _meaning in (
    ("max_batch", 64, 1, "maximum sentences per batch"),
    ("batch_ms", 5, 0, "milliseconds that a request waits for others to fill the batch"),
    ("max_body", 1 << 20, 1, "maximum bytes of a request; larger ones receive 413"),
    ("max_requests", 256, 1, "maximum concurrent requests; others receive 503"),
    ("max_connections", 512, 1, "maximum concurrent connections; others receive 503"),
    ("body_seconds", 10, 1, "seconds in which a request must arrive; later ones receive 408"),
    ("answer_seconds", 60, 1, "seconds in which a request must be answered; others receive 504"),
    ("write_seconds", 30, 1, "seconds in which a client must read its answer; others are disconnected"),
    ("drain_seconds", 5, 0, "seconds after SIGTERM in which requests are still accepted, while /healthz answers 503"),
    ("stop_seconds", 20, 0, "seconds after --drain_seconds in which requests in progress may finish"),
    ("poll_seconds", 10, 0, "seconds between checks for a new version; 0: never"),
):
    flags.DEFINE_integer(_name, _default, _meaning, _lowest, LARGEST_INT, flag_values=FLAGS)
flags.DEFINE_list("labels", [], "NAME,...: labels of the served version, for URLs with /labels/NAME", flag_values=FLAGS)
flags.DEFINE_string("example", "", "TEXT: text to try on the page (default: the problem's)", flag_values=FLAGS)
flags.DEFINE_boolean("attention", False, "serve the signature attention too (large answers)", flag_values=FLAGS)
flags.DEFINE_boolean("access_log", False, "log a line per request on standard error", flag_values=FLAGS)
common_flags.threads_flag(FLAGS)
SETTINGS = (  # flags that are fields of `serving.app.Settings`
    *("max_batch", "max_body", "max_requests", "max_connections", "access_log", "example"),
    *("body_seconds", "answer_seconds", "write_seconds", "drain_seconds", "stop_seconds"),
)
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def _report(line: str) -> None:
    launcher.report(f"{time.strftime(_TIME, time.gmtime())} {line}")


def _log_to_stderr() -> None:
    """Writes the server's log to stderr, with the time format of `_report`."""
    formatter = logging.Formatter("%(asctime)s %(message)s", _TIME)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("t2t_serve").setLevel(logging.INFO)
    logging.getLogger("aiohttp.server").addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    """Shortens the record of a malformed request to one line: it is no defect, and any client can send it."""
    from aiohttp.http_exceptions import HttpProcessingError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        reason = " ".join(error.message.split())
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {reason:.200}", None, None
    return True


def serve() -> None:
    from t2t_repro.saved_model import newest_version

    for flag in ("example", "labels"):
        if any("\ud800" <= character <= "\udfff" for character in "".join(FLAGS[flag].value or [])):
            raise launcher.UsageError(f"--{flag} is not valid UTF-8")
    newest_version(FLAGS.export_dir)
    for package, distribution in (("aiohttp", "aiohttp"), ("prometheus_client", "prometheus-client")):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"{distribution} is not installed; install it with: pip install 't2t_repro[serve]'")
    from t2t_repro.system.heap import one_heap

    one_heap()
    launcher.load_tensorflow()
    from t2t_repro.serving.app import Settings
    from t2t_repro.serving.server import serve as answer
    from t2t_repro.training.parallel import num_parallel_batches, set_batches, set_threads

    set_threads(FLAGS.threads_per_batch)
    set_batches(num_parallel_batches() + 1)  # one more, only for short requests
    _log_to_stderr()
    given: dict[str, Any] = {name: FLAGS[name].value for name in SETTINGS}
    settings = Settings(
        num_parallel_batches=num_parallel_batches(),
        batch_seconds=FLAGS.batch_ms / 1000,
        labels=tuple(FLAGS.labels),
        **given,
    )
    where = FLAGS.export_dir, FLAGS.host, FLAGS.port, FLAGS.model_name
    number, answered = answer(*where, settings, _report, FLAGS.attention, FLAGS.poll_seconds)
    raise launcher.Stopped(f"stopped; {answered:,} requests were answered", number)


def main() -> int:
    return launcher.run("t2t-serve", __doc__ or "", FLAGS, serve, required=("export_dir",))


if __name__ == "__main__":
    sys.exit(main())
