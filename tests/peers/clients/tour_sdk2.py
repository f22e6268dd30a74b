"""Version 2 of the Python SDK, for clients/tour.py."""

from contextlib import asynccontextmanager

import anyio
from mcp import Client
from mcp.client.sse import sse_client

MODERN = "2026-07-28"


@asynccontextmanager
async def connect(target: str, transport: str, era: str):
    server = sse_client(target) if transport == "sse" else target
    async with Client(server, mode=MODERN if era == "modern" else era) as client:
        yield Connection(client)


class Connection:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.era = "modern" if client.protocol_version >= MODERN else "legacy"

    async def call(self, name: str, arguments: dict, progress=None) -> str:
        result = await self.client.call_tool(name, arguments, progress_callback=progress)
        return result.content[0].text

    async def list(self, cursor: str | None) -> tuple[list[str], str | None]:
        page = await self.client.list_tools(cursor=cursor)
        return [tool.name for tool in page.tools], page.next_cursor

    async def cancelled(self, name: str, arguments: dict, progress, began: anyio.Event) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.call, name, arguments, progress)
            with anyio.move_on_after(2):
                await began.wait()
            group.cancel_scope.cancel()
