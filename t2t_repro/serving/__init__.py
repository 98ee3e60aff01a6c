"""The HTTP server, with TF Serving's REST API. It needs only an export of `t2t_repro.exporting`, not the run."""
