"""The tools, by name."""

import json

import anyio
import mcp_types as types
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

from content import WAV, embedded, image, said, text
from questions import (
    MODERN,
    answer_of,
    ask_in_own_words,
    asks,
    elicit,
    elicited,
    form,
    sample,
    two_rounds,
    what_the_client_can,
)

# Long enough for two notifications to arrive as two events.
STEP = 0.05

bus = InMemorySubscriptionBus()
watched = set()


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
