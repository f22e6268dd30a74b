"""A small server on FastMCP, for tests through the gateway."""

import argparse
import asyncio

from fastmcp import Context, FastMCP

server = FastMCP("fastmcp-peer", instructions="Adds numbers, repeats text and takes its time.", list_page_size=2)
cancelled = 0


@server.tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool
def echo(message: str) -> str:
    """Give back the message."""
    return message


@server.tool
async def slow(seconds: float, ctx: Context) -> str:
    """Take that many seconds and report progress ten times."""
    global cancelled
    try:
        for step in range(1, 11):
            await asyncio.sleep(seconds / 10)
            await ctx.report_progress(step, 10)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return f"took {seconds} seconds"


@server.tool
def given_up() -> str:
    """How many slow calls were cancelled."""
    return str(cancelled)


@server.resource("fastmcp://greeting", name="greeting", mime_type="text/plain")
def greeting() -> str:
    """A fixed text."""
    return "Hello from FastMCP."


@server.prompt
def hello() -> str:
    """A prompt without arguments."""
    return "Say hello."


@server.prompt
def review(code: str) -> str:
    """Ask for a review of some code."""
    return f"Please review this code:\n{code}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=["http", "sse", "stdio"], default="stdio")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    if arguments.transport == "stdio":
        server.run("stdio", show_banner=False)
    else:
        server.run(arguments.transport, show_banner=False, host="127.0.0.1", port=arguments.port)
