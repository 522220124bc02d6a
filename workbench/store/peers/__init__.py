"""Results of other projects as records: one file a form, and the table that recognises them.

What comes in is measured, by somebody else: the engine is ``measure``, ``method`` names the tool, ``kernel`` what ran.
Only what a file says is taken over; what it leaves open can be told by hand, and stays empty otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.spec.record import Outcome
from workbench.store.peers import inferencex, nccl_tests, vllm
from workbench.store.peers.row import Told

Reader = Callable[[str, Path, Told], list[Outcome]]


@dataclass(frozen=True)
class Form:
    """``fits`` looks at the text of a file and its path; ``read`` takes what was told by hand besides."""

    title: str
    fits: Callable[[str], bool]
    read: Reader


FORMS: dict[str, Form] = {
    "inferencex": Form("InferenceX JSON", inferencex.fits, inferencex.read),
    "vllm": Form("vLLM benchmark JSON", vllm.fits, vllm.read),
    "nccl-tests": Form("nccl-tests text", nccl_tests.fits, nccl_tests.read),
}
"""In the order in which they are tried."""


def form_of(text: str) -> Form | None:
    """The form a file is of, None when it is of none."""
    return next((form for form in FORMS.values() if form.fits(text)), None)
