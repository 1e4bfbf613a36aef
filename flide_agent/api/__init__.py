"""HTTP. Nothing is decided here: bodies come in, `decide` and `sessions` answer, errors get their shape.

Reading order: `body` (bytes to JSON, with caps), `errors` (every error body), `routes` (the handlers), `app`, `server`.
"""
