"""MCP server on standard input and output. Nothing else imports `mcp`, which takes a second."""

from __future__ import annotations

import logging

import anyio
from anyio import to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from gputui import __version__
from gputui.domain.errors import AccessError, GputuiError, InputErrors, NoOwnerError
from gputui.domain.text import plain
from gputui.mcp.tools import INSTRUCTIONS, TOOLS, Tool, Tools

log = logging.getLogger(__name__)

_MOST_CALLS = 8
"""Calls that are answered at the same time; the owner takes few of one user."""


def serve(tools: Tools) -> None:
    """Serve until standard input ends."""
    anyio.run(_serve, tools)


async def _serve(tools: Tools) -> None:
    limiter = anyio.CapacityLimiter(_MOST_CALLS)

    async def listed(_: object, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_listed(tool) for tool in TOOLS.values()])

    async def called(_: object, asked: CallToolRequestParams) -> CallToolResult:
        if asked.name not in TOOLS:
            raise MCPError(INVALID_PARAMS, f"there is no tool {plain(asked.name, 60)}")
        return await to_thread.run_sync(
            _answer, tools, asked.name, asked.arguments or {}, limiter=limiter, abandon_on_cancel=True
        )

    server = Server(
        "gputui",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        tools.close()


def _listed(tool: Tool) -> ListedTool:
    hints = ToolAnnotations(
        read_only_hint=not tool.changes,
        destructive_hint=tool.destroys,
        idempotent_hint=tool.changes and tool.name != "submit_job",
        open_world_hint=False,
    )
    return ListedTool(name=tool.name, description=tool.text, input_schema=tool.schema, annotations=hints)


def _answer(tools: Tools, name: str, arguments: dict[str, object]) -> CallToolResult:
    """Return the answer of a tool; an error is one too, so that the agent can do better."""
    try:
        return _result(tools.call(name, arguments))
    except GputuiError as error:
        return _result(_words(error), is_error=True)
    except Exception as error:
        log.exception("%s failed", name)
        return _result(f"this should not have happened: {type(error).__name__}", is_error=True)


def _result(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=is_error)


def _words(error: GputuiError) -> str:
    if isinstance(error, NoOwnerError):
        hint = error.hint or "ask the user to start the scheduler: gputui serve, or the console gputui"
        return plain(f"{error.what} ({hint})", 2000)
    errors = error.errors if isinstance(error, InputErrors) else (error,)
    rule = f" [rule {error.rule}]" if isinstance(error, AccessError) else ""
    return plain("; ".join(map(str, errors)), 2000) + rule
