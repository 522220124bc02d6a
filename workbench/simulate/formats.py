"""Bytes of one activation row in a number format, and the number formats of the wire."""

from workbench.spec.precision import NumberFormat, tensor_bytes

TENSOR_SCALE_BYTES = 4

WIRE_FORMATS = {
    "fp8_block": NumberFormat(format="e4m3", granularity="block"),
    "mxfp8": NumberFormat(format="e4m3", granularity="mx"),
    "nvfp4": NumberFormat(format="e2m1", granularity="nvfp4"),
}
"""Wire dtypes that are encoded, as the number format whose bytes they carry."""


def row_bytes(number: NumberFormat, columns: int) -> int:
    """Bytes of one row of ``columns`` elements with the scales that grow with the rows; tensor-wide scales left out."""
    fixed = TENSOR_SCALE_BYTES if number.granularity in ("tensor", "nvfp4") else 0
    return tensor_bytes(number, 1, columns, weights=False) - fixed
