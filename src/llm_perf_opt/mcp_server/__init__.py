"""An MCP server over stdio: findings, evidence and figures of captures and runs as tools for coding agents.

limits      strings of captures as data, answers within a size, pages
allowed_paths       the folders a client may name files in
answer_rows        rows of a query as JSON values
captures    captures and runs as subjects with a diagnosis, the latest kept
mcp_answers     the records tools answer with
tools       one method per tool; plain functions of arguments to text
capture_tool     the tool that runs programs, with `--allow-run` only
server      the tools on the official SDK
clients     the configuration of common clients, and the shipped SKILL.md

Read `tools` first. Only `server` imports the SDK (extra `mcp`).
"""
