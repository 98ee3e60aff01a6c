"""t2t-serve: answers over HTTP with an exported model, in TF Serving's form.

  t2t-serve --export_dir=E --port=8501
  curl -d '{"instances": ["12 cats"]}' localhost:8501/v1/models/E:predict

Serves the newest SavedModel that t2t-exporter wrote to E; the run itself is not
needed. http://localhost:8501/ is a page to type into; /healthz and /metrics
(for Prometheus) are for those who run it. Requests of several clients are run
together. Ctrl-C and SIGTERM finish what is under way; a second one does not.
"""

from __future__ import annotations

import importlib.util
import sys

from absl import flags

from . import _flags, _program

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
    ("body_seconds", 10, 1, "in which a request must have come; beyond, 408"),
    ("answer_seconds", 60, 1, "in which it must be answered; beyond, 504"),
):
    flags.DEFINE_integer(_name, _default, _meaning, lower_bound=_lowest, flag_values=FLAGS)
_flags.threads_flag(FLAGS)


def serve() -> None:
    from t2t_repro.serving.versions import newest_version

    newest_version(FLAGS.export_dir)
    for package, distribution in (("aiohttp", "aiohttp"), ("prometheus_client", "prometheus-client")):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"{distribution} is not installed; install it with: pip install 't2t_repro[serve]'")
    _program.load_tensorflow()
    from t2t_repro.inference.cores import batches_at_once, set_threads
    from t2t_repro.serving.app import Settings
    from t2t_repro.serving.serve import serve as answer

    set_threads(FLAGS.threads_per_batch)
    settings = Settings(
        max_batch=FLAGS.max_batch,
        batches_at_once=batches_at_once(),
        batch_seconds=FLAGS.batch_ms / 1000,
        max_body=FLAGS.max_body,
        max_requests=FLAGS.max_requests,
        body_seconds=FLAGS.body_seconds,
        answer_seconds=FLAGS.answer_seconds,
    )
    number, answered = answer(FLAGS.export_dir, FLAGS.host, FLAGS.port, FLAGS.model_name, settings, _program.report)
    raise _program.Stopped(f"stopped; {answered:,} requests were answered", number)


def main() -> int:
    return _program.run("t2t-serve", __doc__ or "", FLAGS, serve, required=("export_dir",))


if __name__ == "__main__":
    sys.exit(main())
