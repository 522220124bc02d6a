"""Parts of the catalog that no measurement has checked, said plainly."""

from workbench.simulate.families import all_families
from workbench.spec.catalog import load_hardware, names
from workbench.spec.validation import ValidationRow


def unvalidated_section() -> list[ValidationRow]:
    """A line for every GPU without rows of any kernel."""
    measured = {family.hardware for family in all_families()}
    lines = []
    for name in names("hardware"):
        part = load_hardware(name)
        if name in measured or part.device == "cpu":
            continue
        why = "other kernels run there" if part.vendor != "NVIDIA" else "constants of another NVIDIA part stand in"
        lines.append(
            ValidationRow(
                section="unvalidated",
                method="transfer",
                split="none",
                hardware=name,
                count=0,
                held_out=f"{part.vendor} {name}: unvalidated, no layer timed on it is in the tables; {why}",
            )
        )
    return lines
