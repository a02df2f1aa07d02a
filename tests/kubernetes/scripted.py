"""API server that gives prepared answers, one after the other, whatever it is asked."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TypeAlias

from gputui.cluster.kubernetes.api_server import ApiServer
from gputui.cluster.kubernetes.kubeconfig import ClusterEntry, KubePlace, Login, UserEntry

Answer: TypeAlias = tuple[int, bytes] | Callable[[], tuple[int, bytes]]


class ScriptedServer:
    """Server on a port of this machine; after the last answer it says 503. With `goes_on` no answer ends."""

    def __init__(self, *answers: Answer, goes_on: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        """Path and query of each request."""
        self.is_over = Event()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Write nothing."""

            def do_GET(self) -> None:
                scripted.asked.append(self.path)
                answer = scripted.answers.pop(0) if scripted.answers else (503, b"")
                code, data = answer if isinstance(answer, tuple) else answer()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data) + goes_on))
                self.end_headers()
                self.wfile.write(data)
                if goes_on:
                    scripted.is_over.wait(60)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def api(self) -> ApiServer:
        """Return the adapter's side of it."""

        cluster = ClusterEntry(f"http://127.0.0.1:{self._server.server_address[1]}")
        place = KubePlace("lab", "team", cluster, UserEntry())
        return ApiServer(place, Login(place, {}, lambda: place), {}, 10.0)

    def close(self) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


Serve: TypeAlias = Callable[..., ScriptedServer]
