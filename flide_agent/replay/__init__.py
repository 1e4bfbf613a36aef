"""Replay: walk a recorded agent run step by step and ask questions before each of its decisions.

Reading order: `records` (Run, Step, Problem), `text` (what is cleaned, for the service and for the terminal), `sources` and
`files` (arguments to paths, bytes to JSON values, row by row), `messages` (JSON to messages, named fields only), `turns`
(messages to steps), one reader a format (`sweagent`, `nebius`, `chat`, `openhands`, `openhands_sdk`, `claude_code`, `atif`,
`langchain`, `inspect_log`), `reading` (which reader takes a value), `questions` and `pack` (what is asked, and how answers are
read), `labels`, `scoring`, `scores`, `calibrate` (answers against what is known), `moments` (when in a step
a question is asked, and what is one request), `compare`, `decision`, `walk` and `load` (runs to decisions, one after the other or
many at once), `recording` (drift), `resume`, `totals`, `report`, `screen`, `page` and `page_run` (sums, rows, JSONL, progress, HTML),
`outputs`, `command` and `options` (`flide-agent replay`), `listing` and `dry` (without a service), `server` and `demo`
(`flide-agent demo`).
"""
