"""What the conformance suite asks for by name, on the low level of the official Python SDK (version 2): both eras.

    python_fixture.py [--transport streamable-http|sse|stdio] [--port N]

A legacy client is asked by requests of the server's own, a modern one by an answer that asks (`ask`).
"""

import argparse
import base64
import json
import logging

import anyio
import mcp_types as types
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
STEP = 0.05
MODERN = "2026-07-28"

bus = InMemorySubscriptionBus()
watched = set()


def text(value):
    return types.TextContent(type="text", text=value)


def image():
    return types.ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri, mime, value):
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=mime, text=value)
    )


def said(*content, failed=False):
    return types.CallToolResult(content=list(content), is_error=failed)


# --- questions


def form(properties, required=None):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def elicit(message, schema):
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(prompt, tokens):
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens))


NEEDS = {
    "elicitation/create": ("elicitation", types.ClientCapabilities(elicitation={}), types.ElicitResult),
    "sampling/createMessage": ("sampling", types.ClientCapabilities(sampling={}), types.CreateMessageResult),
    "roots/list": ("roots", types.ClientCapabilities(roots={}), types.ListRootsResult),
}


async def ask(ctx, params, state=None, **questions):
    """The client's answers by name, or the answer that asks for them."""
    for question in questions.values():
        name, capability, _ = NEEDS[question.method]
        declared = ctx.session.client_capabilities
        if declared is None or getattr(declared, name) is None:
            data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=capability)
            raise MCPError(
                code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"this needs a client that declares {name}",
                data=data.model_dump(by_alias=True, mode="json", exclude_none=True),
            )
    if ctx.protocol_version != MODERN:
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        answers = {}

        async def put(name, question):
            answers[name] = await ctx.session.send_request(question, NEEDS[question.method][2], metadata=related)

        # At once, as version 2 of the TypeScript SDK does it.
        async with anyio.create_task_group() as asking:
            for name, question in questions.items():
                asking.start_soon(put, name, question)
        return answers
    given = params.input_responses or {}
    known = json.loads(params.request_state) if params.request_state else None
    fits = all(name in given and isinstance(given[name], NEEDS[q.method][2]) for name, q in questions.items())
    if fits and known == state and all(accepted(questions[name], given[name]) for name in questions):
        return given
    sealed = None if state is None else json.dumps(state)
    return types.InputRequiredResult(input_requests=questions, request_state=sealed)


def accepted(question, answer):
    """Whether a form came back with what it must have."""
    if not isinstance(answer, types.ElicitResult) or answer.action != "accept":
        return True
    required = question.params.requested_schema.get("required") or []
    return all(name in (answer.content or {}) for name in required)


def asks(say, state=None, **questions):
    async def call(ctx, params):
        answers = await ask(ctx, params, state, **questions)
        return answers if isinstance(answers, types.InputRequiredResult) else said(text(say(answers)))

    return call


def answer_of(name):
    return lambda answers: answers[name].model_dump_json(by_alias=True, exclude_none=True)


def elicited(answers):
    (answer,) = answers.values()
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


async def ask_in_own_words(ctx, params):
    """The questions that repeat an argument of the call."""
    arguments = params.arguments or {}
    if params.name == "test_sampling":
        answers = await ask(ctx, params, completion=sample(arguments.get("prompt", ""), 100))
        say = answer_of("completion")
    else:
        person = form({"username": {"type": "string"}, "email": {"type": "string"}})
        answers = await ask(ctx, params, form=elicit(arguments.get("message", ""), person))
        say = elicited
    return answers if isinstance(answers, types.InputRequiredResult) else said(text(say(answers)))


async def two_rounds(ctx, params):
    name, color = form({"name": {"type": "string"}}), form({"color": {"type": "string"}})
    first, second = elicit("Step 1: What is your name?", name), elicit("Step 2: What is your favorite color?", color)
    known = json.loads(params.request_state) if params.request_state else {}
    if known.get("round") != 2:
        answers = await ask(ctx, params, {"round": 1}, step1=first)
        if isinstance(answers, types.InputRequiredResult):
            return answers
        known = {"round": 2, "name": answers["step1"].content["name"]}
    answers = await ask(ctx, params, known, step2=second)
    if isinstance(answers, types.InputRequiredResult):
        return answers
    return said(text(f"{known['name']} likes {answers['step2'].content['color']}."))


async def what_the_client_can(ctx, params):
    declared = ctx.session.client_capabilities or types.ClientCapabilities()
    questions = {
        "elicitation": ("user_name", elicit("What is your name?", form({"name": {"type": "string"}}))),
        "sampling": ("greeting", sample("Generate a greeting", 50)),
        "roots": ("client_roots", types.ListRootsRequest()),
    }
    able = dict(pair for name, pair in questions.items() if getattr(declared, name) is not None)
    if not able or set(params.input_responses or {}) & set(able):
        return said(text("Nothing more to ask."))
    answers = await ask(ctx, params, **able)
    return answers if isinstance(answers, types.InputRequiredResult) else said(text("All were answered."))


# --- tools


def says(*content):
    async def call(ctx, params):
        return said(*content)

    return call


async def log(ctx, message):
    await ctx.session.send_log_message("info", message, related_request_id=ctx.request_id)


async def logs(ctx, params):
    for at, message in enumerate(["Tool execution started", "Tool processing data", "Tool execution completed"]):
        if at:
            await anyio.sleep(STEP)
        await log(ctx, message)
    return said(text("Three messages were logged."))


async def logs_once(ctx, params):
    await log(ctx, "One message")
    return said(text("One message was logged."))


async def progresses(ctx, params):
    for done in (0, 50, 100):
        if done:
            await anyio.sleep(STEP)
        await ctx.session.report_progress(done, 100)
    return said(text("Progress was reported."))


async def reconnects(ctx, params):
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await anyio.sleep(2 * STEP)
    return said(text("The answer arrived after the stream was resumed."))


def announces(event, legacy):
    async def call(ctx, params):
        if ctx.protocol_version == MODERN:
            await bus.publish(event)
        else:
            await legacy(ctx.session)
        return said(text("Announced."))

    return call


async def touch(session):
    if "test://watched-resource" in watched:
        await session.send_resource_updated("test://watched-resource")


async def fails(ctx, params):
    return said(text("This tool intentionally returns an error for testing"), failed=True)


async def repeats(ctx, params):
    return said(text(f"Received: {json.dumps(params.arguments)}"))


ADDRESS_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
REGION = {"type": "string", "description": "Where to run", "x-mcp-header": "Region"}
NAME = elicit("What is your name?", form({"name": {"type": "string"}}))
CONFIRM = elicit("Please confirm", form({"ok": {"type": "boolean"}}))
OPTIONS = ["option1", "option2", "option3"]


def titled(noun):
    return [{"const": f"value{at + 1}", "title": f"{word} {noun}"} for at, word in enumerate(["First", "Second", "Third"])]


DEFAULTS = elicit(
    "Please fill in the form.",
    form(
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
        [],
    ),
)
CHOICES = elicit(
    "Please choose.",
    form(
        {
            "untitledSingle": {"type": "string", "enum": OPTIONS},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        },
        [],
    ),
)
THREE = {
    "user_name": NAME,
    "greeting": sample("Generate a greeting", 50),
    "client_roots": types.ListRootsRequest(),
}
EMPTY = {"type": "object", "properties": {}}
MESSAGE = form({"message": {"type": "string"}})

# By name: the schema of the arguments, and what answers a call.
TOOLS = {
    "test_simple_text": (EMPTY, says(text("This is a simple text response for testing."))),
    "test_image_content": (EMPTY, says(image())),
    "test_audio_content": (EMPTY, says(types.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))),
    "test_embedded_resource": (
        EMPTY,
        says(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
    ),
    "test_multiple_content_types": (
        EMPTY,
        says(
            text("Multiple content types test:"),
            image(),
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ),
    ),
    "test_tool_with_logging": (EMPTY, logs),
    "test_logging_tool": (EMPTY, logs_once),
    "test_tool_with_progress": (EMPTY, progresses),
    "test_error_handling": (EMPTY, fails),
    "test_reconnection": (EMPTY, reconnects),
    "json_schema_2020_12_tool": (ADDRESS_SCHEMA, repeats),
    "test_x_mcp_header": (form({"region": REGION}), repeats),
    "test_trigger_tool_change": (EMPTY, announces(ToolsListChanged(), lambda s: s.send_tool_list_changed())),
    "test_trigger_prompt_change": (EMPTY, announces(PromptsListChanged(), lambda s: s.send_prompt_list_changed())),
    "touch_watched_resource": (EMPTY, announces(ResourceUpdated("test://watched-resource"), touch)),
    "test_sampling": (form({"prompt": {"type": "string"}}), ask_in_own_words),
    "test_elicitation": (MESSAGE, ask_in_own_words),
    "test_elicitation_sep1034_defaults": (EMPTY, asks(elicited, form=DEFAULTS)),
    "test_elicitation_sep1330_enums": (EMPTY, asks(elicited, form=CHOICES)),
    "test_missing_capability": (EMPTY, asks(answer_of("sample"), sample=sample("Say anything", 10))),
    "test_streaming_elicitation": (EMPTY, asks(answer_of("user_name"), user_name=NAME)),
    "test_input_required_result_elicitation": (EMPTY, asks(answer_of("user_name"), user_name=NAME)),
    "test_input_required_result_sampling": (
        EMPTY,
        asks(answer_of("capital_question"), capital_question=sample("What is the capital of France?", 100)),
    ),
    "test_input_required_result_list_roots": (
        EMPTY,
        asks(answer_of("client_roots"), client_roots=types.ListRootsRequest()),
    ),
    "test_input_required_result_request_state": (EMPTY, asks(lambda _: "state-ok", {"step": "confirm"}, confirm=CONFIRM)),
    "test_input_required_result_tampered_state": (EMPTY, asks(lambda _: "state-ok", {"step": "confirm"}, confirm=CONFIRM)),
    "test_input_required_result_multiple_inputs": (EMPTY, asks(lambda _: "All three arrived.", {"step": "all"}, **THREE)),
    "test_input_required_result_multi_round": (EMPTY, two_rounds),
    "test_input_required_result_capabilities": (EMPTY, what_the_client_can),
}


async def list_tools(ctx, params):
    tools = [types.Tool(name=name, description=name, input_schema=schema) for name, (schema, _) in TOOLS.items()]
    return types.ListToolsResult(tools=tools)


async def call_tool(ctx, params):
    if params.name not in TOOLS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
    return await TOOLS[params.name][1](ctx, params)


# --- resources

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


# --- prompts

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


# --- transports

HINT = CacheHint(ttl_ms=0, scope="private")
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
