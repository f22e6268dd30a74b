"""A small server on version 1 of the Python SDK, over HTTP+SSE at /sse: two pages of tools, progress, cancellation."""

import argparse

import anyio
import mcp.types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS = {
    "echo": {"message": TEXT},
    "slow": {"seconds": NUMBER},
    "add": {"a": NUMBER, "b": NUMBER},
    "given_up": {},
}
PAGE = 2

server = Server("python1-peer")
given_up = 0


@server.list_tools()
async def list_tools(request: types.ListToolsRequest) -> types.ListToolsResult:
    start = int(request.params.cursor) if request and request.params and request.params.cursor else 0
    end = start + PAGE
    tools = [
        types.Tool(name=name, inputSchema={"type": "object", "properties": properties, "required": list(properties)})
        for name, properties in list(TOOLS.items())[start:end]
    ]
    return types.ListToolsResult(tools=tools, nextCursor=str(end) if end < len(TOOLS) else None)


@server.call_tool()
async def call_tool(name: str, arguments: dict) -> list[types.TextContent]:
    if name == "slow":
        await slow(arguments["seconds"])
    answers = {
        "echo": lambda: arguments["message"],
        "slow": lambda: f"took {arguments['seconds']} seconds",
        "add": lambda: str(arguments["a"] + arguments["b"]),
        "given_up": lambda: str(given_up),
    }
    return [types.TextContent(type="text", text=answers[name]())]


async def slow(seconds: float) -> None:
    global given_up
    context = server.request_context
    token = context.meta.progressToken if context.meta else None
    try:
        for step in range(1, 11):
            await anyio.sleep(seconds / 10)
            if token is not None:
                await context.session.send_progress_notification(token, step, 10, related_request_id=str(context.request_id))
    except anyio.get_cancelled_exc_class():
        given_up += 1
        raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    transport = SseServerTransport("/messages/")

    async def stream(request):
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return Response()

    routes = [Route("/sse", endpoint=stream), Mount("/messages/", app=transport.handle_post_message)]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=parser.parse_args().port, log_level="warning")
