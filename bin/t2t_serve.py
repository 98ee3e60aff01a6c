"""t2t-serve: serves an exported model over HTTP, with TF Serving's REST API.

  t2t-serve --export_dir=E --port=8501
  curl -d '{"instances": ["12 cats"]}' localhost:8501/v1/models/E:predict

Serves the newest SavedModel that t2t-exporter wrote to E; the run directory is
not needed. http://localhost:8501/ is a page to try it. /healthz and /metrics
(Prometheus) are for monitoring. Requests of several clients are batched. A new
version in E replaces the old one as soon as it is loaded. SIGTERM or Ctrl-C
finishes the requests in progress and stops; a second one stops immediately.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import time

from absl import flags

from t2t_repro.cli import common_flags, launcher

FLAGS = flags.FlagValues()
flags.DEFINE_string("export_dir", None, "directory that t2t-exporter wrote to", flag_values=FLAGS)
flags.DEFINE_integer("port", 8501, "TCP port; 0: any free port", lower_bound=0, upper_bound=65535, flag_values=FLAGS)
flags.DEFINE_string("host", "127.0.0.1", "address to listen on; 0.0.0.0: all network interfaces", flag_values=FLAGS)
flags.DEFINE_string("model_name", None, "model name in URLs (default: the directory's name)", flag_values=FLAGS)
for _name, _default, _lowest, _meaning in (
    ("max_batch", 64, 1, "maximum sentences per batch"),
    ("batch_ms", 5, 0, "milliseconds that a request waits for others to fill the batch"),
    ("max_body", 1 << 20, 1, "maximum bytes of a request"),
    ("max_requests", 256, 1, "maximum concurrent requests; others receive 503"),
    ("max_connections", 512, 1, "maximum concurrent connections; others receive 503"),
    ("body_seconds", 10, 1, "timeout for receiving a request, then 408"),
    ("answer_seconds", 60, 1, "timeout for answering a request, then 504"),
    ("write_seconds", 30, 1, "timeout for a client to read its answer"),
    ("drain_seconds", 5, 0, "seconds after SIGTERM in which requests are still accepted while /healthz fails"),
    ("stop_seconds", 20, 0, "seconds after that for requests in progress"),
    ("poll_seconds", 10, 0, "seconds between checks for a new version; 0: never"),
):
    flags.DEFINE_integer(_name, _default, _meaning, lower_bound=_lowest, flag_values=FLAGS)
flags.DEFINE_list("labels", [], "version labels, for URLs with /labels/NAME", flag_values=FLAGS)
flags.DEFINE_string("example", "", "text to try on the page (default: the problem's)", flag_values=FLAGS)
flags.DEFINE_boolean("attention", False, "serve the attention signature too", flag_values=FLAGS)
flags.DEFINE_boolean("access_log", False, "log a line per request", flag_values=FLAGS)
common_flags.threads_flag(FLAGS)


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


def serve() -> None:
    from t2t_repro.saved_model import newest_version

    newest_version(FLAGS.export_dir)
    for package, distribution in (("aiohttp", "aiohttp"), ("prometheus_client", "prometheus-client")):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"{distribution} is not installed; install it with: pip install 't2t_repro[serve]'")
    from t2t_repro.training.memory import one_heap

    one_heap()
    launcher.load_tensorflow()
    from t2t_repro.inference.parallel import num_parallel_batches, set_batches, set_threads
    from t2t_repro.serving.app import Settings
    from t2t_repro.serving.server import serve as answer

    set_threads(FLAGS.threads_per_batch)
    set_batches(num_parallel_batches() + 1)  # one more, only for short requests
    _log_to_stderr()
    settings = Settings(
        max_batch=FLAGS.max_batch,
        num_parallel_batches=num_parallel_batches(),
        batch_seconds=FLAGS.batch_ms / 1000,
        max_body=FLAGS.max_body,
        max_requests=FLAGS.max_requests,
        body_seconds=FLAGS.body_seconds,
        answer_seconds=FLAGS.answer_seconds,
        max_connections=FLAGS.max_connections,
        write_seconds=FLAGS.write_seconds,
        drain_seconds=FLAGS.drain_seconds,
        stop_seconds=FLAGS.stop_seconds,
        labels=tuple(FLAGS.labels),
        access_log=FLAGS.access_log,
        example=FLAGS.example,
    )
    number, answered = answer(
        FLAGS.export_dir,
        FLAGS.host,
        FLAGS.port,
        FLAGS.model_name,
        settings,
        _report,
        FLAGS.attention,
        FLAGS.poll_seconds,
    )
    raise launcher.Stopped(f"stopped; {answered:,} requests were answered", number)


def main() -> int:
    return launcher.run("t2t-serve", __doc__ or "", FLAGS, serve, required=("export_dir",))


if __name__ == "__main__":
    sys.exit(main())
