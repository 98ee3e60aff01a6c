"""The programs: each is flags plus one call. setup.py installs this folder as `t2t_repro.bin`."""
