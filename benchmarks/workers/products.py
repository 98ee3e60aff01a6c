"""Only the matrix products of a step: the upper bound of the machine's speed. Mode: bfloat16 or float32."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, path, mode = protocol.arguments()
protocol.quiet_output()

from benchmarks import batches, matmul_rate  # noqa: E402


def main() -> None:
    products = [matmul_rate.Operands(product, mode) for product in matmul_rate.update_products(shape)]

    def update(_: int) -> float:
        for operands in products:
            operands()
        return 0.0

    protocol.serve(update, batches.load(path))


if __name__ == "__main__":
    main()
