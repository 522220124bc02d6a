"""Number formats of expert weights and activations: encode, decode, bytes. Pure torch, any device.

``FORMATS[name].encode(x)`` gives a ``Quantised``; ``FORMATS[q.format].decode(q)`` gives the values back.
"""

from kernels.formats import bf16, fp8, mx, nvfp4
from kernels.formats.base import Format, Quantised

FORMATS: dict[str, Format] = {**bf16.FORMATS, **fp8.FORMATS, **mx.FORMATS, **nvfp4.FORMATS}

__all__ = ["FORMATS", "Format", "Quantised"]
