"""The smallest picture and the smallest sound, and helpers to wrap them."""

import mcp_types as types

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="


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
