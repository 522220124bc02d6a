"""A command line to start from, for every command's ``--help``."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "moe-workbench run quickstart",
        "moe-workbench run my.yaml --set workload.tokens_per_rank=64 --repeats 3",
    ),
    "submit": ("moe-workbench submit h200-reference --address http://127.0.0.1:8265",),
    "stop": ("moe-workbench stop latest",),
    "plan": (
        "moe-workbench plan my.yaml --set parallel.ep=16",
        "moe-workbench plan plan-search --search",
    ),
    "scenarios": ("moe-workbench scenarios",),
    "schema": ("moe-workbench schema > scenario.schema.json",),
    "runs": (
        "moe-workbench runs --where precision=fp8_block,mxfp4_w4a16 --since 2026-11-01 --limit 20",
        "moe-workbench runs --results s3://team/runs",
    ),
    "show": ("moe-workbench show latest",),
    "export": ("moe-workbench export latest --format parquet --table samples -o samples.parquet",),
    "import": ("moe-workbench import alltoall_perf.txt --set hardware=h200-sxm",),
    "merge": ("moe-workbench merge 20261201T05 20261201T06 20261201T07 --name nightly",),
    "prune": ("moe-workbench prune --keep 10 --name nightly --yes",),
    "compare": (
        "moe-workbench compare latest --by precision",
        "moe-workbench compare latest --against nightly --fail-if slower:5%",
    ),
    "report": ("moe-workbench report latest -o report.html",),
    "claims": ("moe-workbench claims latest --results results -o claims.md",),
    "performance": ("moe-workbench performance -o docs/performance.md",),
    "dashboard": ("moe-workbench dashboard --results results",),
    "doctor": ("moe-workbench doctor --format json",),
    "calibrate": ("moe-workbench calibrate",),
    "tune": ("moe-workbench tune",),
    "validate": ("moe-workbench validate --format json",),
}
"""By command; a test holds that none is missing and that each is a line the command takes."""


def epilog(name: str) -> str | None:
    """The examples of a command as the last lines of its help."""
    lines = EXAMPLES.get(name, ())
    return f"Example{'s' * (len(lines) > 1)}: " + "\n\n".join(lines) if lines else None
