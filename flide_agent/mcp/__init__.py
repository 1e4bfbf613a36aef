"""An MCP server with decisions as tools: `flide-agent mcp`, over stdio or HTTP. Needs the extra `mcp`; knows the client alone.

Reading order: specs (questions as a model writes them), verdict (flat answers), server (the tools).
An MCP server does not see its host's history: callers pass messages, or name a session that someone keeps up to date over HTTP.
"""

from __future__ import annotations
