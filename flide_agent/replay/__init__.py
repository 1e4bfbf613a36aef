"""Replay: walk a recorded agent run step by step and ask questions before each of its decisions.

Reading order: `records` (Run, Step, Problem), `text` (what is cleaned, for the service and for the terminal), `sources` and
`files` (arguments to paths, bytes to JSON values, row by row), `messages` (JSON to messages, named fields only), `turns`
(messages to steps), one reader a format (`sweagent`, `nebius`, `chat`, `openhands`, `openhands_sdk`, `claude_code`, `atif`,
`langchain`, `inspect_log`), `reading` (which reader takes a value), `questions` (the five default ones), `walk` (runs to
decisions), `report` and `screen` (rows, summary, JSONL, progress), `command` (`flide-agent replay`), `demo` (`flide-agent demo`).
"""
