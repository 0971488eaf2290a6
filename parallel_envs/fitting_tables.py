"""Tables that fit a narrow terminal without cutting rows or numbers.

A `FittingTable` is a rich `Table`. Columns justified to the right hold figures, the other columns hold names. If the
table is wider than the console, it is drawn without lines, and long names lose their middle. If that is still too wide,
the names of a row are printed in full on lines of their own, above its figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

_LEAST_NAME, _LEAST_FIGURE = 14, 6
_GAP = 2  # between two columns
_ANY_WIDTH = 10_000


def stdout_console(file_width: int) -> Console:
    """Return the console of stdout, as wide as the terminal or COLUMNS, or `file_width` without either."""
    found = Console()
    is_told = found.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    return found if is_told else Console(width=file_width)


def shortened(name: str, width: int) -> str:
    """Return the name, or the name without its middle if it is longer than `width`: names differ at both ends."""
    if len(name) <= width:
        return name
    front = (width - 1) // 2
    return f"{name[:front]}…{name[len(name) - (width - 1 - front) :]}"


class FittingTable(Table):
    """Table that changes its form if it would be too wide."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if console.measure(_as_drawn(self), options=options.update(max_width=_ANY_WIDTH)).maximum <= width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text.from_markup(str(self.title), style=self.title_style or "")
        names = [column for column in self.columns if column.justify != "right"]
        figures = [column for column in self.columns if column.justify == "right"]
        room = width - sum(map(_width, figures)) - _GAP * (len(self.columns) - 1)
        short = _short(names, room)
        yield from _plain(self, names, short) if short is not None else _stacked(names, figures, width)


def _as_drawn(table: FittingTable) -> Table:
    """Return a plain table with the same cells, to measure its full width."""
    plain = Table(box=table.box, padding=table.padding)
    for column in table.columns:
        copied = column.copy()
        copied._cells, copied.no_wrap = list(column.cells), True
        plain.columns.append(copied)
    return plain


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


def _width(column: Column) -> int:
    """Return the width of a column whose header may be wrapped at its spaces."""
    words = _text(column.header).plain.split()
    return max([*map(cell_len, words), *(_text(cell).cell_len for cell in column.cells)], default=0)


def _short(columns: Sequence[Column], room: int) -> list[list[Text]] | None:
    """Return the cells of name columns, shortened to fit into `room`; None if two names would look the same."""
    widths = [max(_width(column), cell_len(_text(column.header).plain)) for column in columns]
    while widths and sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= _LEAST_NAME:
            return None
        widths[widest] -= 1
    found = []
    for column, width in zip(columns, widths, strict=True):
        whole = [_text(cell) for cell in column.cells]
        cut = [one if one.cell_len <= width else Text(shortened(one.plain, width), one.style) for one in whole]
        if len({one.plain for one in cut}) < len({one.plain for one in whole}):
            return None
        found.append(cut)
    return found if room >= 0 else None


def _plain(table: Table, names: Sequence[Column], short: Sequence[Sequence[Text]]) -> Iterator[Table]:
    """Yield the table without lines between its columns."""
    cells = {id(column): cut for column, cut in zip(names, short, strict=True)}
    plain = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in table.columns:
        cut = cells.get(id(column))
        width = _width(column)
        if cut is not None:
            width = max([cell_len(_text(column.header).plain), *(one.cell_len for one in cut)])
        plain.add_column(_text(column.header), justify=column.justify, width=width)
    rows = zip(*(cells.get(id(column), list(column.cells)) for column in table.columns), strict=True)
    for cell_row, row in zip(rows, table.rows, strict=True):
        plain.add_row(*cell_row, end_section=row.end_section)
    yield plain


def _stacked(names: Sequence[Column], figures: Sequence[Column], width: int) -> Iterator[Table | Text]:
    """Yield names on lines of their own above the figures."""
    widths = [_width(column) for column in figures]
    gap = _GAP if sum(widths) + _GAP * len(widths) <= width else 1
    while sum(widths) + gap * len(widths) > width and max(widths) > _LEAST_FIGURE:
        widths[widths.index(max(widths))] -= 1  # cells with several words wrap
    headers = [header for column in names if (header := _text(column.header).plain)]
    yield Text(", ".join(headers), style="bold")
    yield _row([_text(column.header) for column in figures], widths, gap)
    yield Text("─" * width)
    columns = [[_text(cell) for cell in column.cells] for column in (*names, *figures)]
    for cells in zip_longest(*columns, fillvalue=Text()):
        for level, name in enumerate(cells[: len(names)]):
            if name.plain:
                yield Text(" " * level).append_text(name)
        yield _row(cells[len(names) :], widths, gap)


def _row(cells: Sequence[Text], widths: Sequence[int], gap: int) -> Table:
    row = Table.grid()
    for width in widths:
        row.add_column(width=gap)
        row.add_column(justify="right", width=width, overflow="fold", vertical="bottom")
    row.add_row(*(one for cell in cells for one in (Text(), cell)))
    return row
