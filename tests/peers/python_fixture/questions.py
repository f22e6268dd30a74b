"""What asks the client: in the legacy era by requests of the server's own, in the modern one by an answer that asks."""

import json

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from content import said, text

MODERN = "2026-07-28"


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
