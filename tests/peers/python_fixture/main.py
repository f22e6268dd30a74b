"""What the conformance suite asks for by name, on the low level of the official Python SDK (version 2): both eras.

    python_fixture/main.py [--transport streamable-http|sse|stdio] [--port N]
"""

import argparse
import json
import logging

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from content import PNG, embedded, image, text
from questions import MODERN, ask, elicit, form
from tools import TOOLS, bus, call_tool, list_tools, watched

FIXED = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
    ),
    "test://static-binary": types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
    "test://watched-resource": types.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="Watch me."
    ),
}


async def list_resources(ctx, params):
    listed = [types.Resource(name=uri[7:], uri=uri, mime_type=is_.mime_type) for uri, is_ in FIXED.items()]
    return types.ListResourcesResult(resources=listed)


async def list_templates(ctx, params):
    template = types.ResourceTemplate(
        name="template", uri_template="test://template/{id}/data", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx, params):
    uri = str(params.uri)
    parts = uri.removeprefix("test://template/").split("/")
    if uri in FIXED:
        contents = FIXED[uri]
    elif uri.startswith("test://template/") and len(parts) == 2 and parts[1] == "data":
        data = {"id": parts[0], "templateTest": True, "data": f"Data for ID: {parts[0]}"}
        contents = types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))
    else:
        code = types.INVALID_PARAMS if ctx.protocol_version == MODERN else -32002
        raise MCPError(code=code, message=f"Resource not found: {uri}", data={"uri": uri})
    return types.ReadResourceResult(contents=[contents])


async def subscribe(ctx, params):
    watched.add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(ctx, params):
    watched.discard(str(params.uri))
    return types.EmptyResult()


PROMPTS = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def list_prompts(ctx, params):
    def argument(name):
        return types.PromptArgument(name=name, description=name, required=True)

    def prompt(name, has):
        return types.Prompt(name=name, description=name, arguments=[argument(one) for one in has])

    return types.ListPromptsResult(prompts=[prompt(name, has) for name, has in PROMPTS.items()])


async def get_prompt(ctx, params):
    given = params.arguments or {}
    if params.name not in PROMPTS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {params.name}")
    if params.name == "test_input_required_result_prompt":
        question = elicit("What context should the prompt use?", form({"context": {"type": "string"}}))
        answers = await ask(ctx, params, user_context=question)
        if isinstance(answers, types.InputRequiredResult):
            return answers
        given["context"] = answers["user_context"].content["context"]
    contents = {
        "test_simple_prompt": lambda: [text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments": lambda: [
            text(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'")
        ],
        "test_prompt_with_embedded_resource": lambda: [
            embedded(given.get("resourceUri"), "text/plain", "Embedded resource content for testing."),
            text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image": lambda: [image(), text("Please analyze the image above.")],
        "test_input_required_result_prompt": lambda: [text(f"Use this context: {given['context']}")],
    }
    messages = [types.PromptMessage(role="user", content=content) for content in contents[params.name]()]
    return types.GetPromptResult(messages=messages)


async def complete(ctx, params):
    known = ["test", "testing", "paris", "park", "party"] if params.argument.name == "arg1" else []
    values = [value for value in known if value.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


async def set_level(ctx, params):
    return types.EmptyResult()


server = Server(
    "python-fixture",
    version="1.0.0",
    instructions="A server for protocol tests. Nothing here is useful to a person.",
    get_tool_input_schema=lambda name: TOOLS[name][0] if name in TOOLS else None,
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_subscriptions_listen=ListenHandler(bus),
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
    on_set_logging_level=set_level,
)
server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="python-fixture"))


class EventLog(EventStore):
    """What was sent on each stream, so that a client can resume."""

    def __init__(self):
        self.events = []

    async def store_event(self, stream_id, message):
        self.events.append((stream_id, message))
        return str(len(self.events) - 1)

    async def replay_events_after(self, last_event_id, send_callback):
        if not last_event_id.isdigit() or int(last_event_id) >= len(self.events):
            return None
        stream_id = self.events[int(last_event_id)][0]
        for at, (stream, message) in enumerate(self.events):
            if at > int(last_event_id) and stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(at)))
        return stream_id


def sse_app():
    transport = SseServerTransport("/messages/")

    async def stream(request):
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, options())
        return Response()

    routes = [Route("/sse", endpoint=stream), Mount("/messages/", app=transport.handle_post_message)]
    return Starlette(routes=routes)


def options():
    return server.create_initialization_options(NotificationOptions(True, True, True))


async def serve_stdio():
    async with stdio_server() as (read, write):
        await server.run(read, write, options())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=["streamable-http", "sse", "stdio"], default="stdio")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    if arguments.transport == "stdio":
        anyio.run(serve_stdio)
    else:
        http = lambda: server.streamable_http_app(event_store=EventLog(), retry_interval=200)
        app = sse_app() if arguments.transport == "sse" else http()
        uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")
