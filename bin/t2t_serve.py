"""t2t-serve: answers over HTTP with an exported model, in TF Serving's form.

  t2t-serve --export_dir=E --port=8501
  curl -d '{"instances": ["12 cats"]}' localhost:8501/v1/models/E:predict

Serves the newest SavedModel that t2t-exporter wrote to E; the run itself is not
needed. http://localhost:8501/ is a page to type into; /healthz and /metrics
(for Prometheus) are for operators. Requests of several clients run together. A
newer version in E is served as soon as it is loaded. SIGTERM and Ctrl-C stop it
after what is under way; a second one ends it immediately.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import time

from absl import flags

from t2t_repro.cli import common_flags, launcher

FLAGS = flags.FlagValues()
flags.DEFINE_string("export_dir", None, "where t2t-exporter wrote", flag_values=FLAGS)
flags.DEFINE_integer("port", 8501, "0: any that is free", lower_bound=0, upper_bound=65535, flag_values=FLAGS)
flags.DEFINE_string("host", "127.0.0.1", "to listen on; 0.0.0.0: for all who can reach it", flag_values=FLAGS)
flags.DEFINE_string("model_name", None, "in the address, if not the folder's own", flag_values=FLAGS)
for _name, _default, _lowest, _meaning in (
    ("max_batch", 64, 1, "sentences that are run together"),
    ("batch_ms", 5, 0, "milliseconds that a request waits for others"),
    ("max_body", 1 << 20, 1, "bytes of a request"),
    ("max_requests", 256, 1, "requests at once; beyond, 503"),
    ("max_connections", 512, 1, "connections at once; beyond, 503"),
    ("body_seconds", 10, 1, "in which a request must have come; beyond, 408"),
    ("answer_seconds", 60, 1, "in which it must be answered; beyond, 504"),
    ("write_seconds", 30, 1, "in which a client must read its answer"),
    ("drain_seconds", 5, 0, "after SIGTERM, in which it answers and /healthz fails"),
    ("stop_seconds", 20, 0, "after that, for requests under way"),
    ("poll_seconds", 10, 0, "between looks for a newer version; 0: never"),
):
    flags.DEFINE_integer(_name, _default, _meaning, lower_bound=_lowest, flag_values=FLAGS)
flags.DEFINE_list("labels", [], "other names of the version, in /labels/NAME", flag_values=FLAGS)
flags.DEFINE_boolean("attention", False, "serve the signature attention as well", flag_values=FLAGS)
flags.DEFINE_boolean("access_log", False, "print a line for each request", flag_values=FLAGS)
common_flags.threads_flag(FLAGS)


_TIME = "%Y-%m-%dT%H:%M:%SZ"


def _report(line: str) -> None:
    launcher.report(f"{time.strftime(_TIME, time.gmtime())} {line}")


def _log_to_stderr() -> None:
    """The server's log, each line with its time as in `_report`."""
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
    launcher.load_tensorflow()
    from t2t_repro.inference.parallel import num_parallel_batches, set_batches, set_threads
    from t2t_repro.serving.app import Settings
    from t2t_repro.serving.server import serve as answer

    set_threads(FLAGS.threads_per_batch)
    set_batches(num_parallel_batches() + 1)  # one is for short requests alone
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
