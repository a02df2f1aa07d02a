"""Foreign text for a terminal: neutralised, measured in cells, and laid out."""

from gputui.domain.text.characters import ELLIPSIS, JOINER, is_narrow, width
from gputui.domain.text.layout import broken, fit
from gputui.domain.text.neutralise import plain, plain_bytes, plain_log

__all__ = ["ELLIPSIS", "JOINER", "broken", "fit", "is_narrow", "plain", "plain_bytes", "plain_log", "width"]
