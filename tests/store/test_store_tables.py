"""Parquet parts: written whole, read whatever lies there, replaced when redone."""

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sample_run import make_cell, measured_outcome, sample_outcomes, write_sample_run
from workbench.run.describe import failed
from workbench.spec.record import COLUMNS, Outcome, Record
from workbench.store.parts import part_numbers, part_path
from workbench.store.reader import read_table, read_tables, unreadable_files
from workbench.store.run_folder import create_run
from workbench.store.schema import arrow_schema
from workbench.store.writer import Writer

CELLS = [make_cell(tokens=tokens) for tokens in (1, 2, 4, 8)]


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path, name="tables", manifest={})


def write_parts(run, cells, *, base_us=1000.0):
    """One part a cell, as a run leaves them that was killed before its end."""
    writer = Writer(run)
    for cell in cells:
        writer.add(measured_outcome(cell, base_us=base_us))
        writer.flush()
    writer._lock_file.close()


def test_run_reads_back_as_written(run):
    outcomes = list(sample_outcomes())
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    tables = read_tables(run)
    cells = tables["cells"].frame
    assert list(cells.columns) == list(COLUMNS)
    assert cells["cell_id"].tolist() == [outcome.record.cell_id for outcome in outcomes]
    assert cells["latency_us"].dropna().tolist() == [o.record.latency_us for o in outcomes if o.record.latency_us]
    assert set(cells["run_id"]) == {run.run_id}
    for table in ("stages", "links", "loads", "memory", "samples"):
        assert len(tables[table].frame) == sum(len(outcome.tables.get(table, [])) for outcome in outcomes)
        assert part_numbers(run.path, table) == part_numbers(run.path, "cells")
    assert len(part_numbers(run.path, "cells")) == 1
    assert not list(run.path.rglob("*.tmp"))


def test_r05_cut_and_empty_files_are_named_and_redone(run):
    write_parts(run, CELLS)
    cut, empty = part_path(run.path, "cells", 2), part_path(run.path, "samples", 3)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    empty.write_bytes(b"")
    result = read_table(run, "cells")
    assert result.frame["cell_id"].tolist() == [CELLS[i].cell_id for i in (0, 2, 3)]
    assert result.bad_files == ["cells/part-000002.parquet"]
    assert unreadable_files(run) == ["cells/part-000002.parquet", "samples/part-000003.parquet"]

    with Writer(run) as writer:
        assert writer.finished_ids() == {CELLS[0].cell_id, CELLS[3].cell_id}
        for cell in (CELLS[1], CELLS[2]):
            writer.add(measured_outcome(cell, base_us=2000.0))
    assert unreadable_files(run) == []
    frame = read_table(run, "cells").frame.set_index("cell_id")
    assert sorted(frame.index) == sorted(cell.cell_id for cell in CELLS)
    assert frame.loc[CELLS[2].cell_id, "latency_us"] > 1500
    assert read_table(run, "samples").frame.groupby("cell_id").size().tolist() == [160] * 4
    assert cut.with_name(cut.name + ".bad").exists()


def test_r05_interrupted_resume_still_knows_what_to_redo(run):
    write_parts(run, CELLS)
    part_path(run.path, "samples", 3).write_bytes(b"")
    with Writer(run):
        pass
    with Writer(run) as writer:
        assert writer.finished_ids() == {CELLS[i].cell_id for i in (0, 1, 3)}
    assert unreadable_files(run) == ["samples/part-000003.parquet"]
    assert len(read_table(run, "cells").frame) == 4


def test_r07_text_in_a_number_column_goes_to_reason(run):
    outcome = measured_outcome(CELLS[0], base_us=10.0)
    wrong = replace(outcome.record, latency_us="OK", num_samples=2.5, fits="yes")
    with Writer(run) as writer:
        writer.add(replace(outcome, record=wrong))
        writer.add(failed(CELLS[1], "out of memory"))
    frame = read_table(run, "cells").frame
    assert frame.dtypes["latency_us"] == np.float64
    assert frame.dtypes["num_samples"] == pd.Int64Dtype()
    assert frame.dtypes["fits"] == pd.BooleanDtype()
    assert frame["latency_us"].isna().all()
    assert frame["reason"].tolist() == [
        "latency_us was 'OK'; num_samples was 2.5; fits was 'yes'",
        "out of memory",
    ]


def test_r07_text_in_an_older_files_number_column_is_kept_beside_it(run):
    write_parts(run, CELLS[:1])
    older = pa.table({"cell_id": ["old", "older"], "status": ["ok", "ok"], "latency_us": ["10.0", "OK"]})
    pq.write_table(older, part_path(run.path, "cells", 7))
    frame = read_table(run, "cells").frame.set_index("cell_id")
    assert frame.dtypes["latency_us"] == np.float64
    assert frame.loc["old", "latency_us"] == 10.0
    assert np.isnan(frame.loc["older", "latency_us"])
    assert frame.loc["older", "latency_us_text"] == "OK"


def test_parts_of_other_schemas_join_without_losing_rows_or_columns(run):
    write_parts(run, CELLS[:2])
    pq.write_table(pa.table({"cell_id": ["old"], "status": ["ok"]}), part_path(run.path, "cells", 7))
    newer = pa.table({"cell_id": ["new"], "status": ["ok"], "latency_us": pa.array([5], pa.int32()), "novel": [1.5]})
    pq.write_table(newer, part_path(run.path, "cells", 8))
    pq.write_table(pa.table({"cell_id": ["newest"], "status": ["ok"], "novel": ["x"]}), part_path(run.path, "cells", 9))
    frame = read_table(run, "cells").frame
    assert frame["cell_id"].tolist() == [CELLS[0].cell_id, CELLS[1].cell_id, "old", "new", "newest"]
    assert list(frame.columns) == [*COLUMNS, "novel"]
    assert frame["novel"].tolist()[-2:] == ["1.5", "x"]
    assert frame["latency_us"].tolist()[3] == 5.0
    with Writer(run):
        pass
    pd.testing.assert_frame_equal(read_table(run, "cells").frame, frame)


def test_later_attempt_replaces_an_error_with_its_rows_in_every_table(run):
    with Writer(run) as writer:
        broken = failed(CELLS[0], "rank 1 died")
        writer.add(replace(broken, tables={"samples": [{"rank": 0, "iteration": 0, "repeat": 0, "us": 1.0}]}))
    with Writer(run) as writer:
        assert writer.finished_ids() == frozenset()
        writer.add(measured_outcome(CELLS[0]))
    assert read_table(run, "cells").frame["status"].tolist() == ["ok"]
    assert len(read_table(run, "samples").frame) == 160
    with Writer(run) as writer:
        writer.add(failed(CELLS[0], "later trouble"))
    assert read_table(run, "cells").frame["status"].tolist() == ["ok"]
    assert len(read_table(run, "samples").frame) == 160


def test_kill_between_compacted_tables_duplicates_nothing(run):
    write_parts(run, CELLS)
    merged = pa.concat_tables([pq.read_table(part_path(run.path, "samples", n)) for n in (1, 2, 3, 4)])
    pq.write_table(merged, part_path(run.path, "samples", 5))
    assert len(read_table(run, "samples").frame) == 4 * 160
    with Writer(run) as writer:
        assert len(writer.finished_ids()) == 4
    assert len(read_table(run, "samples").frame) == 4 * 160
    assert part_numbers(run.path, "samples") == part_numbers(run.path, "cells")


def test_parts_are_at_most_one_a_period_or_256_cells(run, monkeypatch):
    monkeypatch.setattr("workbench.store.writer.SECONDS_PER_PART", 3600.0)
    with Writer(run) as writer:
        for tokens in range(1, 300):
            writer.add(failed(make_cell(tokens=tokens), "no figures"))
        assert [len(pq.read_table(part_path(run.path, "cells", n))) for n in (1, 2)] == [1, 256]
        assert part_numbers(run.path, "cells") == [1, 2]
    assert len(read_table(run, "cells").frame) == 299


def test_pending_cells_reach_the_disk_by_themselves(run, monkeypatch):
    monkeypatch.setattr("workbench.store.writer.SECONDS_PER_PART", 0.3)
    writer = Writer(run)
    for cell in CELLS:
        writer.add(measured_outcome(cell))
    deadline = time.monotonic() + 10
    while len(read_table(run, "cells").frame) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(read_table(run, "cells").frame) == 4
    writer.close()
    writer.close()


def test_column_that_the_schema_lacks_is_refused(run):
    with Writer(run) as writer:
        outcome = Outcome(record=Record(cell_id="a", status="ok", engine="measure"), tables={"samples": [{"ms": 1}]})
        with pytest.raises(ValueError, match="columns ms are not in the table"):
            writer.add(outcome)
        with pytest.raises(ValueError, match="no table 'nonsense'"):
            read_table(run, "nonsense")


def test_tables_without_any_file_are_empty_and_typed(run):
    for table in ("cells", "stages", "samples"):
        result = read_table(run, table)
        assert len(result.frame) == 0
        assert list(result.frame.columns) == arrow_schema(table).names


def test_rows_of_a_few_cells_are_those_of_the_whole_table(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.store.parts.ROWS_PER_GROUP", 100)
    run = write_sample_run(tmp_path)
    ids = read_table(run, "cells").frame["cell_id"].tolist()[3:6]
    for table in ("cells", "stages", "samples"):
        whole = read_table(run, table).frame
        few = read_table(run, table, cells=ids).frame
        pd.testing.assert_frame_equal(few, whole[whole["cell_id"].isin(ids)].reset_index(drop=True))
        assert len(read_table(run, table, cells=[]).frame) == 0
