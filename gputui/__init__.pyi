from gputui.client import AsyncClient as AsyncClient
from gputui.client import Client as Client
from gputui.domain.errors import GputuiError as GputuiError

__version__: str
