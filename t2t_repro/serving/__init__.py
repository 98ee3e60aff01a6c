"""Answers HTTP requests in the form of TF Serving. It needs what `t2t_repro.exporting` wrote, and nothing of a run."""
