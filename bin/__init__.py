"""The programs. Each defines flags and makes one call. setup.py installs this folder as `t2t_repro.bin`."""
