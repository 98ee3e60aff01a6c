"""Benchmarks against other toolkits. Each command prints ratios: medians of alternating runs (A B C A B C ...).

    python -m benchmarks.environments     # once: a virtual environment for each peer
    python -m benchmarks.train            # tokens/s, memory, share of the machine's matrix-product rate
    python -m benchmarks.matmul_rate             # that rate alone
    python -m benchmarks.pipeline         # waiting for data, padding
    python -m benchmarks.kills            # no race: kills a training fifty times, and compares what it comes to

All run in the root of the checkout, with the Python that this package is installed for.
"""
