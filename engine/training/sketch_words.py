# ruff: noqa: E501 - tables of words read best a line each
"""What sketched runs are made of: names and kinds of tools, paths, why each tool may refuse, tasks."""

from __future__ import annotations

VERBS = {
    "open": ("open", "view", "read", "show", "display", "load", "get", "peek", "inspect", "print", "cat", "goto", "see"), "list": ("list", "ls", "tree", "browse", "dir", "show", "explore"), "scroll": ("scroll", "page", "next", "down", "more", "up", "previous"),
    "search": ("search", "grep", "find", "query", "lookup", "match", "rg"), "find": ("find", "glob", "locate", "search", "which"),
    "create": ("create", "write", "new", "save", "put", "make", "add"), "edit": ("edit", "replace", "update", "modify", "patch", "change", "substitute", "apply", "rewrite", "str_replace"), "insert": ("insert", "append", "add"),
    "delete": ("delete", "remove", "rm", "drop", "trash"), "move": ("move", "rename", "mv"), "undo": ("undo", "revert", "rollback", "restore"), "run": ("run", "execute", "exec", "call", "start", "bash", "shell", "terminal", "launch", "invoke"), "test": ("test", "run_tests", "check", "verify", "pytest"),
}  # fmt: skip
NOUNS = {
    "open": ("file", "", "source", "document", "text", "lines", "buffer", "code", "range"), "list": ("dir", "files", "folder", "directory", "", "entries", "workspace"), "scroll": ("down", "up", "window", "page", ""),
    "search": ("dir", "text", "code", "file", "files", "content", "in_files", "", "regex", "project"), "find": ("file", "files", "path", "by_name", "name"),
    "create": ("file", "", "document", "text", "content"), "edit": ("file", "", "text", "lines", "block", "in_file", "range", "code"), "insert": ("lines", "text", "", "at_line", "code"),
    "delete": ("file", "", "path", "lines"), "move": ("file", "", "path"), "undo": ("edit", "change", "", "last", "file"), "run": ("command", "", "shell", "cmd", "script", "code", "in_terminal", "python"), "test": ("suite", "", "all", "file"),
}  # fmt: skip
KIND = {"open": "look", "list": "look", "scroll": "look", "search": "search", "find": "search", "create": "edit", "edit": "edit", "insert": "edit", "delete": "edit", "move": "edit", "undo": "edit", "run": "run", "test": "run"}  # fmt: skip
PATHS = ("path", "file", "file_path", "filename", "target", "uri", "filepath", "name", "TargetFile")
FOLDERS = ("src", "lib", "app", "core", "tests", "pkg", "server", "api", "tools", "docs", "utils", "internal", "")
STEMS = ("main", "config", "models", "errors", "parser", "client", "index", "handler", "routes", "failures", "session", "utils", "loader", "schema", "exceptions", "report", "cache", "worker", "setup", "invalid_cases", "base", "cli")  # fmt: skip
ENDS = (
    ".py",
    ".py",
    ".py",
    ".py",
    ".js",
    ".ts",
    ".go",
    ".rs",
    ".java",
    ".c",
    ".md",
    ".txt",
    ".json",
    ".yaml",
    ".cfg",
    ".html",
    ".rb",
    ".sh",
)
PATTERNS = (
    "def ",
    "class ",
    "import",
    "return",
    "error",
    "Error",
    "raise",
    "TODO",
    "self",
    "None",
    "fail",
    "assert",
    "not found",
    "except",
)
REFUSALS = {
    "open": ("missing", "missing", "folder", "beyond", "range", "argument", "denied", "binary", "unknown", "slow"), "list": ("missing", "missing", "argument", "denied", "unknown"), "scroll": ("closed", "closed", "beyond", "argument", "unknown"),
    "search": ("missing", "pattern", "argument", "slow", "closed", "unknown", "denied"), "find": ("missing", "pattern", "argument", "denied", "unknown"), "create": ("exists", "exists", "parent", "argument", "denied", "folder", "syntax", "unknown"),
    "edit": ("absent", "absent", "many", "same", "syntax", "syntax", "syntax", "syntax", "syntax", "syntax", "beyond", "range", "closed", "missing", "argument", "stale", "denied", "unknown"), "insert": ("beyond", "beyond", "syntax", "syntax", "closed", "missing", "argument", "stale", "denied"),
    "delete": ("missing", "missing", "folder", "denied", "argument"), "move": ("missing", "missing", "exists", "parent", "denied"), "undo": ("undo", "undo", "undo", "closed", "missing"), "run": ("slow", "denied", "argument", "unknown"), "test": ("slow", "missing", "argument", "unknown"),
}  # fmt: skip
TASKS = ("Please look into {p}: {s}.", "{s}. The code is in {p}.", "Fix the problem with {p}. {s}.", "Issue: {s}\n\nWhere: {p}\n\nMake the smallest change that helps.", "We need {p} to be cleaned up. {s}", "# Task\n{s}\n\nSee {p} and finish by handing in.", "Find out why {s}", "An error was reported for {p}: {s}")  # fmt: skip
STORIES = ("it returns the wrong value for empty input", "the command line tool fails with an error on start", "tests fail since last week", "a missing key raises KeyError", "the report shows 0 instead of 1", "reading a file twice does not work", "an invalid date is accepted", "documentation and code differ", "nothing is printed")  # fmt: skip
