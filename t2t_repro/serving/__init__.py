"""What `t2t_repro.export.exporter` wrote, answered over HTTP in the form of TF Serving; it needs nothing of a run."""
