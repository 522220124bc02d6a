"""The same traffic on every machine: every skew, at a later layer and step, with other vector units."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.workload.digests import digests, vector_units

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}


def test_traffic_does_not_depend_on_the_vector_units(tmp_path):
    vectors = {"NPY_DISABLE_CPU_FEATURES": " ".join(vector_units(used=False))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.workload.digests", str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **PLAIN, **vectors}, timeout=120, check=True,
    )  # fmt: skip
    plain = json.loads(done.stdout)
    assert plain.pop("used") == [], "the other process still used wide vectors"
    assert plain == digests(tmp_path)


def test_every_skew_differs_by_layer_and_step(tmp_path):
    found = digests(tmp_path)
    for kind in {name.split(" ")[0] for name in found}:
        at = {name: digest for name, digest in found.items() if name.split(" ")[0] == kind}
        assert len(set(at.values())) == len(at) == 3, kind
