"""Benchmarks against other toolkits. Each command prints ratios: medians of alternating runs (A B C A B C ...).

    python -m benchmarks.environments     # once: a virtual environment for each peer
    python -m benchmarks.train            # tokens/s, memory, share of the machine's matrix-product rate
    python -m benchmarks.matmul_rate             # only that rate
    python -m benchmarks.pipeline         # waiting for data, padding
    python -m benchmarks.startup          # one line through a program, over `import tensorflow`
    python -m benchmarks.chart_parser     # F1 of a chart parser on the same trees
    python -m benchmarks.parse_errors     # no comparison of speed: where the brackets of two parsers differ
    python -m benchmarks.compare OLD NEW  # two versions of this package: what a change costs
    python -m benchmarks.wmt14_size FOLDER  # no comparison: prepares as many pairs as WMT14 has
    python -m benchmarks.kills            # no comparison: kills training 50 times and checks the result

All run in the root of the checkout, with the Python that this package is installed for.
"""
