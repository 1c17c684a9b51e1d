"""The benchmark of packed layers: a row for every number of rows, steps by both kinds."""

from anchored.decode.models import linear
from anchored.tools.bench.forward import NUM_ROWS, run
from anchored.tools.bench.options import BenchForwardConfig


def test_the_table_has_a_row_for_every_batch(capsys, monkeypatch):
    monkeypatch.setattr(linear, "LEAST_PACKED", 1)
    assert run(BenchForwardConfig(shape="tiny", vocab_size=64)) == 0
    header, titles, _, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("tiny + tiny, V = 64, float32 on cpu") and "x plain" in titles
    assert [int(row.split()[0]) for row in rows] == [*NUM_ROWS]
    assert all(float(cell) > 0 for row in rows for cell in row.split())
