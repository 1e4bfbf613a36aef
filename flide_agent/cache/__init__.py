"""`flide-agent cache`: looking into a store's directory and putting it right, without a model.

What only reads (`ls`, `stat`, `verify`, `export`) runs beside a server. What writes (`gc`, `forget`, `import`) takes the directory
as a server does, and refuses while one has it.

Reading order: `shelf` (a directory opened), `inventory` (what is in it), `verify`, `sweep` (gc and forget), `bundle` (a session as
a file), `command` (the command line).
"""
