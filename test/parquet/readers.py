"""Reads a Parquet file of trajectories with DuckDB and with Polars and prints what each found, as JSON: {"duckdb": [...], "polars": [...]}."""
import json
import sys

import duckdb
import polars

path = sys.argv[1]
query = """
select group_number, count(*), avg(reward), avg(metric_moves), count_if(metric_win), min(metadata_opponent),
  min(messages::json->0->>'content'), min(json_array_length(entries))
from read_parquet(?) where kind = 'trajectory' group by group_number order by group_number
"""
found = duckdb.execute(query, [path]).fetchall()
column = polars.col
frame = (
    polars.read_parquet(path)
    .filter(column("kind") == "trajectory")
    .group_by("group_number")
    .agg(
        polars.len(),
        column("reward").mean(),
        column("metric_moves").mean(),
        column("metric_win").sum(),
        column("metadata_opponent").min(),
        column("messages").str.json_path_match("$[0].content").min(),
        column("entries").map_elements(lambda text: len(json.loads(text)), return_dtype=polars.Int64).min(),
    )
    .sort("group_number")
)
print(json.dumps({"duckdb": [list(row) for row in found], "polars": [list(row) for row in frame.rows()]}))
