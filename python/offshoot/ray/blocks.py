"""Blocks of a dataset in its own order, the numbers of its rows, from which their random numbers follow, and blocks
packed whole as one row. What the rows mean is left to the other modules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import ray
import ray.data

#: The column of a row's number in the dataset as it was given.
ROW = "row_number"


def check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, ray.data.Dataset):
        raise TypeError(f"dataset: expected a ray.data.Dataset, found {type(dataset).__name__}: ray.data.from_items "
                        "and others make one")


def in_order(dataset: ray.data.Dataset) -> list[ray.ObjectRef]:
    """The dataset's blocks as Arrow tables, in its own order: Ray returns blocks as they come unless it is told."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        return dataset.materialize().to_arrow_refs()
    finally:
        options.preserve_order = before


def columns(block: ray.ObjectRef, names: list[str]) -> ray.ObjectRef:
    """The columns of a block that it has of these names, as a table to get."""
    return _columns.remote(block, names)


def numbered(blocks: list[ray.ObjectRef], row: str) -> list[ray.ObjectRef]:
    """The blocks with the column ``row``: their own, or the rows' numbers counted through all blocks."""
    facts = ray.get([_facts.remote(block, row) for block in blocks])
    having = [has for rows, has in facts if rows]
    if any(having) and not all(having):
        found = f"{sum(having)} of {len(having)}"
        raise ValueError(f"{row}: expected in all blocks of the dataset or in none, found in {found}")
    if any(having):
        return blocks
    made, first = [], 0
    for block, (rows, _) in zip(blocks, facts):
        made.append(_number.remote(block, row, first))
        first += rows
    return made


def gather(blocks: list[ray.ObjectRef], places: list[tuple[int, int]]) -> ray.ObjectRef:
    """One block of the rows at these places, each the index of a block and of a row in it, in their order."""
    used = sorted({block for block, _ in places})
    index = {block: at for at, block in enumerate(used)}
    return _gather.remote([(index[block], row) for block, row in places], *[blocks[block] for block in used])


def without_nulls(value: Any) -> Any:
    """A value as it was before Arrow, which gives the fields of some rows to all, without a value."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [without_nulls(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with this column, in place of one of the same name."""
    at = table.schema.get_field_index(name)
    return table.append_column(name, values) if at < 0 else table.set_column(at, name, values)


#: The column of a packed block.
_PACKED = "offshoot_block"


def packed(table: pa.Table) -> pa.Table:
    """A block as one row, which Ray neither divides nor joins with others."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.table({_PACKED: pa.array([sink.getvalue().to_pybytes()], pa.large_binary())})


def unpacked(table: pa.Table) -> pa.Table:
    """The block of a row that ``packed`` made."""
    with pa.ipc.open_stream(table[_PACKED][0].as_buffer()) as stream:
        return stream.read_all()


@ray.remote
def _columns(table: pa.Table, names: list[str]) -> pa.Table:
    return table.select([name for name in names if name in table.column_names])


@ray.remote
def _facts(table: pa.Table, row: str) -> tuple[int, bool]:
    return table.num_rows, row in table.column_names


@ray.remote
def _number(table: pa.Table, row: str, first: int) -> pa.Table:
    return table.append_column(row, pa.array(range(first, first + table.num_rows), pa.int64()))


@ray.remote
def _gather(places: list[tuple[int, int]], *tables: pa.Table) -> pa.Table:
    starts = [0]
    for table in tables:
        starts.append(starts[-1] + table.num_rows)
    whole = pa.concat_tables(tables, promote_options="permissive")
    return whole.take(pa.array([starts[table] + row for table, row in places], pa.int64())).combine_chunks()
