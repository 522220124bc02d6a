"""The page that sets our kernels beside their peers."""

from pathlib import Path

import pandas as pd
import pytest

from workbench.cli.main import main
from workbench.report.performance import PEERS, bound_of, performance_page, performance_rows

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
PEER = {"model": "gpt-oss-120b", "precision": "bf16"}


def cells(*rows: dict) -> pd.DataFrame:
    common = {"status": "ok", "kernel": "ours", "hit_rate": None, "hbm_gb_per_s": 4000.0, "tflops": 10.0,
              "clock_mhz": 1980.0, "rel_error": 0.003, "touched_experts": 4}  # fmt: skip
    return pd.DataFrame([PEER | common | row for row in rows])


def test_the_page_is_what_the_command_writes(tmp_path):
    target = tmp_path / "page.md"
    assert main(["performance", "-o", str(target)]) == 0
    assert target.read_text() == PAGE.read_text(), "write it anew: moe-workbench performance -o docs/performance.md"


def test_a_peer_that_touched_more_experts_is_scaled_to_ours():
    peers = pd.read_parquet(PEERS)
    best = {tokens: peers[peers[list(PEER)].eq(PEER).all(axis=1) & peers["tokens"].eq(tokens)]["median_ms"].min()
            for tokens in (1, 16, 1024)}  # fmt: skip
    limits = peers[peers[list(PEER)].eq(PEER).all(axis=1)].groupby("tokens")["limit_ms"].first()
    theirs = 4 * limits[16] / limits[1]
    run = cells(
        *({"tokens_per_rank": t, "latency_us": 100.0, "touched_experts": n} for t, n in ((1, 4), (16, 24), (1024, 9)))
    )
    rows = performance_rows(run).set_index("tokens")
    assert rows.loc[1, "peer_ratio"] == pytest.approx(best[1] / 0.1, rel=1e-3)
    assert rows.loc[16, "peer_ratio"] == pytest.approx(best[16] * 24 / theirs / 0.1, rel=1e-3)
    assert rows.loc[1024, "peer_ratio"] == pytest.approx(best[1024] / 0.1)


def test_limits_are_those_of_our_own_bytes_and_flops():
    slow = {"tflops": 395.0, "hbm_gb_per_s": 100.0, "clock_mhz": 1400.0}
    run = cells({"tokens_per_rank": 16, "latency_us": 100.0}, {"tokens_per_rank": 4096, "latency_us": 1.0} | slow)
    rows = performance_rows(run).set_index("tokens", drop=False)
    assert rows["limit_ratio"].tolist() == pytest.approx([4000 / 4350, 0.5])
    words = [bound_of(row) for row in rows.itertuples()]
    assert words == ["memory with tails of waves", "products and their operands, clock down to 1400 MHz"]


def test_a_run_of_other_layers_is_refused():
    with pytest.raises(ValueError, match="no layer that peers were timed on"):
        performance_page(cells({"tokens_per_rank": 3, "latency_us": 1.0}), {"run_id": "x", "created_at": "2026"})
