"""Arrangement of GPUs on the screen: number side by side, and height of each."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

CARD_LEAST, CARD_MOST = 6, 36
"""Minimum and maximum rows of a card: title, four bars and the elapsed time, or with high graphs between them."""
CARD_SHORT = 5
"""Minimum rows in a pane whose height is fixed, as if it fills the screen: without the elapsed time."""
CARD_WIDTH = 29
"""Minimum cells of a card, including the one that separates it from the next."""
CARD_WIDEST = 110
"""Cells from which two cards are better than one."""
CARD_ENOUGH = 9
"""Rows from which a wider card is better than a higher one."""
LINE_WIDTH = 26
"""Minimum cells of a GPU that shares its line with others."""
LINE_ENOUGH = 38
"""Cells from which more of them side by side are better."""
LINE_FULL = 58
"""Cells from which temperature, power and throttling are shown too."""


class GridRoom(Struct, frozen=True):
    """Room for the grid on the screen."""

    width: int = 80
    most: int = 12
    """Maximum number of rows."""
    fixed: int | None = None
    """Fixed number of rows; None: as many as needed."""
    mode: str = "auto"
    """`auto`, `cards`, `rows` or `compact`."""


class Arrangement(Struct, frozen=True):
    """Arrangement of the GPUs."""

    kind: str = "rows"
    """`cards`, `rows` or `compact`."""
    across: int = 1
    width: int = 0
    """Cells of each, including the separator; only if there are several side by side."""
    height: int = 1
    """Rows of each tile."""
    rows: int = 2
    """Rows of the whole grid, including titles."""

    def bands(self, count: int) -> int:
        """Return how many bands of tiles there are."""
        return ceil(count / self.across)


def arrange(count: int, room: GridRoom, *, words: int = 1) -> Arrangement:
    """Return the best arrangement of that many GPUs; `words`: the lines shown if there is none."""
    most = room.fixed or room.most
    if count == 0:
        return Arrangement(rows=room.fixed or 1 + max(1, words))
    if room.mode == "rows":
        return _rows(count, room)
    if room.mode == "compact":
        return _compact(count, room)
    cards = _cards(count, room)
    if room.mode == "cards":
        return cards or _forced_cards(count, room)
    if cards is not None:
        return cards
    return _rows(count, room) if count + 1 <= most else _compact(count, room)


def _rows(count: int, room: GridRoom) -> Arrangement:
    return Arrangement(rows=room.fixed or min(count + 1, max(2, room.most)))


def _cards(count: int, room: GridRoom) -> Arrangement | None:
    """Return cards for all GPUs; None if they do not fit. Unless resized they take a little less than allowed."""
    best: tuple[tuple[int, bool], Arrangement] | None = None
    width, most = room.width, room.fixed or room.most * 9 // 10
    least = CARD_LEAST if room.fixed is None else CARD_SHORT
    for across in range(1, min(count, max(1, width // CARD_WIDTH)) + 1):
        bands = ceil(count / across)
        height = min(CARD_MOST, most // bands)
        is_too_wide = width // across > CARD_WIDEST and across < count
        if height < least or width // across < CARD_WIDTH or is_too_wide:
            continue
        found = Arrangement("cards", across, min(CARD_WIDEST, width // across), height, room.fixed or bands * height)
        score = (min(height, CARD_ENOUGH), count % across == 0)
        if best is None or score > best[0]:
            best = (score, found)
    return best[1] if best else None


def _forced_cards(count: int, room: GridRoom) -> Arrangement:
    """Return as many visible cards as fit; the others are reached by scrolling."""
    most = room.fixed or room.most
    across = max(1, min(count, room.width // CARD_WIDTH))
    height = min(CARD_LEAST, max(3, most))
    rows = room.fixed or min(max(height, most // height * height), ceil(count / across) * height)
    return Arrangement("cards", across, room.width // across, height, rows)


def _compact(count: int, room: GridRoom) -> Arrangement:
    """Return as few tiles side by side as show all GPUs at once; if impossible, as many as fit."""
    most = room.fixed or room.most
    full = max(1, room.width // LINE_FULL)
    widest = max(1, room.width // LINE_ENOUGH)
    narrowest = max(1, room.width // LINE_WIDTH)
    across = next((n for n in range(widest, narrowest + 1) if ceil(count / n) + 1 <= most), narrowest)
    if room.mode == "auto" and ceil(count / full) + 1 <= most * 2 // 3:
        across = full
    across = max(1, min(across, count))
    across = ceil(count / ceil(count / across))  # as few side by side as the same number of lines holds: wider and even
    rows = room.fixed or min(ceil(count / across) + 1, max(2, most))
    return Arrangement("compact", across, room.width // across, 1, rows)
