"""Charts: curves and differences as SVG and PNG."""
