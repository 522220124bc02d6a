"""Predictions against measurements, section by section; nothing here is predicted from what it is compared with."""

from collections.abc import Callable
from importlib import import_module

from workbench.spec.validation import ValidationRow, error_figures

__all__ = ["SECTIONS", "ValidationRow", "error_figures", "section"]

SECTIONS: dict[str, str] = {
    "published": "workbench.run.validation.published:published_section",
    "wide_ep": "workbench.run.validation.published:wide_ep_section",
    "calibrated": "workbench.run.validation.calibrated:calibrated_section",
    "transfer": "workbench.run.validation.calibrated:transfer_section",
    "speed": "workbench.run.validation.speed:speed_section",
    "own": "workbench.run.validation.own:own_section",
    "installed": "workbench.run.validation.installed:installed_section",
    "offload": "workbench.run.validation.offload:offload_section",
    "models": "workbench.run.validation.models:models_section",
    "communication": "workbench.run.validation.communication:communication_section",
    "tutel": "workbench.run.validation.tutel:tutel_section",
    "above_peak": "workbench.run.validation.published:above_peak_section",
    "unvalidated": "workbench.run.validation.unvalidated:unvalidated_section",
}
"""Section name to ``module:function``, a function of no arguments that returns ``list[ValidationRow]``."""


def section(name: str) -> Callable[[], list[ValidationRow]]:
    """The function of a section. Raises ValueError for a name that is not there."""
    if name not in SECTIONS:
        raise ValueError(f"validate: no section {name!r}; there are {', '.join(SECTIONS)}")
    module, _, function = SECTIONS[name].partition(":")
    return getattr(import_module(module), function)
