"""Version 1 of the Python SDK, for clients/tour.py."""

from contextlib import asynccontextmanager

import anyio
import mcp.types as types
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client


@asynccontextmanager
async def connect(target: str, transport: str, _era: str):
    open_transport = sse_client if transport == "sse" else streamablehttp_client
    async with open_transport(target) as streams:
        async with ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            yield Connection(session)


class Connection:
    era = "legacy"

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def call(self, name: str, arguments: dict, progress=None) -> str:
        result = await self.session.call_tool(name, arguments, progress_callback=progress)
        return result.content[0].text

    async def list(self, cursor: str | None) -> tuple[list[str], str | None]:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        page = await self.session.list_tools(params=params)
        return [tool.name for tool in page.tools], page.nextCursor

    async def cancelled(self, name: str, arguments: dict, progress, began: anyio.Event) -> None:
        """This version tells nobody when a call is given up, so the notification is sent by hand."""
        request = self.session._request_id
        async with anyio.create_task_group() as group:
            group.start_soon(self.call, name, arguments, progress)
            with anyio.move_on_after(2):
                await began.wait()
            params = types.CancelledNotificationParams(requestId=request, reason="enough")
            notification = types.CancelledNotification(params=params)
            await self.session.send_notification(types.ClientNotification(notification))
            group.cancel_scope.cancel()
