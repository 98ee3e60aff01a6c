"""What `t2t_repro.inference.export` wrote, answered over HTTP in the form of TF Serving; it needs nothing of a run."""
