"""Tables that fit a narrow terminal.

A `FittingTable` is a rich `Table` that cuts no names and no numbers. Columns justified to the right hold figures, the
other columns hold names. If the table is wider than the console, it is drawn without lines, and long names continue on
further lines of their cells. If that is still too wide, the names of a row are printed on lines of their own, above its
figures.
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


class FittingTable(Table):
    """Table that changes its form if it would be too wide."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self.__rich_measure__(console, options.update(max_width=_ANY_WIDTH)).maximum <= width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text.from_markup(str(self.title), style=self.title_style or "")
        names = [column for column in self.columns if column.justify != "right"]
        figures = [column for column in self.columns if column.justify == "right"]
        room = width - sum(map(_width, figures)) - _GAP * (len(self.columns) - 1)
        if sum(min(_LEAST_NAME, _width(column)) for column in names) > room:
            yield from _stacked(names, figures, width)
            return
        plain = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for column in self.columns:
            is_figure = column.justify == "right"
            fixed = _width(column) if is_figure else None
            plain.add_column(_text(column.header), justify=column.justify, width=fixed, overflow="fold")
        for row, cells in zip(self.rows, zip(*(column.cells for column in self.columns), strict=True), strict=True):
            plain.add_row(*cells, end_section=row.end_section)
        yield plain


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


def _width(column: Column) -> int:
    """Return the width of a column whose header may be wrapped at its spaces."""
    words = _text(column.header).plain.split()
    return max([*map(cell_len, words), *(_text(cell).cell_len for cell in column.cells)], default=0)


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
