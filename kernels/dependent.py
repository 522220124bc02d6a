"""Programmatic dependent launch (sm_90 and later): a kernel's blocks start while the kernel before it still ends.

What a kernel before has written is read only after ``wait_for_inputs``. ``let_next_in`` comes after the wait, so that
nothing but a kernel's own successor runs beside it; in a kernel of many steps it comes after them, lest the successor's
weights push out of the cache what is still to be multiplied.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.backend import capability_of

DEPENDENT_CAPABILITY = (9, 0)
LINE_BYTES = tl.constexpr(128)
"""Of the second-level cache."""


@triton.jit
def wait_for_inputs(dependent: tl.constexpr):
    """Until the kernels before are done and their results can be read."""
    if dependent:
        gdc_wait()


@triton.jit
def let_next_in(dependent: tl.constexpr):
    """The next kernel's blocks may start where there is room; they wait for this kernel's end themselves."""
    if dependent:
        gdc_launch_dependents()


@triton.jit
def ask_ahead(pointers):
    """Brings the cache lines of ``pointers`` into the second-level cache without waiting for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def launch_options(device: torch.device) -> dict[str, bool]:
    """The constant ``dependent`` of a kernel, with the option that goes with it."""
    capability = capability_of(device)
    if capability is None or capability < DEPENDENT_CAPABILITY or torch.version.hip:
        return {"dependent": False}
    return {"dependent": True, "launch_pdl": True}
